"""`perdure show`: a suite, or one run whole."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.console import emit, emit_json, emit_table, printable
from perdure.cli.options import JsonOption, ResultsOption, RunArgument, results_dir
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.client import Perdure


def show(run: RunArgument, results: ResultsOption = None, json: JsonOption = False) -> None:
    """Show a suite, or one run: its steps, attempts, failures, jobs and rollbacks, and its files.

    Nothing is run: what a server knows is asked of it, the rest is read from files of results;
    with --results DIR only those files are read, from any machine, and no server is asked.
    --json prints the whole record of a run, its context included.
    """
    from perdure.cli.reading import named

    wanted = named(run)
    if wanted.task_id is None:
        outcome, files = asyncio.run(_suite(wanted.suite, results_dir(results)))
        if json:
            emit_json(outcome)
        else:
            _show_suite(outcome, files)
    else:
        record, files = asyncio.run(
            _run(wanted.suite, wanted.task_id, wanted.trial, results_dir(results))
        )
        if json:
            emit_json(record)
        else:
            show_run(record, files)


async def _suite(suite: str, results: Path | None) -> tuple[dict[str, Any], Path | None]:
    from perdure.cli.reading import outcome_on_disk, to_read, unknown_suite
    from perdure.results import suite_files

    unknown: PerdureError | None = None
    async with to_read(results) as (perdure, root):
        if perdure:
            from perdure.client import UnknownSuite  # here: files are read without the SDK

            try:
                found = await perdure.suite(suite)
                kept = found.definition.options.results_dir
                files = suite_files(Path(kept) if kept else root, suite).root
                return await found.outcome(), files
            except UnknownSuite as error:
                unknown = error  # its history may be gone, its files not
        outcome = outcome_on_disk(root, suite, results)
    if outcome is None:
        raise unknown or unknown_suite(root, suite, results)
    return outcome, suite_files(root, suite).root


async def _run(
    suite: str, task_id: str, trial: int, results: Path | None
) -> tuple[dict[str, Any], Path | None]:
    """A run's record, and its directory of results if there is one."""
    from perdure.cli.reading import Named, to_read, unknown_run
    from perdure.results import suite_files

    async with to_read(results) as (perdure, root):
        if perdure:
            from perdure.event_log import UnknownRun

            with contextlib.suppress(UnknownRun):  # its history may be gone, its files not
                return await recorded_run(perdure, Named(suite, task_id, trial), root)
        files = suite_files(root, suite)
        folder = files.trial(task_id, trial)
        kept = files.read_record(task_id, trial)
    if kept is None:
        raise unknown_run(root, Named(suite, task_id, trial), results)
    return kept, folder


async def recorded_run(
    perdure: Perdure, run: Named, root: Path | None = None
) -> tuple[dict[str, Any], Path | None]:
    """The record of a run that the server knows, and its directory of results if there is one.

    `root`: where results lie if its suite does not say. Raises UnknownRun.
    """
    from perdure.results import ResultsError, suite_files

    assert run.task_id is not None
    record = await perdure.run(f"{run.suite}/{run.task_id}/{run.trial}").record()
    root = root or perdure.settings.state.results
    files = suite_files(await _results_of(perdure, run.suite) or root, run.suite)
    try:
        kept = files.read_record(run.task_id, run.trial)
    except ResultsError:
        kept = None  # the history has it all
    is_same = kept is not None and kept["run_id"] == record["run_id"]
    return record, files.trial(run.task_id, run.trial) if is_same else None


async def _results_of(perdure: Perdure, suite: str) -> Path | None:
    """The directory of results that a suite was given; None if it was given none."""
    from perdure.client import UnknownSuite

    try:
        kept = (await perdure.suite(suite)).definition.options.results_dir
    except UnknownSuite:  # a task that was started by itself
        return None
    return Path(kept) if kept else None


def _show_suite(outcome: dict[str, Any], files: Path | None) -> None:
    from perdure.cli.summary import pass_at_k_text, usage_text
    from perdure.cli.tables import note_lines, runs_table, state_of, totals_line, unserved_line

    totals = outcome["totals"]
    emit(f"suite    {printable(outcome['suite'])}")
    emit(f"run id   {printable(outcome['run_id'])}")
    emit(f"state    {state_of(outcome)}")
    if told := unserved_line(outcome):
        emit(f"         {told}")
    if outcome["stopped"]:
        emit(f"stopped  {printable(outcome['stopped'], 1000)}")
    emit(f"totals   {totals_line(totals)}")
    if estimates := pass_at_k_text(outcome):
        emit(f"pass@k   {estimates}")
    if usage := usage_text(totals["usage"]):
        emit(f"usage    {usage}")
    emit("")
    rows = (row for task in outcome["tasks"] for row in _rows(task, outcome["status"]))
    emit_table(runs_table(rows))
    if notes := note_lines(outcome):
        emit("")
        for note in notes:
            emit(note)
    if files and files.is_dir():
        emit("")
        emit(f"files    {files}")


def show_run(record: dict[str, Any], files: Path | None) -> None:
    """Print a run for people; `files`: its directory of results, if there is one."""
    from perdure.cli.environment_failures import reason_and_log
    from perdure.cli.failures import failed_attempts
    from perdure.cli.job_text import jobs_table, recorded_jobs
    from perdure.cli.leases import lease_lines
    from perdure.cli.rollbacks import head_lines, rollback_lines
    from perdure.cli.summary import usage_text
    from perdure.cli.tables import kind_name, steps_table
    from perdure.cli.times import moment, span

    took = f" after {span(record['duration'])}" if record["duration"] is not None else ""
    run = f"{record['suite']}/{record['task_id']}/{record['trial']}"
    emit(f"run      {printable(run)}")
    emit(f"run id   {printable(record['run_id'])}")
    emit(f"state    {record['status']}{took}")
    emit(f"started  {moment(record['started_at'])}")
    if earlier := record.get("resumed_from"):  # records of earlier versions do not say
        emit(
            f"goes on  from step {printable(earlier['step'])} of run {printable(earlier['run_id'])}"
        )
        work = earlier["work"]
        if work and not work["found"]:
            emit(f"         without that run's files: {printable(work['reason'], 1000)}")
    if failure := record.get("failure"):
        step = f"step {failure['step']}: " if failure.get("step") else ""
        reason, log = reason_and_log(failure["message"])
        emit(f"failure  {printable(step + reason, 1000)} ({kind_name(failure['kind'])})")
        for line in log:
            emit(f"         | {line}")
    if record.get("cancelled"):
        emit(f"cancel   {printable(record['cancelled'], 1000)}")
    if record.get("usage"):
        emit(f"usage    {usage_text(record['usage'])}")
    for line in [*head_lines(record), *lease_lines(record)]:
        emit(line)
    emit("")
    emit_table(steps_table(record))
    if jobs := recorded_jobs(record):
        emit("")
        emit_table(jobs_table(jobs))
    for told in rollback_lines(record):
        emit("")
        for line in told:
            emit(line)
    for failed in failed_attempts(record, files):
        emit("")
        reason, log = reason_and_log(failed.message)
        emit(printable(f"{failed.step}, attempt {failed.attempt}: {reason}", 1000))
        for line in failed.lines or log:
            emit(f"  | {line}")
    if artifacts := record.get("artifacts"):
        emit("")
        for artifact in artifacts:
            left = "" if artifact["kept"] else "  (not kept)"
            emit(
                f"artifact {printable(artifact['path'])}  {artifact['size_bytes']} bytes, "
                f"of {printable(artifact['step'])}{left}"
            )
    if files or record["status"] in ("succeeded", "failed", "cancelled"):
        emit("")
        emit(f"files    {files or 'none here: they could not be written, or are elsewhere'}")


def _rows(task: dict[str, Any], suite_status: str) -> list[dict[str, Any]]:
    """A task's ended trials, and a row for those that have not ended."""
    from perdure.cli.tables import trial_name

    rows = [
        {
            "run": trial_name(task, trial),
            "trial": trial["trial"],
            "status": trial["status"],
            "duration": trial["duration"],
            "started_at": trial["started_at"],
            "failure": trial["failure"],
        }
        for trial in task["trials"]
    ]
    left = task["repeats"] - len(rows)
    if left:
        status = "pending" if suite_status == "running" else "not_run"
        if task["status"] in ("running", "pending", "not_run"):
            status = task["status"]
        name = f"{task['id']} ({left} {'more' if rows else 'trials'})" if left > 1 else task["id"]
        trial = None
        if left == 1 and rows:
            (trial,) = set(range(1, task["repeats"] + 1)) - {row["trial"] for row in rows}
            name = trial_name(task, {"trial": trial})
        open_row = {"run": name, "trial": trial, "status": status, "duration": None}
        rows.append({**open_row, "started_at": None, "failure": None})
    return rows
