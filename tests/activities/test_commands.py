"""Commands are ended whole, and whatever they print is drained."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from pathlib import Path

import pytest

from activities import marker
from activities.commands import run_command
from tests.waiting import until

ENVIRONMENT = {"PATH": os.environ["PATH"]}


async def test_output_beyond_a_pipes_buffer_does_not_hold_a_command_up() -> None:
    """PD19."""
    script = "head -c 3000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2; exit 3"
    done = await run_command(["sh", "-c", script], ENVIRONMENT, 30)
    assert done.code == 3
    assert len(done.out) == 3_000_000
    assert len(done.err) == 64 * 1024


async def test_a_command_at_its_limit_is_killed_with_all_that_it_started() -> None:
    """PD19: the original left it running."""
    key = f"test-commands/{uuid.uuid4()}"
    env = {**ENVIRONMENT, marker.MARKER: key}
    script = "trap '' TERM INT; sleep 333 & sleep 333"
    with pytest.raises(TimeoutError, match=r"`sh -c .*` took longer than 0\.5 s"):
        await run_command(["sh", "-c", script], env, 0.5)
    await until(lambda: not marker.find(key), "the end of all that were killed")


async def test_a_cancelled_command_is_killed_with_all_that_it_started() -> None:
    key = f"test-commands/{uuid.uuid4()}"
    env = {**ENVIRONMENT, marker.MARKER: key}
    running = asyncio.create_task(run_command(["sh", "-c", "sleep 333 & sleep 333"], env, 60))
    await until(lambda: len(marker.find(key)) >= 2, "the command and what it starts")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not marker.find(key), "the end of all that were killed")


async def test_a_grandchild_with_the_pipe_open_holds_nobody_up(tmp_path: Path) -> None:
    key = f"test-commands/{uuid.uuid4()}"
    env = {**ENVIRONMENT, marker.MARKER: key}
    began = time.monotonic()
    try:
        done = await run_command(["sh", "-c", "setsid sleep 30 & echo out"], env, 20)
        assert done.out == "out\n"
        assert time.monotonic() - began < 15
    finally:
        marker.sweep(key)


async def test_standard_input_reaches_the_command() -> None:
    done = await run_command(["cat"], ENVIRONMENT, 20, stdin=b"line\n" * 50_000)
    assert done.out == "line\n" * 50_000
