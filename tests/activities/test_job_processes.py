"""What a job asks of the supervisor: one SIGINT, a kill, and nothing left of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from activities import cells
from activities.capture import LIVE_SUFFIX
from activities.supervise import ProcessExit, ProcessSpec, Supervisor, SupervisorLost
from perdure.job_messages import JobSpec
from tests.activities.living import (
    SLEEP,
    STUBBORN_SLEEPERS,
    keeper_of,
    living,
    new_tag,
    parent_of,
    sh,
    sleepers,
    spec_of,
    started,
    stubborn_tree,
)
from tests.activities.test_supervisor_crash import kill, worker
from tests.waiting import until, written


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    made = await Supervisor.start()
    yield made
    await made.close()


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    made = new_tag()
    yield made
    for pid in living(made):
        os.kill(pid, signal.SIGKILL)


def job_of(folder: Path, argv: list[str], **more: object) -> ProcessSpec:
    """A process as jobs have theirs run: nobody takes its end over."""
    return replace(spec_of(folder, argv, **more), exit_file=None, fold_redraws=True)  # type: ignore[arg-type]


def cell_of(folder: Path, code: str) -> ProcessSpec:
    """A python cell as jobs have theirs run."""
    reports = [str(folder / "report.json")]
    stdin = cells.input_of(JobSpec(code=code), None, {"results": {}}, reports)
    return replace(job_of(folder, cells.argv_here(), stdin=stdin), hold_sigint=True)


def printed(spec: ProcessSpec) -> str:
    """What is kept of its standard output so far."""
    return spec.stdout.read_text() if spec.stdout.exists() else ""


async def ends(run: asyncio.Task[ProcessExit]) -> ProcessExit:
    return await asyncio.wait_for(run, 60)


# --- Interrupts ----------------------------------------------------------------------------------


async def test_c25a_a_child_that_ignores_the_interrupt_goes_with_its_shell(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    spec = job_of(tmp_path, sh(f"echo begun; {SLEEP} {tag} & wait"))
    run = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == 1, "the sleeper")
    assert await supervisor.interrupt(spec.key) is None
    ended = await ends(run)
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGINT, "exit")
    assert sleepers(tag) == 0
    assert spec.stdout.read_text() == "begun\n"


async def test_c25b_bd4_a_cell_that_swallows_interrupts_is_killed(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    code = f"""
import subprocess, time
subprocess.Popen(["{SLEEP}", "{tag}"], start_new_session=True)
while 1:
    try:
        print("round")
        time.sleep(600)
    except KeyboardInterrupt:
        print("no")
"""
    spec = cell_of(tmp_path, code)
    run = asyncio.create_task(supervisor.run(spec))
    for count in range(1, 4):
        await until(lambda n=count: printed(spec).count("round") == n)
        assert await supervisor.interrupt(spec.key) is None
    await until(lambda: printed(spec).count("no") == 3, "the third interrupt")
    supervisor.kill(spec.key)
    ended = await ends(run)
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGKILL, "killed")
    assert sleepers(tag) == 0
    assert spec.stdout.read_text().startswith("round\nno\nround\nno\n")


async def test_c25c_a_deaf_command_is_killed(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    spec = job_of(tmp_path, sh(f"trap '' INT TERM; echo deaf; {SLEEP} {tag}; {SLEEP} {tag}"))
    run = asyncio.create_task(supervisor.run(spec))
    await written(spec.stdout)
    await until(lambda: sleepers(tag) == 1, "the sleeper")
    assert await supervisor.interrupt(spec.key) is None
    assert await supervisor.interrupt(spec.key) is None
    supervisor.kill(spec.key)
    assert (await ends(run)).ended_by == "killed"
    assert sleepers(tag) == 0


async def test_c25d_a_polite_cell_gets_the_time_that_it_needs(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    code = """
import time
try:
    print("training", flush=True)
    time.sleep(600)
finally:
    time.sleep(1)
    open("saved", "w").write("all of it")
"""
    spec = cell_of(tmp_path, code)
    run = asyncio.create_task(supervisor.run(spec))
    await written(spec.stdout)
    assert await supervisor.interrupt(spec.key) is None
    ended = await ends(run)
    assert (ended.exit_code, ended.ended_by) == (130, "exit")
    assert (tmp_path / "saved").read_text() == "all of it"
    assert json.loads((tmp_path / "report.json").read_text())["interrupted"]
    assert spec.stdout.read_text() == "training\n"


async def test_an_interrupt_after_the_end_reaches_nobody_and_says_so(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = job_of(tmp_path, sh("echo done"))
    assert await supervisor.interrupt(spec.key) == "its process has ended"
    run = asyncio.create_task(supervisor.run(spec))
    await ends(run)
    assert await supervisor.interrupt(spec.key) == "its process has ended"
    supervisor.kill(spec.key)


async def test_bd3_an_interrupt_before_there_is_a_process_reaches_it(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = cell_of(tmp_path, "while True: pass")
    run = asyncio.create_task(supervisor.run(spec))
    await asyncio.sleep(0)  # it has been asked for, and nothing of it is there
    assert await asyncio.wait_for(supervisor.interrupt(spec.key), 60) is None
    assert (await ends(run)).exit_code == 130
    assert json.loads((tmp_path / "report.json").read_text())["error"] == "Interrupted"


async def test_bd2_an_interrupt_at_any_moment_of_the_start_is_the_cells(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    for moment in range(8):
        folder = tmp_path / str(moment)
        folder.mkdir()
        spec = cell_of(folder, "import time\nwhile True: time.sleep(9)")
        run = asyncio.create_task(supervisor.run(spec))
        await asyncio.sleep(moment * 0.008)
        assert await supervisor.interrupt(spec.key) is None
        assert (await ends(run)).exit_code == 130
        assert json.loads((folder / "report.json").read_text())["interrupted"]


async def test_two_interrupts_at_once_are_two_and_harmless(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = job_of(tmp_path, sh("trap 'echo one' INT; echo ready; while :; do sleep 0.05; done"))
    run = asyncio.create_task(supervisor.run(spec))
    await written(spec.stdout)
    both = asyncio.gather(supervisor.interrupt(spec.key), supervisor.interrupt(spec.key))
    assert list(await both) == [None, None]
    await until(lambda: "one" in printed(spec), "the trap")
    supervisor.kill(spec.key)
    await ends(run)


async def test_a_job_of_a_worker_that_ignores_sigint_can_be_interrupted(tmp_path: Path) -> None:
    """A worker that is started with `&` by a shell has it ignored, and all it starts would."""
    before = (
        signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.signal(signal.SIGQUIT, signal.SIG_IGN),
    )
    try:
        supervisor = await Supervisor.start()
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGQUIT, before[1])
    try:
        status = "grep -E 'SigIgn|SigBlk' /proc/self/status"
        spec = job_of(tmp_path, sh(f"{status}; exec {SLEEP} 600"))
        run = asyncio.create_task(supervisor.run(spec))
        await until(lambda: printed(spec).count("\n") == 2)
        both = 1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1
        masks = [int(line.split()[1], 16) for line in spec.stdout.read_text().splitlines()]
        assert [mask & both for mask in masks] == [0, 0]
        assert await supervisor.interrupt(spec.key) is None
        assert (await ends(run)).exit_code == -signal.SIGINT
    finally:
        await supervisor.close()


# --- Nothing is left -----------------------------------------------------------------------------


async def test_a_kill_takes_the_whole_tree_at_once(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    spec = job_of(tmp_path, sh(stubborn_tree(tag)))
    run = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
    supervisor.kill(spec.key)
    ended = await ends(run)
    assert ended.ended_by == "killed"
    assert not living(tag)
    assert ended.duration_seconds < 60


async def test_a_kill_does_not_wait_for_the_grace_of_an_end_that_is_under_way(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    spec = replace(
        job_of(tmp_path, sh(f"trap '' TERM; {SLEEP} {tag}; {SLEEP} {tag}")),
        kill_grace_seconds=3600.0,
    )
    run = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == 1, "the sleeper")
    supervisor.end(spec.key)
    supervisor.kill(spec.key)
    assert (await ends(run)).ended_by == "cancelled"
    assert not living(tag)


@pytest.mark.parametrize("who", ["worker", "supervisor"])
async def test_c27_nothing_of_a_job_outlives_its_worker(tmp_path: Path, tag: str, who: str) -> None:
    spec = spec_of(tmp_path, [])
    with worker(spec, stubborn_tree(tag)) as program:
        await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
        killed = program.pid if who == "worker" else parent_of(keeper_of(tag, program.pid))
        loop = asyncio.get_running_loop()
        kill(killed)
        at = loop.time()
        await until(lambda: not living(tag), "the end of the tree")
        assert loop.time() - at < 5


async def test_a_job_whose_supervisor_is_killed_is_known_to_be_lost(
    supervisor: Supervisor, tmp_path: Path, tag: str
) -> None:
    spec = job_of(tmp_path, sh(f"{SLEEP} {tag}"))
    run = asyncio.create_task(supervisor.run(spec))
    await started(supervisor, spec.key)
    interrupting = asyncio.create_task(supervisor.interrupt(spec.key))
    kill(supervisor.pid)
    with pytest.raises(SupervisorLost):
        await ends(run)
    await asyncio.wait_for(interrupting, 60)
    assert not living(tag)


# --- Output --------------------------------------------------------------------------------------


async def test_c29_a_bar_can_be_seen_while_it_is_drawn(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    code = """
import sys, time
sys.stderr.write("loading\\r\\n")
for n in range(10**9):
    sys.stderr.write(f"\\r{n}%")
    time.sleep(0.01)
"""
    spec = cell_of(tmp_path, code)
    run = asyncio.create_task(supervisor.run(spec))
    live = Path(f"{spec.stderr}{LIVE_SUFFIX}")

    def shown() -> int:
        return int(json.loads(live.read_text())["live"].rstrip("%")) if live.exists() else 0

    await until(lambda: shown() > 3, "the bar")
    first = shown()
    await until(lambda: shown() > first, "the bar moves")
    assert spec.stderr.read_bytes() == b"loading\r\n"
    supervisor.kill(spec.key)
    await ends(run)
    assert spec.stderr.read_bytes().startswith(b"loading\r\n")
    assert spec.stderr.read_bytes().endswith(b"%")
    assert json.loads(live.read_text())["live"] == ""


async def test_c31_a_job_reads_end_of_file_at_once(supervisor: Supervisor, tmp_path: Path) -> None:
    for n, command in enumerate(("cat", "read x; echo over", "sh -c 'read x < /dev/tty'; :")):
        folder = tmp_path / str(n)
        folder.mkdir()
        spec = job_of(folder, sh(command))
        assert (await ends(asyncio.create_task(supervisor.run(spec)))).exit_code == 0


async def test_a_full_disk_costs_a_job_its_output_and_not_its_life(
    supervisor: Supervisor, small_disk: Path
) -> None:
    spec = job_of(
        small_disk, [sys.executable, "-Xutf8", "-c", "for _ in range(60): print('é' * 50_000)"]
    )
    ended = await ends(asyncio.create_task(supervisor.run(spec)))
    assert (ended.exit_code, ended.ended_by) == (0, "exit")
    assert ended.output_error == "No space left on device"
    assert ended.stdout_chars == 60 * 50_001
