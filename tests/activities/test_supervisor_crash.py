"""What is left when worker, supervisor and keepers are killed, alone and together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from activities import marker
from activities.supervise import FAULT, ProcessSpec, Supervisor, SupervisorLost, read_exit
from tests.activities.living import (
    SLEEP,
    STUBBORN_SLEEPERS,
    children_of,
    command_of,
    is_running,
    keeper_of,
    living,
    new_tag,
    parent_of,
    sh,
    sleepers,
    spec_of,
    started,
    stubborn_tree,
    zombies_of,
)
from tests.waiting import until

ROOT = Path(__file__).parents[2]


def kill(*pids: int) -> None:
    """SIGKILL, as nearly at once as can be: all are stopped before the first one dies."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def worker_command(spec: ProcessSpec, script: str) -> list[str]:
    module = "tests.activities.crashing_worker"
    return [sys.executable, "-m", module, str(spec.cwd), spec.key, script]


@contextlib.contextmanager
def worker(spec: ProcessSpec, script: str, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, which runs one script."""
    program = subprocess.Popen(
        worker_command(spec, script),
        cwd=ROOT,
        env={**os.environ, FAULT: fault},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.wait()


@dataclass
class Family:
    """A worker that runs a stubborn tree, and everybody between the two."""

    spec: ProcessSpec
    tag: str
    worker: int
    supervisor: int
    keeper: int


@pytest.fixture
async def family(tmp_path: Path) -> AsyncIterator[Family]:
    tag = new_tag()
    spec = spec_of(tmp_path, [])
    with worker(spec, stubborn_tree(tag)) as program:
        await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
        keeper = keeper_of(tag, program.pid)
        yield Family(spec, tag, program.pid, parent_of(keeper), keeper)
    for pid in living(tag):
        os.kill(pid, signal.SIGKILL)


async def nothing_lives(family: Family) -> None:
    await until(lambda: not living(family.tag), "the end of the tree")
    await until(lambda: not is_running(family.keeper), "the end of the keeper")


# --- Who may die ---------------------------------------------------------------------------------


async def test_c27_nothing_outlives_a_killed_worker(family: Family) -> None:
    kill(family.worker)
    await nothing_lives(family)
    await until(lambda: not is_running(family.supervisor), "the end of the supervisor")
    assert not family.spec.exit_file.exists()


async def test_nothing_outlives_a_killed_supervisor(family: Family) -> None:
    kill(family.supervisor)
    await nothing_lives(family)
    assert not family.spec.exit_file.exists()


async def test_nothing_outlives_a_worker_killed_with_its_supervisor(family: Family) -> None:
    kill(family.worker, family.supervisor)
    await nothing_lives(family)
    assert not family.spec.exit_file.exists()


async def test_nothing_outlives_a_killed_keeper(family: Family) -> None:
    kill(family.keeper)
    await nothing_lives(family)
    assert not family.spec.exit_file.exists()


async def test_nothing_outlives_a_worker_killed_with_its_keeper(family: Family) -> None:
    kill(family.worker, family.keeper)
    await nothing_lives(family)
    await until(lambda: not is_running(family.supervisor), "the end of the supervisor")


async def test_when_all_are_killed_at_once_the_marker_finds_what_is_left(tmp_path: Path) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, [])
    daemon = f"( setsid sh -c '{SLEEP} {tag}; {SLEEP} {tag}' & )"
    script = f"setsid {SLEEP} {tag} & {daemon}; {SLEEP} {tag}; :"
    with worker(spec, script) as program:
        await until(lambda: sleepers(tag) == 3, "three processes")
        keeper = keeper_of(tag, program.pid)
        main = next(pid for pid in children_of(keeper) if command_of(pid) == sh(script))
        kill(program.pid, parent_of(keeper), keeper)
        await until(lambda: not is_running(main), "the end of the main process, by the kernel")
        assert sleepers(tag) >= 2
        assert marker.sweep(spec.key)
        assert living(tag) == []


COPIED_WORKER = """
import asyncio, os, sys, time
from pathlib import Path
from activities.supervise import Supervisor
from tests.activities.living import pid_of, spec_of

async def main(folder, copy_tag, *argv):
    supervisor = await Supervisor.start()
    spec = spec_of(Path(folder), list(argv))
    task = asyncio.create_task(supervisor.run(spec))
    while not pid_of(supervisor, spec.key):
        await asyncio.sleep(0.01)
    if os.fork() == 0:
        time.sleep(600)  # holds every descriptor of the worker
    await task

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_forked_copy_of_the_worker_does_not_keep_its_processes_alive(tmp_path: Path) -> None:
    tag, copy_tag = new_tag(), new_tag()
    command = [sys.executable, "-c", COPIED_WORKER, str(tmp_path), copy_tag, SLEEP, tag]

    async def scenario() -> None:
        await until(lambda: len(living(copy_tag)) == 2 and sleepers(tag), "worker, copy, process")
        worker.kill()
        worker.wait()
        await until(lambda: not sleepers(tag), "the end of the process")
        assert len(living(copy_tag)) == 1

    worker = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        asyncio.run(scenario())
    finally:
        for pid in living(copy_tag):
            os.kill(pid, signal.SIGKILL)
        worker.wait()


async def test_c27_a_worker_killed_at_any_moment_after_the_start_leaves_nothing(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    moments = random.Random(seed)
    for _ in range(8):
        tag = new_tag()
        spec = spec_of(tmp_path, [])
        with worker(spec, f"setsid {SLEEP} {tag} & {SLEEP} {tag}") as program:
            # The files are opened just before the process is started.
            await until(spec.stdout.exists, "the start")
            await asyncio.sleep(moments.uniform(0, 0.05))
            kill(program.pid)
            program.wait()
            await until(lambda tag=tag: not living(tag), "the end of the tree")
            assert not spec.exit_file.exists()


# --- What is kept --------------------------------------------------------------------------------


async def test_an_end_is_on_disk_before_it_is_reported(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [])
    with worker(spec, "echo done; exit 5", fault="hold-report:600") as program:
        await until(spec.exit_file.exists, "the exit file")
        assert program.poll() is None
        supervisor = next(iter(children_of(program.pid)))
        kill(program.pid)
        ended = read_exit(spec.exit_file)
        assert ended is not None
        assert (ended.exit_code, ended.ended_by) == (5, "exit")
        assert spec.stdout.read_text() == "done\n"
        await until(lambda: not is_running(supervisor), "the end of the supervisor")


async def test_an_exit_file_is_whole_or_absent_whenever_the_worker_is_killed(
    tmp_path: Path,
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    moments = random.Random(seed)
    for _ in range(10):
        spec = spec_of(tmp_path, [])
        with worker(spec, "echo done; exit 5") as program:
            await until(spec.stdout.exists, "the start")
            await asyncio.sleep(moments.uniform(0, 0.02))
            kill(program.pid)
            program.wait()
        await until(lambda key=spec.key: not marker.find(key), "the end of the process")
        if spec.exit_file.exists():
            ended = read_exit(spec.exit_file)
            assert ended is not None
            assert ended.exit_code == 5
            assert spec.stdout.read_text() == "done\n"


# --- What a living worker makes of it ------------------------------------------------------------


@pytest.mark.parametrize("victims", ["supervisor", "keeper", "both"])
async def test_a_loss_is_raised_when_nothing_is_left_and_the_next_run_works(
    tmp_path: Path, victims: str
) -> None:
    earlier = zombies_of(os.getpid())  # other tests' servers, for example
    supervisor = await Supervisor.start()
    tag = new_tag()
    # With both killed nobody knows the tree any more, so a part without marker would escape.
    script = stubborn_tree(tag) if victims != "both" else f"setsid {SLEEP} {tag} & {SLEEP} {tag}; :"
    spec = spec_of(tmp_path, sh(script))
    task = asyncio.create_task(supervisor.run(spec))
    expected = STUBBORN_SLEEPERS if victims != "both" else 2
    await until(lambda: sleepers(tag) == expected, "the whole tree")
    keeper = parent_of(await started(supervisor, spec.key))
    pids = {"supervisor": [supervisor.pid], "keeper": [keeper]}
    kill(*pids.get(victims, [supervisor.pid, keeper]))

    with pytest.raises(SupervisorLost, match=spec.key):
        await task
    assert living(tag) == []
    assert not spec.exit_file.exists()
    ended = await supervisor.run(spec_of(tmp_path, ["true"]))
    assert ended.exit_code == 0
    await until(lambda: set(zombies_of(os.getpid())) <= set(earlier), "no zombies")
    await supervisor.close()


async def test_a_killed_keeper_does_not_touch_its_neighbours(tmp_path: Path) -> None:
    supervisor = await Supervisor.start()
    tags = [new_tag() for _ in range(2)]
    specs = [spec_of(tmp_path, [SLEEP, tag]) for tag in tags]
    tasks = [asyncio.create_task(supervisor.run(spec)) for spec in specs]
    first, _ = [await started(supervisor, spec.key) for spec in specs]
    kill(parent_of(first))
    with pytest.raises(SupervisorLost):
        await tasks[0]
    assert [len(living(tag)) for tag in tags] == [0, 1]
    supervisor.end(specs[1].key)
    assert (await tasks[1]).ended_by == "cancelled"
    await supervisor.close()


async def test_an_idle_supervisor_that_was_killed_is_replaced_by_one(tmp_path: Path) -> None:
    supervisor = await Supervisor.start()
    for _ in range(3):
        killed = supervisor.pid
        kill(killed)
        await until(lambda killed=killed: not is_running(killed), "the end of the supervisor")
        ends = await asyncio.gather(
            *(supervisor.run(spec_of(tmp_path, ["true"])) for _ in range(5))
        )
        assert [ended.exit_code for ended in ends] == [0] * 5
    assert children_of(os.getpid()) & {killed, supervisor.pid} == {supervisor.pid}
    await supervisor.close()


# --- The worker's own input ----------------------------------------------------------------------

READERS = "cat; python3; read x; (read x </dev/tty); true"


@pytest.mark.parametrize("nohup", [False, True], ids=["pipe", "nohup"])
def test_c31_input_from_a_pipe_is_left_to_the_worker(tmp_path: Path, nohup: bool) -> None:
    command = worker_command(spec_of(tmp_path, []), READERS)
    done = subprocess.run(
        ["nohup", *command] if nohup else command,
        cwd=ROOT,
        input=b"typed\n",
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == [b"exit", b"typed"]


def test_c31_input_from_a_terminal_is_left_to_the_worker(tmp_path: Path) -> None:
    ours, terminal = os.openpty()
    # A session of its own with this terminal, as a login shell has it.
    adopt = (
        "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    os.write(ours, b"typed\n")
    done = subprocess.run(
        [sys.executable, "-c", adopt, *worker_command(spec_of(tmp_path, []), READERS)],
        cwd=ROOT,
        stdin=terminal,
        stdout=subprocess.PIPE,
        start_new_session=True,
        timeout=60,
        check=True,
    )
    os.close(ours)
    os.close(terminal)
    assert done.stdout.split() == [b"exit", b"typed"]
