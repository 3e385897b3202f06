"""Where references to secrets lead, and the file of those that steps wrote."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from activities.secrets import MissingSecret, SecretFile, WorkerEnvironment, resolve
from perdure.errors import PerdureError


def test_references_lead_to_the_env_file_first_then_to_the_worker_s_environment() -> None:
    environment = WorkerEnvironment({"A": "worker", "B": "worker"}, env_file={"A": "file"})
    assert resolve({"from_env": "A"}, environment) == "file"
    assert resolve({"from_env": "B"}, environment) == "worker"


def test_files_are_read_from_the_task_s_folder_without_their_last_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"one\ntwo\r\n")
    nothing = WorkerEnvironment({})
    assert resolve({"from_file": "key"}, nothing, tmp_path) == "one\ntwo"
    assert resolve({"from_file": str(tmp_path / "key")}, nothing) == "one\ntwo"


def test_a_file_that_gives_no_secret_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.truncate(os.open(tmp_path / "huge", os.O_CREAT | os.O_WRONLY), 1 << 30)
    reasons = {"none": "No such file", "binary": "not UTF-8", "folder": "directory",
               "huge": "larger than", "a\0b": "null"}  # fmt: skip
    for name, reason in reasons.items():
        with pytest.raises(MissingSecret, match="from_file") as caught:
            resolve({"from_file": name}, WorkerEnvironment({}), tmp_path)
        assert reason in str(caught.value)
    assert resolve({"from_file": "pipe"}, WorkerEnvironment({}), tmp_path) == ""


def test_the_secret_file_keeps_what_was_written_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    secrets = SecretFile(tmp_path / "run" / "secrets.json")
    assert secrets.load() == {}
    secrets.merge({})
    assert not (tmp_path / "run").exists()
    secrets.merge({"a": "1", "b": {"t": ["x"]}})
    secrets.merge({"a": "2"})
    assert SecretFile(tmp_path / "run" / "secrets.json").load() == {"a": "2", "b": {"t": ["x"]}}
    assert (tmp_path / "run" / "secrets.json").stat().st_mode & 0o777 == 0o600


async def test_steps_that_write_secrets_at_once_lose_none(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for i in range(10):
            SecretFile(tmp_path / "s.json").merge({f"{number}.{i}": i})

    await asyncio.gather(*(asyncio.to_thread(write, number) for number in range(4)))
    assert len(SecretFile(tmp_path / "s.json").load()) == 40


def test_a_broken_secret_file_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(PerdureError, match="--fresh"):
        SecretFile(tmp_path / "s.json").load()
