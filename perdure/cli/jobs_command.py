"""`perdure jobs`: the background jobs of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli.console import emit, emit_json, emit_table
from perdure.cli.options import JsonOption, ResultsOption, RunArgument, results_dir
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.peeks import Peek


def jobs(run: RunArgument, results: ResultsOption = None, json: JsonOption = False) -> None:
    """List the background jobs of a run, those that have ended included.

    Nothing is run: what a server knows is asked of it, the rest is read from files of results;
    with --results DIR only those files are read, from any machine, and no server is asked.
    --json prints a list of peek records, with what each job has printed.
    """
    from perdure.cli.job_text import jobs_table

    found = asyncio.run(_jobs(run_of(run), results_dir(results), output=json))
    if json:
        emit_json([job.as_json() for job in found])
    elif found:
        emit_table(jobs_table(found))
    else:
        emit("no background jobs")


def run_of(run: str) -> Named:
    """What RUN names, if that is one run. Raises PerdureError for a suite."""
    from perdure.cli.reading import named

    wanted = named(run)
    if wanted.task_id is None:
        raise PerdureError(
            f"{run!r} is a suite; name one of its runs: SUITE/TASK (`perdure list {wanted.suite}`)"
        )
    return wanted


async def _jobs(run: Named, results: Path | None, *, output: bool) -> list[Peek]:
    from perdure.cli.reading import to_read, unknown_run

    async with to_read(results) as (perdure, root):
        if perdure:
            from perdure.event_log import UnknownRun

            try:
                return await perdure.run(_name(run)).jobs(output=output)
            except UnknownRun:
                pass  # neither the server nor the state directory's files know it
        found = await asyncio.to_thread(_jobs_on_disk, run, root, output)
        if found is None:
            raise unknown_run(root, run, results)
        return found


def _name(run: Named) -> str:
    return f"{run.suite}/{run.task_id}/{run.trial}"


def _jobs_on_disk(run: Named, root: Path, output: bool) -> list[Peek] | None:
    """The jobs of a run that its files tell of; None if there are no files of the run."""
    from perdure.cli.job_text import recorded_jobs
    from perdure.job_files import jobs_in
    from perdure.results import suite_files

    assert run.task_id is not None
    files = suite_files(root, run.suite)
    stored = {
        job.exec_id: job
        for job in jobs_in(files.trial(run.task_id, run.trial), f"task/{_name(run)}")
    }
    record = files.read_record(run.task_id, run.trial)
    if record is None:
        return [job.peek() for job in stored.values()] or None
    known = recorded_jobs(record)
    if not output:
        return known
    return [stored[job.exec_id].peek() if job.exec_id in stored else job for job in known]
