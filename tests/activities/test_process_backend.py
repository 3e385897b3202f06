"""Environments that are processes: real servers, real deaths."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from activities.backend import InnerCommand
from perdure.core.environments import Ready
from perdure.errors import PerdureError
from tests.activities.living import is_running, living, new_tag, sleepers, stubborn_tree
from tests.activities.process_kit import App, Pool, serve
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    made = Pool(tmp_path)
    yield made
    made.end()


@contextlib.contextmanager
def worker(app: App, what: str) -> Iterator[subprocess.Popen[str]]:
    """Another worker, in a process of its own, that does something to an instance."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.activities.process_worker", what, str(app.folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    with program:
        program.stdin.write(json.dumps(dataclasses.asdict(app.call)))
        program.stdin.close()
        try:
            yield program
        finally:
            program.kill()


async def said(program: subprocess.Popen[str], word: str) -> str:
    """The line of a worker's output that begins with a word."""
    assert program.stdout is not None
    while line := await asyncio.to_thread(program.stdout.readline):
        if line.startswith(word):
            return line
    raise AssertionError(f"it never said {word}")


@contextlib.asynccontextmanager
async def watched(app: App) -> AsyncIterator[asyncio.Task[object]]:
    watching: asyncio.Task[object] = asyncio.create_task(app.watch())
    yield watching
    watching.cancel()
    await asyncio.wait([watching])


# --- Up and down ------------------------------------------------------------------------------


async def test_a_server_is_up_when_it_answers_and_gone_when_it_is_stopped(pool: Pool) -> None:
    app = pool.app(serve("0.3"))
    assert (await app.start()).ok
    assert (await app.check()).ok
    assert await app.get("") == "ok"
    pid = await app.pid()
    assert (await app.stop()).ok
    assert not is_running(pid)
    assert app.processes() == []
    assert not (await app.check()).ok
    assert (await app.stop()).ok, "what is not there is stopped"


async def test_a_server_sees_its_ports_its_project_its_own_variables_and_little_else(
    pool: Pool,
) -> None:
    pool.variables |= {"HOME": "/nowhere", "TOKEN": "s3cr3t-value", "OTHER": "hidden",
                       "PASSED": "on"}  # fmt: skip
    (pool.path / "below").mkdir()
    env = {"PLAIN": "a $b", "SECRET": {"from_env": "TOKEN"}}
    app = pool.app(env=env, cwd="below")
    app.backend = pool.backend(pass_env=("PASSED", "MISSING"))
    assert (await app.start()).ok
    seen = await app.environ()
    assert seen.pop("cwd") == str(pool.path / "below")
    assert seen.pop("PERDURE_MARKER").startswith("instance/")
    seen.pop("LC_CTYPE", None)  # the interpreter's own
    assert seen == {
        "PATH": os.environ["PATH"],
        "HOME": "/nowhere",
        "PASSED": "on",
        "PLAIN": "a $b",
        "SECRET": "s3cr3t-value",
        "APP_PORT": str(app.port),
        "MAIL_PROJECT_NAME": app.call.project,
    }


async def test_a_secret_stands_neither_in_a_file_nor_on_a_command_line(pool: Pool) -> None:
    pool.variables["TOKEN"] = "s3cr3t-value"
    app = pool.app(f"echo got $T; exec {' '.join(serve())}", env={"T": {"from_env": "TOKEN"}})
    assert (await app.start()).ok
    await app.get("say/s3cr3t-value")
    await app.get("die/3")
    result = await app.watch()
    assert "got ***" in result.log
    assert result.log[-1] == "***"
    for file in app.folder.iterdir():
        assert b"s3cr3t-value" not in file.read_bytes(), file
    assert living("s3cr3t-value") == []


async def test_a_command_as_text_is_the_shells_and_a_port_can_be_all_that_shows_it_is_ready(
    pool: Pool,
) -> None:
    tcp = Ready(tcp="APP_PORT", timeout_seconds=30)
    app = pool.app(f'exec {sys.executable} -IS {serve()[2]} "$APP_PORT" 0.2', ready=tcp)
    assert (await app.start()).ok
    assert await app.get("") == "ok"


async def test_without_a_way_to_show_it_a_server_is_ready_when_it_lives_on(pool: Pool) -> None:
    good, bad = pool.app("sleep 600", ready=None), pool.app("exit 4", ready=None)
    assert (await good.start()).ok
    result = await bad.start()
    assert not result.ok
    assert "status 4" in result.reason


async def test_a_stop_ends_the_whole_tree_however_it_hides(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.process.KILL_GRACE_SECONDS", 0.3)
    tag = new_tag()
    app = pool.app(stubborn_tree(tag), ready=None)
    assert (await app.start()).ok
    await until(lambda: sleepers(tag) >= 6, "the whole tree")
    assert (await app.stop()).ok
    assert sleepers(tag) == 0
    assert app.processes() == []


async def test_a_server_is_asked_to_end_before_it_is_killed(pool: Pool) -> None:
    bye = pool.path / "bye"
    app = pool.app(f"trap 'echo bye > {bye}; exit 0' TERM; while :; do sleep 0.05; done", None)
    assert (await app.start()).ok
    assert (await app.stop()).ok
    assert bye.read_text() == "bye\n"


# --- What goes wrong --------------------------------------------------------------------------


async def test_one_that_ends_before_it_is_ready_is_told_with_its_last_lines(pool: Pool) -> None:
    app = pool.app("echo no database; echo at all >&2; exit 3")
    result = await app.start()
    assert not result.ok
    assert result.reason.startswith("environment mail: the process ended with status 3")
    assert sorted(result.log) == ["at all", "no database"]
    assert not result.is_final
    assert app.processes() == []


async def test_a_program_that_is_not_there_is_told_at_once(pool: Pool) -> None:
    result = await pool.app(("no-such-program", "x")).start()
    assert result.is_final
    assert "environment mail: cannot start 'no-such-program': no such program" in result.reason
    result = await pool.app(cwd="nowhere").start()
    assert result.is_final
    assert "nowhere" in result.reason


async def test_a_missing_secret_is_told_by_name(pool: Pool) -> None:
    result = await pool.app(env={"T": {"from_env": "TOKEN"}}).start()
    assert result.is_final
    assert "its variable T: {from_env: TOKEN}" in result.reason


async def test_one_that_does_not_get_ready_in_time_is_ended(pool: Pool) -> None:
    never = Ready(http="http://127.0.0.1:${APP_PORT}/status/503", timeout_seconds=0.8)
    app = pool.app(ready=never)
    result = await app.start()
    assert not result.ok
    assert "not ready within 0.8 s" in result.reason
    assert "answers 503" in result.reason
    assert result.log == ["listening"]
    assert app.processes() == []


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        (Ready(http="http://127.0.0.1:${OTHER}/"), "${OTHER} is none of its ports: APP_PORT"),
        (Ready(tcp="OTHER"), "OTHER is none of its ports"),
        (Ready(http="nonsense"), "ready.http: nonsense is no address"),
        (Ready(http="http://[::1"), "is no address"),
        (Ready(http="http://127.0.0.1:99999999/"), "is no address"),
    ],
)
async def test_a_wrong_way_to_look_is_told(pool: Pool, ready: Ready, words: str) -> None:
    result = await pool.app(ready=ready).start()
    assert result.is_final
    assert words in result.reason


async def test_a_port_that_somebody_took_first_is_named(pool: Pool) -> None:
    app = pool.app(ready=Ready(http="http://127.0.0.1:${APP_PORT}/", timeout_seconds=5))
    with socket.create_server(("127.0.0.1", app.port)):
        result = await app.start()
    assert result.taken_ports == [app.port]
    assert result.at_start
    assert app.processes() == []


@LINUX
async def test_the_server_of_another_pool_that_answers_is_not_taken_for_the_own_one(
    pool: Pool, tmp_path: Path
) -> None:
    """PD13: two pools of one machine may choose one port; the slower server finds it taken."""
    other = Pool(tmp_path / "other")
    try:
        fast = other.app()
        assert (await fast.start()).ok
        slow = pool.app(serve("30"), port=fast.port)
        result = await slow.start()
        assert result.taken_ports == [fast.port]
        assert result.at_start
        assert slow.processes() == []
        assert (await fast.check()).ok
    finally:
        other.end()


# --- While it is up ---------------------------------------------------------------------------


async def test_a_look_tells_one_that_answers_wrongly(pool: Pool) -> None:
    app = pool.app()
    assert (await app.start()).ok
    await app.get("break")
    result = await app.check()
    assert not result.ok
    assert "answers 503" in result.reason


async def test_a_watch_tells_how_a_server_died(pool: Pool) -> None:
    killed, ended = pool.app(), pool.app()
    for app in (killed, ended):
        assert (await app.start()).ok
    async with watched(killed) as first, watched(ended) as second:
        os.kill(await killed.pid(), signal.SIGKILL)
        await ended.get("die/7")
        results = await asyncio.gather(first, second)
    assert [r.ok for r in results] == [False, False]
    assert "killed by signal 9" in results[0].reason
    assert "ended with status 7" in results[1].reason
    assert "listening" in results[1].log


async def test_a_log_does_not_grow_without_bound(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.process.LOG_LIMIT_BYTES", 100_000)
    program = "for i in range(50_000): print('line', i, flush=not i % 100)"
    app = pool.app((sys.executable, "-ISc", program), None)
    await app.start()
    result = await app.watch()
    assert result.log[-1] == "line 49999"
    sizes = [file.stat().st_size for file in app.folder.glob("process.log*")]
    assert len(sizes) == 2
    assert sum(sizes) < 400_000, "and one read of 64 KiB may go over each limit"


# --- Deaths of others -------------------------------------------------------------------------


async def test_a_server_outlives_its_worker_and_the_next_one_finds_it(pool: Pool) -> None:
    """PD25."""
    app = pool.app()
    with worker(app, "start") as first:
        assert json.loads(await said(first, "{"))["ok"]
        pid = await app.pid()
        first.kill()
    assert (await app.check()).ok
    assert (await app.start()).ok
    assert await app.pid() == pid
    with worker(app, "watch") as second:
        await said(second, "watch")
        second.kill()
    assert await app.pid() == pid
    assert (await app.stop()).ok
    assert not is_running(pid)


async def test_a_worker_killed_while_it_waits_leaves_one_server_to_be_found(pool: Pool) -> None:
    app = pool.app(serve("1"))
    with worker(app, "start") as first:
        await said(first, "waiting")
        first.kill()
    before = sorted(app.processes())
    assert (await app.start()).ok
    assert sorted(app.processes()) == before
    assert len(before) == 2, "the server and its keeper"


async def test_a_worker_killed_while_it_stops_leaves_nothing_for_long(pool: Pool) -> None:
    app = pool.app("trap '' TERM; while :; do sleep 0.1; done", ready=None)
    assert (await app.start()).ok
    with worker(app, "stop") as first:
        await said(first, "stop")
        first.kill()
    assert (await app.stop()).ok
    assert app.processes() == []


async def test_two_starts_at_once_share_one_server(pool: Pool) -> None:
    app = pool.app(serve("0.3"))
    results = await asyncio.gather(app.start(), app.start())
    assert [result.ok for result in results] == [True, True]
    assert len(app.processes()) == 2, "the server and its keeper"


async def test_another_start_with_other_ports_replaces_what_was_there(pool: Pool) -> None:
    app = pool.app()
    assert (await app.start()).ok
    old = await app.pid()
    other = pool.app().call.ports
    app.call = dataclasses.replace(app.call, ports=other)
    assert (await app.start()).ok
    assert not is_running(old)
    assert await app.pid() != old


async def test_a_start_that_is_cancelled_leaves_a_server_that_a_stop_finds(pool: Pool) -> None:
    app = pool.app(serve("600"))
    starting = asyncio.create_task(app.start())
    await until(lambda: len(app.processes()) == 2, "the server")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (await app.stop()).ok
    assert app.processes() == []


async def test_with_its_keeper_a_server_dies_and_what_is_left_is_found_by_its_marker(
    pool: Pool,
) -> None:
    tag = new_tag()
    app = pool.app(f"setsid sleep {tag} & exec sleep {tag}", ready=None)
    assert (await app.start()).ok
    await until(lambda: sleepers(tag) == 2, "both")
    async with watched(app) as watching:
        os.kill(app.keeper, signal.SIGKILL)
        result = await watching
    assert "killed together with its keeper" in str(result)
    assert (await app.stop()).ok
    assert sleepers(tag) == 0


async def test_one_that_no_worker_comes_back_to_ends_by_itself(pool: Pool) -> None:
    pool.orphan_after_seconds = 4.0
    alone, cared_for = pool.app(), pool.app()
    for app in (alone, cared_for):
        assert (await app.start()).ok
    async with watched(cared_for) as watching:
        await until(lambda: not alone.processes(), "the end of the orphan")
        await asyncio.sleep(pool.orphan_after_seconds)
        assert not watching.done(), watching.result()
        assert (await cared_for.check()).ok
    assert "no worker had come back" in (await alone.watch()).reason


async def test_one_whose_folder_is_removed_ends_by_itself(pool: Pool) -> None:
    pool.orphan_after_seconds = 4.0
    app = pool.app()
    assert (await app.start()).ok
    shutil.rmtree(app.folder)
    await until(lambda: not app.processes(), "its end")


# --- Sweeps -----------------------------------------------------------------------------------


async def test_a_sweep_ends_what_is_left_and_spares_the_rest_and_other_pools(
    pool: Pool, tmp_path: Path
) -> None:
    """PD25."""
    other = Pool(tmp_path / "other")
    try:
        known, left, lost, orphan = [pool.app() for _ in range(4)]
        theirs = other.app()
        for app in (known, left, lost, orphan, theirs):
            assert (await app.start()).ok
        shutil.rmtree(lost.folder)
        os.kill(orphan.keeper, signal.SIGKILL)
        keep = {known.call.number}
        removed = await pool.backend().sweep(pool.uuid, keep, pool.root)
        assert [app.processes() for app in (left, lost, orphan)] == [[], [], []]
        assert (await known.check()).ok
        assert (await theirs.check()).ok
        assert len(removed) >= 2
        assert f"instance {left.call.number}" in removed[0]
        assert await pool.backend().sweep(pool.uuid, keep, pool.root) == []
    finally:
        other.end()


# --- Commands ---------------------------------------------------------------------------------


async def test_a_command_runs_where_the_server_runs_and_with_its_variables(pool: Pool) -> None:
    pool.variables["TOKEN"] = "s3cr3t-value"
    app = pool.app(env={"T": {"from_env": "TOKEN"}})
    assert (await app.start()).ok
    command = 'echo "$APP_PORT $T"; pwd; echo oh >&2; exit 3'
    code, output = await app.backend.exec(app.call, app.folder, "any", command, 30)
    assert code == 3
    assert output == f"{app.port} ***\n{pool.path}\noh\n"


async def test_nothing_of_a_command_runs_on(pool: Pool) -> None:
    tag = new_tag()
    app = pool.app()
    assert (await app.start()).ok
    started = await app.backend.exec(
        app.call, app.folder, None, f"setsid sleep {tag} & echo done", 30
    )
    assert started == (0, "done\n")
    assert sleepers(tag) == 0
    with pytest.raises(TimeoutError):
        await app.backend.exec(app.call, app.folder, None, f"setsid sleep {tag}", 0.3)
    assert sleepers(tag) == 0
    assert (await app.check()).ok


async def test_a_step_runs_its_program_with_the_servers_variables_and_its_own(pool: Pool) -> None:
    (pool.path / "below").mkdir()
    app = pool.app(env={"X": "the server's", "Y": "kept"})
    assert (await app.start()).ok
    words = ["/bin/sh", "-c", 'echo "$APP_PORT $X $Y $Z $PERDURE_MARKER"; pwd']
    inner = InnerCommand(words, env={"X": "the step's"}, workdir="below")
    argv = await app.backend.exec_argv(app.call, app.folder, inner)
    own = {"X": "the step's", "Z": "not named", "PERDURE_MARKER": "its own"}
    ran = await asyncio.to_thread(subprocess.run, argv, env=own, capture_output=True, text=True)
    assert ran.stdout == f"{app.port} the step's kept  its own\n{pool.path / 'below'}\n"


async def test_a_command_for_a_server_that_is_gone_or_for_another_user_is_refused(
    pool: Pool,
) -> None:
    app = pool.app()
    assert (await app.start()).ok
    with pytest.raises(PerdureError, match="leave out user"):
        await app.backend.exec_argv(app.call, app.folder, InnerCommand(["x"], user="root"))
    await app.stop()
    with pytest.raises(PerdureError, match="the process is gone"):
        await app.backend.exec_argv(app.call, app.folder, InnerCommand(["x"]))
