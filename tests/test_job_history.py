"""A job that is read from its history is the job that its workflow has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.testing import WorkflowEnvironment

from perdure.core.job_state import JobLife
from perdure.job_history import JobHistory
from perdure.job_messages import JobEnd, PeekRequest

SAVED = sorted((Path(__file__).parent / "histories" / "job").glob("*.json"))


async def rebuilt(temporal: WorkflowEnvironment, path: Path) -> tuple[JobLife, JobEnd | None]:
    """The job at its end, and the end that was known before its workflow closed."""
    saved = WorkflowHistory.from_json("job/saved", path.read_text("utf-8"))
    history = JobHistory(temporal.client, "job/saved")
    *events, close = saved.events
    for event in events:
        await history.take(event)
    known = history.life.end
    await history.take(close)
    return history.life, known


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
async def test_the_end_that_the_history_comes_to_is_that_of_the_workflow(
    temporal: WorkflowEnvironment, path: Path
) -> None:
    life, known = await rebuilt(temporal, path)
    assert life.end
    assert known
    # Of a kill, how late it was is told by the workflow alone; and its clock is its own.
    told = replace(known, error=life.end.error, ended_at=life.end.ended_at)
    told = replace(told, started_at=life.end.started_at)
    assert told == life.end
    assert (known.error is None) == (life.end.error is None)


async def test_all_output_of_a_job_is_in_its_history(temporal: WorkflowEnvironment) -> None:
    life, _ = await rebuilt(temporal, SAVED[0].with_name("done_in_pieces.json"))
    page = life.page(PeekRequest())
    assert page.stdout
    assert page.next_offset == page.committed == len(page.stdout)


async def test_a_second_start_goes_on_behind_a_line_that_says_so(
    temporal: WorkflowEnvironment,
) -> None:
    life, _ = await rebuilt(temporal, SAVED[0].with_name("started_again.json"))
    page = life.page(PeekRequest())
    assert page.attempts > 1
    assert "[perdure: the worker was lost; started again]\n" in page.stdout
