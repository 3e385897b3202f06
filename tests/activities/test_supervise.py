"""What the supervisor promises to the worker, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from activities import marker
from activities.supervise import (
    ProcessExit,
    ProcessSpec,
    SpawnFailed,
    Supervisor,
    SupervisorLost,
    read_exit,
)
from tests.activities.living import (
    SLEEP,
    STUBBORN_SLEEPERS,
    living,
    new_tag,
    pid_of,
    sh,
    sleepers,
    spec_of,
    started,
    stubborn_tree,
    zombies_of,
)
from tests.waiting import until


@pytest.fixture(scope="module")
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = await Supervisor.start()
    yield supervisor
    await supervisor.close()


# --- A process's end and its record --------------------------------------------------------------


async def test_a_process_ends_with_its_code_its_output_and_an_exit_file(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, sh("echo out; echo err >&2; exit 3"))
    before = time.time()
    ended = await supervisor.run(spec)

    assert (ended.exit_code, ended.ended_by) == (3, "exit")
    assert spec.stdout.read_text() == "out\n"
    assert spec.stderr.read_text() == "err\n"
    assert (ended.stdout_chars, ended.stderr_chars) == (4, 4)
    assert before - 1 <= ended.started_at <= time.time() + 1
    assert 0 < ended.duration_seconds < 60
    assert read_exit(spec.exit_file) == ended


async def test_a_process_killed_by_a_signal_ends_with_its_negative_number(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    ended = await supervisor.run(spec_of(tmp_path, sh("kill -9 $$")))
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGKILL, "exit")


async def test_time_and_memory_of_reaped_children_are_counted(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    burn = "x = bytearray(80_000_000); t = 0\nwhile t < 3_000_000: t += 1"
    ended = await supervisor.run(spec_of(tmp_path, sh(f"python3 -Sc '{burn}'; true")))
    assert ended.exit_code == 0
    assert ended.cpu_seconds > 0.02
    assert ended.peak_memory_bytes > 80_000_000


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"exit_code": 0}', b"[]", b"\xff"])
async def test_an_exit_file_that_is_absent_or_torn_reads_as_none(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "exit"
    if content is not None:
        path.write_bytes(content)
    assert read_exit(path) is None


async def test_an_exit_file_with_fields_of_a_later_version_still_reads(tmp_path: Path) -> None:
    ended = ProcessExit(0, "exit", 1.0, 2.0, 3, 4, 5.0, 6)
    path = tmp_path / "exit"
    path.write_text(json.dumps({**ended.__dict__, "later": 1}))
    assert read_exit(path) == ended


async def test_an_exit_file_is_never_seen_torn(supervisor: Supervisor, tmp_path: Path) -> None:
    specs = [spec_of(tmp_path, ["true"]) for _ in range(40)]
    running = asyncio.gather(*map(supervisor.run, specs))
    seen = 0
    while not running.done():
        for spec in specs:
            with contextlib.suppress(FileNotFoundError):
                json.loads(spec.exit_file.read_bytes())
                seen += 1
        await asyncio.sleep(0)
    assert seen
    assert all(read_exit(spec.exit_file) == ended for spec, ended in zip(specs, await running))  # noqa: B905
    assert not list(tmp_path.glob("*.tmp"))


async def test_an_end_that_cannot_be_recorded_is_said(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, [*sh('rmdir "$1"'), "sh", str(tmp_path / "records")])
    (tmp_path / "records").mkdir()
    spec = dataclasses.replace(spec, exit_file=tmp_path / "records" / "exit")
    with pytest.raises(SupervisorLost, match=r"records/exit.*No such file"):
        await supervisor.run(spec)


# --- What a process sees -------------------------------------------------------------------------


async def test_a_process_has_three_descriptors_and_no_terminal(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    # The shell's own glob opens one more descriptor, for the directory itself.
    script = (
        "for f in /proc/$$/fd/*; do test -e $f && echo ${f##*/}; done; (: </dev/tty) || echo no"
    )
    spec = spec_of(tmp_path, sh(script))
    await supervisor.run(spec)
    assert spec.stdout.read_text().split() == ["0", "1", "2", "no"]


async def test_a_process_leads_a_session_of_its_own(supervisor: Supervisor, tmp_path: Path) -> None:
    # Own pid, process group and session: the first, fifth and sixth field.
    spec = spec_of(tmp_path, ["cut", "-d ", "-f1,5,6", "/proc/self/stat"])
    await supervisor.run(spec)
    assert len(set(spec.stdout.read_text().split())) == 1


async def test_signals_are_as_in_a_fresh_shell(supervisor: Supervisor, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    await supervisor.run(spec)
    masks = {int(line.split()[1], 16) for line in spec.stdout.read_text().splitlines()}
    # Signals 32 and 33 are the C library's own: it lets nobody set them, and they are inherited.
    assert {mask & ~(0b11 << 31) for mask in masks} == {0}


async def test_the_environment_is_the_given_one_and_the_marker(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, ["env", "-0"], env={"EMPTY": "", "LINES": "a\nb", "BYTE": "\udcff"})
    await supervisor.run(spec)
    got = spec.stdout.read_text().rstrip("\0").split("\0")
    assert sorted(got) == sorted(
        [
            f"PATH={os.environ['PATH']}",
            "EMPTY=",
            "LINES=a\nb",
            "BYTE=\N{REPLACEMENT CHARACTER}",
            f"{marker.MARKER}={spec.key}",
        ]
    )


async def test_an_environment_of_a_megabyte_arrives_whole(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    env = {f"V{n}": f"{n:05}" * 2000 for n in range(100)}
    spec = spec_of(tmp_path, sh('echo "${#V0} $V99" | tail -c 6; env | wc -c'), env=env)
    ended = await supervisor.run(spec)
    assert ended.exit_code == 0
    last, size = spec.stdout.read_text().split()
    assert last == "00099"
    assert int(size) > 1_000_000


async def test_neither_environment_nor_secrets_stand_in_any_command_line(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    secret, tag = f"s{new_tag()}", new_tag()
    spec = spec_of(tmp_path, [SLEEP, tag], env={"TOKEN": secret}, secrets=(secret,))
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag), "the process")
    assert living(secret) == []
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "argv",
    [["cat"], ["python3"], sh("read x"), sh("read x < /dev/tty")],
    ids=["cat", "python3", "read", "tty"],
)
async def test_c31_stdin_is_at_its_end_at_once(
    supervisor: Supervisor, tmp_path: Path, argv: list[str]
) -> None:
    ended = await supervisor.run(spec_of(tmp_path, argv, timeout_seconds=30))
    assert ended.ended_by == "exit"


async def test_stdin_is_fed_and_closed(supervisor: Supervisor, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    spec = spec_of(tmp_path, ["wc", "-c"], stdin=data)
    await supervisor.run(spec)
    assert int(spec.stdout.read_text()) == len(data)

    spec = spec_of(tmp_path, ["cat"], stdin=b"")
    assert (await supervisor.run(spec)).stdout_chars == 0


async def test_a_process_that_does_not_want_its_stdin_ends_all_the_same(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    ended = await supervisor.run(spec_of(tmp_path, ["true"], stdin=b"x" * 2_000_000))
    assert (ended.exit_code, ended.ended_by) == (0, "exit")


# --- Output --------------------------------------------------------------------------------------


async def test_c17_fifty_megabytes_of_output_are_read_and_capped(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = "head -c 50000000 /dev/zero | tr '\\0' x; echo end >&2"
    spec = spec_of(tmp_path, sh(script), timeout_seconds=60)
    ended = await supervisor.run(spec)
    assert (ended.exit_code, ended.stdout_chars) == (0, 50_000_000)
    assert spec.stdout.read_text() == "x" * 1_000_000 + "\n...(truncated at 1000000 characters)"
    assert spec.stderr.read_text() == "end\n"


async def test_bytes_that_are_not_utf8_are_replaced(supervisor: Supervisor, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, sh(r"printf 'a\377b\303\n\342\202'"))
    ended = await supervisor.run(spec)
    assert spec.stdout.read_text() == "a\ufffdb\ufffd\n\ufffd"
    assert ended.stdout_chars == 6


async def test_a_character_split_over_two_reads_is_whole(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec, resume = in_two_writes(tmp_path, r"printf 'gr\303'", r"printf '\274n'")
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text() == "gr", "first half")
    resume()
    await task
    assert spec.stdout.read_text() == "grün"


async def test_a_secret_split_over_two_writes_is_masked(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec, resume = in_two_writes(tmp_path, "printf 'key: hunt'", "printf 'er2; hunt'")
    spec = dataclasses.replace(spec, secrets=("hunter2", ""))
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text() == "key: ", "first half")
    resume()
    ended = await task
    assert spec.stdout.read_text() == "key: ***; hunt"
    assert ended.stdout_chars == len("key: ***; hunt")


async def test_output_can_be_read_while_the_process_runs(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec, resume = in_two_writes(tmp_path, "echo one", "echo two")
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text() == "one\n", "a line")
    resume()
    await task
    assert spec.stdout.read_text() == "one\ntwo\n"


# --- Descendants ---------------------------------------------------------------------------------


async def test_nothing_outlives_the_main_process(supervisor: Supervisor, tmp_path: Path) -> None:
    tag = new_tag()
    go = tmp_path / "go"
    script = f"({stubborn_tree(tag)}) & until test -e {go}; do sleep 0.02; done; exit 7"
    task = asyncio.create_task(supervisor.run(spec_of(tmp_path, sh(script))))
    await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
    go.touch()
    ended = await task
    assert (ended.exit_code, ended.ended_by) == (7, "exit")
    assert living(tag) == []


async def test_a_background_child_that_holds_the_pipe_does_not_delay_the_end(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, sh(f"setsid {SLEEP} {tag} & echo done"), timeout_seconds=60)
    ended = await supervisor.run(spec)
    assert (ended.exit_code, ended.ended_by) == (0, "exit")
    assert spec.stdout.read_text() == "done\n"
    assert living(tag) == []


async def test_a_tree_that_keeps_forking_is_ended(supervisor: Supervisor, tmp_path: Path) -> None:
    tag = new_tag()
    # Bounded in time, so that a defect here does not keep the machine busy for ever.
    hydra = f"""import os, time  # {tag}
end = time.time() + 30
for _ in range(4):
    if os.fork() == 0:
        while time.time() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
            time.sleep(0.001)
time.sleep(0.2)"""
    ended = await supervisor.run(spec_of(tmp_path, ["python3", "-Sc", hydra]))
    assert ended.ended_by == "exit"
    assert living(tag) == []


# --- Limits and cancellation ---------------------------------------------------------------------


async def test_a_cancelled_tree_is_gone_when_the_task_is(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, sh(stubborn_tree(tag)), kill_grace_seconds=0.3)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert living(tag) == []
    ended = read_exit(spec.exit_file)
    assert ended is not None
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGKILL, "cancelled")


async def test_a_second_cancellation_does_not_leave_the_tree_behind(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, sh(stubborn_tree(tag)), kill_grace_seconds=0.5)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.02)
    assert task.cancelled()
    assert living(tag) == []


async def test_a_task_cancelled_before_its_process_started_leaves_nothing(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    for turns in range(12):
        tag = new_tag()
        task = asyncio.create_task(supervisor.run(spec_of(tmp_path, [SLEEP, tag])))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert living(tag) == []


async def test_a_cancelled_task_is_cancelled_even_if_its_process_never_started(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, ["no-such-program"])
    task = asyncio.create_task(supervisor.run(spec))
    os.kill(supervisor.pid, signal.SIGSTOP)  # so that the request is on its way, unanswered
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    os.kill(supervisor.pid, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_polite_process_has_its_grace_even_below_a_shell(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    polite = "trap 'sleep 0.5; echo saved; exit' TERM; echo ready; while :; do sleep 0.05; done"
    spec = spec_of(tmp_path, sh(f'sh -c "{polite}"; true'), kill_grace_seconds=20)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text(), "the trap")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spec.stdout.read_text() == "ready\nsaved\n"


async def test_a_stopped_process_hears_that_it_should_end(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, sh("echo ready; kill -STOP $$"), kill_grace_seconds=60)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text(), "the process")
    supervisor.end(spec.key)
    assert (await task).ended_by == "cancelled"


@pytest.mark.parametrize(
    "script",
    [
        "{sleep} {tag} & echo ready; wait",
        'exec python3 -Sc \'print("ready", flush=True)  # {tag}\nwhile 1:\n'
        " try:\n  while 1: pass\n except KeyboardInterrupt: pass'",
        'trap "" INT; echo ready; {sleep} {tag}',
    ],
    ids=["background", "swallowed", "trapped"],
)
async def test_c25_an_interrupted_process_is_gone_after_its_grace(
    supervisor: Supervisor, tmp_path: Path, script: str
) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, sh(script.format(sleep=SLEEP, tag=tag)), kill_grace_seconds=0.3)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text(), "output")
    supervisor.end(spec.key, signal.SIGINT)
    supervisor.end(spec.key, signal.SIGINT)
    assert (await task).ended_by == "cancelled"
    assert living(tag) == []
    assert spec.stdout.read_text() == "ready\n"
    supervisor.end(spec.key, signal.SIGINT)  # late, and harmless


async def test_c25_a_process_that_saves_on_interrupt_has_time_to(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = (
        "import sys, time\ntry:\n print('ready', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt: time.sleep(0.5); print('saved'); sys.exit(4)"
    )
    spec = spec_of(tmp_path, ["python3", "-Sc", script], kill_grace_seconds=30)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: spec.stdout.exists() and spec.stdout.read_text(), "output")
    supervisor.end(spec.key, signal.SIGINT)
    ended = await task
    assert (ended.exit_code, ended.ended_by) == (4, "cancelled")
    assert spec.stdout.read_text() == "ready\nsaved\n"


async def test_a_timeout_ends_the_whole_tree(supervisor: Supervisor, tmp_path: Path) -> None:
    tag = new_tag()
    # Long enough for the shell to set its trap.
    spec = spec_of(tmp_path, sh(stubborn_tree(tag)), timeout_seconds=2, kill_grace_seconds=0.2)
    ended = await supervisor.run(spec)
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGKILL, "timeout")
    assert ended.duration_seconds >= 2
    assert living(tag) == []
    assert read_exit(spec.exit_file) == ended


async def test_a_silent_process_ends_by_its_idle_timeout(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, sh("echo a; exec sleep 600"), idle_timeout_seconds=0.3)
    ended = await supervisor.run(spec)
    assert (ended.exit_code, ended.ended_by) == (-signal.SIGTERM, "idle_timeout")


async def test_output_keeps_a_process_from_being_idle(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    script = "for i in $(seq 12); do sleep 0.3; echo $i; done"
    ended = await supervisor.run(spec_of(tmp_path, sh(script), idle_timeout_seconds=3))
    assert ended.ended_by == "exit"


async def test_a_touch_from_any_thread_keeps_a_process_from_being_idle(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, sh("sleep 4"), idle_timeout_seconds=3)
    done = threading.Event()

    def touch() -> None:
        while not done.wait(0.01):
            supervisor.touch(spec.key)

    toucher = threading.Thread(target=touch)
    toucher.start()
    try:
        assert (await supervisor.run(spec)).ended_by == "exit"
    finally:
        done.set()
        toucher.join()
    supervisor.touch("nobody")


async def test_a_touch_that_meets_the_end_of_a_process_loses_nothing(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    done = threading.Event()
    keys = [f"touched-{number}" for number in range(60)]

    def touch() -> None:
        while not done.wait(0.0005):
            for key in keys:
                supervisor.touch(key)

    toucher = threading.Thread(target=touch)
    toucher.start()
    try:
        for key in keys:
            (folder := tmp_path / key).mkdir()
            # A limit so small that a touch is sent on every 3 ms.
            spec = dataclasses.replace(
                spec_of(folder, sh("sleep 0.02")), key=key, idle_timeout_seconds=0.3
            )
            async with asyncio.timeout(20):
                assert (await supervisor.run(spec)).ended_by in ("exit", "idle_timeout")
    finally:
        done.set()
        toucher.join()


# --- Starting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["no-such-program"], r"'no-such-program': no such program in the"),
        (["./missing"], r"'./missing': no such program \(looked from"),
        (["/etc/passwd"], r"'/etc/passwd': Permission denied"),
        (["/"], r"'/': Permission denied"),
        (["./orphan"], r"orphan names an interpreter"),
        (["./bare"], r"not a program of this machine"),
        (["true", "x" * 200_000], r"'true': argument list or environment too long"),
        (["true", *["x" * 1000] * 3000], r"'true': argument list or environment too long"),
        (["tr\0ue"], r"'tr\\x00ue': argument 0 holds a NUL"),
        (["true", "a\0b"], r"'true': argument 1 holds a NUL"),
        (["true", "\ud800"], r"'true': argument 1 holds half a surrogate pair"),
        ([], "the command is empty"),
        ([""], "the command is empty"),
    ],
    ids=range(13),
)
async def test_a_program_that_cannot_start_is_named_with_the_reason(
    supervisor: Supervisor, tmp_path: Path, argv: list[str], reason: str
) -> None:
    for name, text in (("orphan", "#!/no/such/interpreter\n"), ("bare", "words\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    spec = spec_of(tmp_path, argv)
    with pytest.raises(SpawnFailed, match=reason):
        await supervisor.run(spec)
    assert not spec.exit_file.exists()


async def test_a_working_directory_that_cannot_be_entered_is_named(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name, reason in (("gone", "No such file"), ("file", "Not a directory")):
        spec = dataclasses.replace(spec_of(tmp_path, ["true"]), cwd=tmp_path / name)
        with pytest.raises(SpawnFailed, match=rf"working directory '.*/{name}': {reason}"):
            await supervisor.run(spec)


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "a\0b"}, {"A\0": "x"}])
async def test_an_environment_that_no_process_can_have_is_refused(
    supervisor: Supervisor, tmp_path: Path, env: dict[str, str]
) -> None:
    with pytest.raises(SpawnFailed, match="cannot start 'true'"):
        await supervisor.run(spec_of(tmp_path, ["true"], env=env))


async def test_output_that_cannot_be_kept_is_said_before_the_start(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    spec = dataclasses.replace(spec_of(tmp_path, ["true"]), stdout=tmp_path / "gone" / "out")
    with pytest.raises(SpawnFailed, match=r"'true': .*gone/out: No such file"):
        await supervisor.run(spec)


async def test_one_key_cannot_run_twice_at_once(supervisor: Supervisor, tmp_path: Path) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, [SLEEP, tag])
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag), "the process")
    with pytest.raises(SpawnFailed, match="running already"):
        await supervisor.run(spec)
    assert sleepers(tag) == 1
    supervisor.end(spec.key)
    assert (await task).ended_by == "cancelled"


async def test_a_running_process_is_known_by_its_pid(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    tag = new_tag()
    spec = spec_of(tmp_path, [SLEEP, tag])
    assert pid_of(supervisor, spec.key) is None
    task = asyncio.create_task(supervisor.run(spec))
    pid = await started(supervisor, spec.key)
    assert living(tag) == [pid]
    supervisor.end(spec.key)
    await task
    assert pid_of(supervisor, spec.key) is None


# --- Many, and the end ---------------------------------------------------------------------------


async def test_hundreds_run_at_once_and_none_becomes_a_zombie(tmp_path: Path) -> None:
    earlier = zombies_of(os.getpid())  # other tests' servers, for example
    supervisor = await Supervisor.start()
    specs = [spec_of(tmp_path, sh(f"echo {n}; exec sleep 0.5")) for n in range(200)]
    ends = await asyncio.gather(*map(supervisor.run, specs))
    assert {ended.exit_code for ended in ends} == {0}
    assert [spec.stdout.read_text() for spec in specs] == [f"{n}\n" for n in range(200)]
    assert set(zombies_of(os.getpid())) <= set(earlier)
    await supervisor.close()


async def test_closing_ends_everything_and_can_be_repeated(tmp_path: Path) -> None:
    supervisor = await Supervisor.start()
    tag = new_tag()
    spec = spec_of(tmp_path, sh(stubborn_tree(tag)), kill_grace_seconds=0.2)
    task = asyncio.create_task(supervisor.run(spec))
    await until(lambda: sleepers(tag) == STUBBORN_SLEEPERS, "the whole tree")
    program = supervisor.pid
    await supervisor.close()
    assert living(tag) == []
    assert (await task).ended_by == "cancelled"
    assert not Path(f"/proc/{program}").exists()
    await supervisor.close()
    with pytest.raises(SupervisorLost, match="the worker is ending"):
        await supervisor.run(spec)


async def test_closing_ends_a_process_that_is_just_being_started(tmp_path: Path) -> None:
    tag = new_tag()
    for turns in range(6):
        supervisor = await Supervisor.start()
        task = asyncio.create_task(supervisor.run(spec_of(tmp_path, [SLEEP, tag])))
        for _ in range(turns):
            await asyncio.sleep(0)
        await supervisor.close()
        with contextlib.suppress(SupervisorLost):  # closed before the task's first step
            assert (await task).ended_by == "cancelled"
        assert living(tag) == []


# --- The marker ----------------------------------------------------------------------------------


async def test_a_sweep_kills_exactly_those_who_carry_the_marker(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    run = f"run-{new_tag()}"
    tags = {attempt: new_tag() for attempt in ("1", "10", "2")}
    tasks = {
        attempt: asyncio.create_task(
            supervisor.run(spec_of(tmp_path, [SLEEP, tag], key=f"{run}/step.{attempt}"))
        )
        for attempt, tag in tags.items()
    }
    await until(lambda: all(map(sleepers, tags.values())), "three processes")
    assert len(marker.sweep(f"{run}/step.1")) == 1
    assert (await tasks["1"]).exit_code == -signal.SIGKILL
    assert [sleepers(tags[attempt]) for attempt in ("1", "10", "2")] == [0, 1, 1]
    assert len(marker.sweep(f"{run}/", prefix=True)) == 2
    await asyncio.gather(tasks["10"], tasks["2"])
    assert marker.sweep(f"{run}/", prefix=True) == []


def test_an_empty_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="every process"):
        marker.sweep("", prefix=True)


# --- Helpers -------------------------------------------------------------------------------------


def in_two_writes(folder: Path, first: str, second: str) -> tuple[ProcessSpec, Callable[[], None]]:
    """A process that writes twice, and what lets it go on after the first time."""
    go = folder / f"go-{new_tag()}"
    script = f"{first}; until test -e {go}; do sleep 0.02; done; {second}"
    return spec_of(folder, sh(script)), go.touch
