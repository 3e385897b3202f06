from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure import state as state_module
from perdure.state import FileLock, StateDir, StateError, StateLocked, start_ticks

NOBODY = 65534


@contextmanager
def another_user() -> Iterator[None]:
    """As root, be somebody who is not; root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A directory that another user can reach, though not write."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


# --- The directory ----------------------------------------------------------------------------


def test_a_prepared_directory_is_private_and_complete(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "new" / "state")

    state.prepare()
    state.prepare()

    assert state.path.stat().st_mode & 0o777 == 0o700
    assert {entry.name for entry in state.path.iterdir()} == {"blobs", "results", "runs", "users"}


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")

    with pytest.raises(StateError, match=r"not a directory.*PERDURE_STATE_DIR"):
        StateDir(tmp_path / "state").prepare()
    with pytest.raises(StateError, match=r"not a directory.*PERDURE_STATE_DIR"):
        StateDir(tmp_path / "state" / "below").prepare()


def test_a_directory_that_may_not_be_written_is_refused(open_tmp: Path) -> None:
    folder = open_tmp / "theirs"
    folder.mkdir()
    folder.chmod(0o555)

    with another_user(), pytest.raises(StateError, match="cannot be written by this user"):
        StateDir(folder / "state").prepare()


def test_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more_than_there_is = shutil.disk_usage(tmp_path).total + 1
    monkeypatch.setattr(state_module, "MIN_FREE_BYTES", more_than_there_is)

    with pytest.raises(StateError, match=r"is full .*perdure gc"):
        StateDir(tmp_path / "state").prepare()


def test_a_path_that_sqlite_cannot_take_is_refused(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d" * 100] * 5)

    with pytest.raises(StateError, match="shorter"):
        StateDir(deep).prepare()
    assert not (tmp_path / ("d" * 100)).exists()


def test_a_name_that_the_file_system_cannot_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="too long"):
        StateDir(tmp_path / ("n" * 300)).prepare()


# --- The database -----------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"this is no database at all", b"SQLite format 4\0" * 100])
def test_a_database_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    state = StateDir(tmp_path)
    state.database.write_bytes(content)

    with pytest.raises(StateError, match=r"temporal\.db is not a SQLite database.*move it away"):
        state.check_database()


def test_a_database_with_a_damaged_schema_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.database.write_bytes(b"SQLite format 3\0" + b"\xff" * 4080)

    with pytest.raises(StateError, match=r"temporal\.db is corrupt"):
        state.check_database()


def test_damage_anywhere_is_found_by_the_whole_check(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    with sqlite3.connect(state.database) as database:
        database.execute("CREATE TABLE t (x)")
        database.executemany("INSERT INTO t VALUES (?)", [("x" * 1000,)] * 200)
    database.close()
    with state.database.open("rb+") as file:
        file.seek(4096 * 5)
        file.write(b"\xff" * 4096 * 3)

    state.check_database()
    with pytest.raises(StateError, match=r"temporal\.db is corrupt"):
        state.check_whole_database()


def test_a_directory_in_the_databases_place_is_refused(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.database.mkdir()

    with pytest.raises(StateError, match="is not a file"):
        state.check_database()


def test_no_database_and_an_empty_one_are_fine(tmp_path: Path) -> None:
    state = StateDir(tmp_path)

    state.check_database()
    state.database.touch()
    state.check_database()


# --- Locks ------------------------------------------------------------------------------------


def test_a_lock_is_held_once_alone_or_often_shared(tmp_path: Path) -> None:
    first, second = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")

    assert first.take()
    assert not second.take(shared=True)
    first.drop()
    assert first.take(shared=True)
    assert second.take(shared=True)
    assert not FileLock(tmp_path / "lock").take()


def test_a_lock_lives_as_long_as_the_process_that_inherited_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.take()
    child = subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()])
    try:
        lock.drop()
        assert not lock.take()
    finally:
        child.kill()
        child.wait()
    assert lock.take()


def test_a_lock_is_gone_with_a_killed_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from perdure.state import FileLock\n"
            "lock = FileLock(Path(sys.argv[1])); print(lock.take(), flush=True); time.sleep(60)",
            str(path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout
    with holder.stdout:
        assert holder.stdout.readline() == b"True\n"
        assert not FileLock(path).take()
        holder.kill()
        holder.wait()
    assert FileLock(path).take()


async def test_waiting_for_a_lock_ends_with_its_name_and_a_remedy(tmp_path: Path) -> None:
    held = FileLock(tmp_path / "lock")
    assert held.take()

    with pytest.raises(StateLocked, match=r"lock for 0 s.*fuser"):
        async with FileLock(tmp_path / "lock").held(within_seconds=0.05):
            pass


async def test_waiters_get_the_lock_one_after_the_other(tmp_path: Path) -> None:
    inside = 0
    most = 0

    async def use() -> None:
        nonlocal inside, most
        async with FileLock(tmp_path / "lock").held(within_seconds=30):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(use() for _ in range(8)))
    assert most == 1


def test_a_lock_file_of_another_user_is_refused_with_its_owner(open_tmp: Path) -> None:
    path = open_tmp / "lock"
    path.touch(mode=0o600)
    path.chmod(0o600 if os.geteuid() == 0 else 0o000)

    with another_user(), pytest.raises(StateError, match="cannot be written by this user"):
        FileLock(path).take()


def test_a_process_is_known_by_pid_and_start_time_until_it_ends() -> None:
    child = subprocess.Popen(["sleep", "60"])
    started = start_ticks(child.pid)
    assert started is not None
    assert started >= (start_ticks(os.getpid()) or 0)

    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid) is None  # a zombie has ended
    child.wait()
    assert start_ticks(child.pid) is None
