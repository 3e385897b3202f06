"""What is known to go wrong with background jobs, through their workflow and a real worker."""

from __future__ import annotations

import os
import pty
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.testing import WorkflowEnvironment

from activities.job_start import JobStart
from tests.activities.jobs_kit import JobsKit, environment, killed_worker


@pytest.fixture
async def kit(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[JobsKit]:
    made = JobsKit(temporal.client, tmp_path, environment())
    async with made.workflows():
        yield made


@pytest.fixture
async def served(kit: JobsKit) -> AsyncIterator[JobsKit]:
    async with kit.worker():
        yield kit


async def test_c29_a_bar_leaves_its_last_state_and_costs_little(served: JobsKit) -> None:
    """C29: 20,000 redraws for two seconds, among lines that end in CRLF, and colours."""
    code = """
import sys, time
sys.stdout.write("one\\r\\ntwo\\r\\n")
for n in range(20_000):
    sys.stderr.write(f"\\r\\x1b[32m{n / 199.99:3.0f}%\\x1b[0m [{'#' * (n // 400)}]")
    if n % 100 == 0:
        time.sleep(0.01)
print("\\ndone", file=sys.stderr)
"""
    job = await served.launch(code)
    assert (await job.end()).status == "done"
    bar = await job.all_of("stderr")
    assert "\x1b[32m100%\x1b[0m" in bar
    assert bar.endswith("\ndone\n")
    assert len(bar) < 2_000
    assert (await job.all_of()).splitlines() == ["one", "two"]
    history = await job.handle.fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 100_000


@pytest.mark.parametrize("what", ["terminal", "pipe"])
async def test_c31_what_is_typed_to_the_worker_is_not_a_jobs(kit: JobsKit, what: str) -> None:
    """C31."""
    theirs, ours = pty.openpty()[::-1] if what == "terminal" else os.pipe()
    os.write(ours, b"typed\n")
    try:
        with killed_worker(kit, stdin=theirs):
            script = "cat; read x && exit 4; (read x < /dev/tty) 2>/dev/null && exit 5; echo over"
            job = await kit.launch(argv=["/bin/sh", "-c", script])
            end = await job.end()
        assert (end.status, end.exit_code) == ("done", 0)
        assert (await job.page()).stdout == "over\n"
        if what == "pipe":  # with its session, a terminal loses what was typed there
            assert os.read(theirs, 100) == b"typed\n"
    finally:
        os.close(theirs)
        os.close(ours)


async def test_bd5_how_a_job_ended_is_told_apart(served: JobsKit) -> None:
    """BD5: interrupted, killed and crashed, each with its own error."""
    forever = "import time\nprint('on', flush=True)\ntime.sleep(600)"
    stopped, killed, crashed = [await served.launch(forever) for _ in range(3)]
    for job in (stopped, killed, crashed):
        await job.prints("on\n")
    await stopped.interrupt()
    await killed.interrupt(kill_after=0)
    beat = await crashed.beat()
    assert beat
    assert beat.pid
    os.kill(beat.pid, 9)
    ends = [await job.end() for job in (stopped, killed, crashed)]
    assert [(end.status, end.error) for end in ends] == [
        ("interrupted", "Interrupted"), ("killed", "killed"), ("failed", "ended by signal 9"),
    ]  # fmt: skip


async def test_b8_what_cannot_be_cleaned_up_is_a_fixed_text(
    served: JobsKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8."""

    async def fails(start: JobStart) -> bool:
        return False

    monkeypatch.setattr(JobStart, "clear", fails)
    end = await (await served.launch("print('well')")).end()
    assert (end.status, end.error) == ("failed", "background execution cleanup failed")
