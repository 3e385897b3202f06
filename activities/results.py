"""Activities that write files of results and tell the suite, whatever becomes of the server.

All are idempotent: the same run gives the same files, and a suite counts a word once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError, RPCStatusCode

from activities.beats import beating
from activities.contexts import Contexts
from activities.host import forget_in
from activities.job_files import JOBS, OUTPUTS, keep_job, write_end
from activities.leftovers import (
    ARTIFACT_LIMIT_BYTES,
    ARTIFACTS_LIMIT_BYTES,
    ARTIFACTS_LIMIT_COUNT,
)
from activities.places import RunPlace
from activities.safe_files import copy_below, folder_below, parts_of
from perdure.core.summary import clip_summary
from perdure.errors import PerdureError
from perdure.job_messages import JobEnd
from perdure.messages import (
    ClosedTrial,
    FinishTask,
    ProbeTrials,
    RunRef,
    TrialSummary,
)
from perdure.names import FINISH_TASK, PROBE_TRIALS
from perdure.payloads import adapter
from perdure.results import SuiteFiles, result_line, trial_files

UNREPORTED = ("lost", "interrupted")
"""Attempts that ended without a word; what they left may be another's."""

LOG_LIMIT_BYTES = 16 * 1024 * 1024
"""What a stream's cap lets through fits well; anything larger was put there by a step."""
LOGS_LIMIT_COUNT = 1_000
"""Of one attempt: two for each process that it ran."""

_OF_AN_END = [field.name for field in fields(JobEnd)]

SWAP_TRIES = 5

LOOKS_AT_ONCE = 20
"""Questions to the server at a time."""

SUITE_SEEN_SECONDS = 0.25
"""So long the run of a suite is taken for the newest without another look. A task that ends in the
moment of a hand-over is found by the suite's probe, a second later."""

_log = logging.getLogger("perdure.results")

_LOG = re.compile(r"(?:stdout|stderr)(?:\.[0-9]{1,6})?\.log", re.ASCII)


class Results:
    """The activities at the end of tasks and suites."""

    def __init__(self, client: Client, runs: Path, results: Path, contexts: Contexts) -> None:
        """`runs` and `results`: the worker's own directories for both."""
        self._client = client
        self._runs = runs
        self._results = results
        self._contexts = contexts
        self._newest: dict[str, tuple[float, str]] = {}
        """The suite that was asked for last: when, and its run."""

    @activity.defn(name=FINISH_TASK)
    async def finish_task(self, end: FinishTask) -> TrialSummary:
        """Write the record of a run that has ended, and tell its suite.

        A record that cannot be written is a note in the summary, and marks it `unwritten`; it is
        no failure: the workflow's history has it (`write_missing`), and the suite must hear of
        the end.
        """
        summary = end.summary
        try:
            if not summary.withdrawn:  # nothing of it has run; an earlier run's record stays
                async with beating():
                    await asyncio.to_thread(self.write_run, end)
        except OSError as error:
            note = self.unwritten_note(end.run, end.results_dir, error)
            summary = clip_summary(replace(summary, note=note, unwritten=True))
            activity.logger.error("%s: %s", end.run.workflow_id, note)
        except PerdureError as error:  # no room that somebody makes would help
            note = f"its record could not be written: {error}; see it with `perdure show`"
            summary = clip_summary(replace(summary, note=note))
            activity.logger.error("%s: %s", end.run.workflow_id, note)
        self._contexts.forget(end.run.run_id)
        if end.suite_workflow_id:
            await self._tell(end.suite_workflow_id, end.suite_run_id, summary)
        if summary.withdrawn:
            await self.cancel_withdrawn(end.run)
        return summary

    async def cancel_withdrawn(self, run: RunRef) -> None:
        """Ask a task that ends before it began to end as cancelled; it cannot ask itself (server
        1.32)."""
        chain = self._client.get_workflow_handle(run.workflow_id, first_execution_run_id=run.run_id)
        try:
            await chain.cancel()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended
                raise

    @activity.defn(name=PROBE_TRIALS)
    async def probe_trials(self, probe: ProbeTrials) -> list[ClosedTrial]:
        """Those of these workflows that are closed, with what they ended in."""
        places = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(workflow_id: str) -> ClosedTrial | None:
            async with places:
                if await is_open(self._client, workflow_id):
                    return None
                return await self._end_of(workflow_id)

        found = await asyncio.gather(*map(look, probe.workflow_ids))
        return [trial for trial in found if trial]

    async def _end_of(self, workflow_id: str) -> ClosedTrial:
        handle = self._client.get_workflow_handle(workflow_id, result_type=TrialSummary)
        try:
            return ClosedTrial(workflow_id, await handle.result())
        except WorkflowFailureError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.details:
                summary = adapter(TrialSummary).validate_python(cause.details[0])
                return ClosedTrial(workflow_id, summary)
            cancelled = isinstance(cause, CancelledError)
            return ClosedTrial(workflow_id, None, str(cause), cancelled)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return ClosedTrial(workflow_id, None, "its workflow is unknown to the server")
            raise

    async def _tell(self, suite_id: str, run_id: str | None, summary: TrialSummary) -> None:
        """Signal the suite, unless the run of it that started the task is there to hear.

        It hears by the task's handle, which tells of a cancelled workflow only that it was.
        """
        handle = self._client.get_workflow_handle(suite_id)
        try:
            is_told = summary.status != "cancelled"
            if is_told and run_id and await self._newest_run(suite_id) == run_id:
                return
            await handle.signal("trial_ended", summary)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # a suite that closed needs no word
                raise

    async def _newest_run(self, suite_id: str) -> str:
        """The run of a suite that is there now, or was a moment ago: tasks end in bursts."""
        seen_at, run_id = self._newest.get(suite_id, (-math.inf, ""))
        if time.monotonic() - seen_at > SUITE_SEEN_SECONDS:
            seen_at = time.monotonic()
            run_id = (await self._client.get_workflow_handle(suite_id).describe()).run_id
            self._newest = {suite_id: (seen_at, run_id)}
        return run_id

    def write_run(self, end: FinishTask) -> None:
        """Write a run's directory of results and its line, and forget its secrets; any thread.

        Whole or not at all. Raises OSError, and UnsafeName.
        """
        place = RunPlace.of(self._runs, end.run)
        try:
            self._write_record(end, place)
        finally:
            self._forget_secrets(place, end.record)

    def _write_record(self, end: FinishTask, place: RunPlace) -> None:
        files, target = self.trial_files(end.run, end.results_dir)
        # An earlier call may still be at it: one that took too long is repeated beside it.
        stem = f".{target.name}.{end.run.run_id}."
        target.parent.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(target.parent):
            if name.startswith(stem):
                shutil.rmtree(target.with_name(name), ignore_errors=True)
        draft = target.with_name(stem + secrets.token_hex(8))
        draft.mkdir()
        try:
            for step, attempt in self._with_folders(place, end.record):
                name = place.attempt(step["id"], attempt["number"]).name
                self._keep_attempt(_home(place, step, attempt), name, attempt, draft)
            for undone in _undone(place, end.record):
                self._keep_undone(undone, draft)
            self._keep_jobs(place, end.record, target, draft)
            events = "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in end.events)
            (draft / "events.jsonl").write_text(events, "utf-8")
            record = json.dumps(end.record, ensure_ascii=False)
            (draft / "record.json").write_text(record, "utf-8")
            _swap(draft, target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        files.append_line(result_line(end.record))

    def _keep_attempt(self, source: Path, name: str, attempt: dict[str, Any], draft: Path) -> None:
        """Take an attempt's logs and artifacts over; a later attempt's artifact of a name wins.

        Copies, not second names of the same files: what the step left running may still write.
        """
        try:
            with self._below_runs(source) as folder:
                _keep_logs(folder, draft / "steps" / name)
        except FileNotFoundError:
            return  # it ran no process, and left nothing
        except OSError as error:
            _raise_if_ours(error)
            _log.warning("nothing of %s is kept: %s", name, error)
            return
        left = ARTIFACTS_LIMIT_BYTES
        for artifact in attempt["artifacts"][:ARTIFACTS_LIMIT_COUNT]:
            if not artifact["kept"]:
                continue
            path = artifact["path"]
            try:
                with self._below_runs(source / "artifacts") as folder:
                    target = _room_for(draft / "artifacts", path)
                    left -= copy_below(folder, path, target, min(ARTIFACT_LIMIT_BYTES, left))
            except OSError as error:
                _raise_if_ours(error)
                _log.warning("artifact %r of %s is not kept: %s", path, name, error)

    def _keep_undone(self, source: Path, draft: Path) -> None:
        """Take over the logs of what undid an attempt."""
        try:
            with self._below_runs(source) as folder:
                _keep_logs(folder, draft / "undo" / source.name)
        except FileNotFoundError:
            return  # it ran no process
        except OSError as error:
            _raise_if_ours(error)
            _log.warning("nothing of undo/%s is kept: %s", source.name, error)

    def _keep_jobs(
        self, place: RunPlace, record: dict[str, Any], target: Path, draft: Path
    ) -> None:
        """Take over the files of the run's jobs, each of which has put its own there as it ended.

        One whose worker was lost could not: what it had printed is still where it ran.
        """
        for job in record.get("jobs", []):
            source = target / JOBS / job["exec_id"]
            end = adapter(JobEnd).validate_python({name: job[name] for name in _OF_AN_END})
            if source.is_dir() and not source.is_symlink():
                (draft / JOBS / end.exec_id).mkdir(parents=True)
                for name in OUTPUTS:  # and whatever else the job may have put there: not that
                    if _is_file(source / name):
                        _second_name(source / name, draft / JOBS / end.exec_id / name)
                write_end(draft / JOBS, end)
            else:
                keep_job(self._runs, place.job(end.exec_id), draft / JOBS, end)

    def _with_folders(
        self, place: RunPlace, record: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """The attempts of steps that made directories, in order; most small steps make none.

        To look for each in vain would cost more than all the rest of a small run's record.
        """
        made: set[str] = set()
        with contextlib.suppress(OSError), self._below_runs(place.steps) as folder:
            made.update(name.rpartition(".")[0] for name in os.listdir(folder))
        for step in record["steps"]:
            if step["id"] in made:
                for attempt in step["attempts"]:
                    yield step, attempt

    def _forget_secrets(self, place: RunPlace, record: dict[str, Any]) -> None:
        """Remove what held the run's secrets: its own file, and those of attempts and jobs."""
        steps = self._with_folders(place, record)
        attempts = [place.attempt(step["id"], attempt["number"]) for step, attempt in steps]
        jobs = [place.job(job["exec_id"]) for job in record.get("jobs", [])]
        for own in [*attempts, *_undone(place, record), *jobs]:
            with contextlib.suppress(OSError), self._below_runs(own) as folder:
                forget_in(folder)
        with contextlib.suppress(FileNotFoundError), self._below_runs(place.root) as folder:
            os.unlink(place.secrets.name, dir_fd=folder)

    def trial_files(self, run: RunRef, results_dir: str | None) -> tuple[SuiteFiles, Path]:
        """The files of a run's suite, and its own directory. Raises UnsafeName."""
        return trial_files(self._base(results_dir), run)

    def unwritten_note(self, run: RunRef, results_dir: str | None, error: OSError) -> str:
        """What people are told of a record that could not be written: where, why, what to do."""
        _, target = self.trial_files(run, results_dir)
        return (
            f"its record could not be written to {target}: {error.strerror or error}; "
            f"{_remedy(error)}, and type the same again to have it written "
            "(until then `perdure show` has it)"
        )

    def _below_runs(self, path: Path) -> contextlib.AbstractContextManager[int]:
        return folder_below(self._runs, path.relative_to(self._runs).as_posix())

    def _base(self, results_dir: str | None) -> Path:
        return Path(results_dir) if results_dir else self._results


async def is_open(client: Client, workflow_id: str, first_run_id: str | None = None) -> bool:
    """Whether the newest run of a workflow id is running; `first_run_id`: and is of this chain."""
    try:
        description = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    if first_run_id is not None:
        info = description.raw_description.workflow_execution_info
        if info.first_run_id not in ("", first_run_id):
            return False
    return description.status is WorkflowExecutionStatus.RUNNING


def _home(place: RunPlace, step: dict[str, Any], attempt: dict[str, Any]) -> Path:
    """The directory where an attempt left its files: its own, or that of the lost attempt before
    it whose ended process or whose outcome it took over."""
    earlier = reversed(step["attempts"][: attempt["number"] - 1])
    lost = takewhile(lambda before: before["status"] in UNREPORTED, earlier)
    own, *others = (place.attempt(step["id"], a["number"]) for a in (attempt, *lost))
    if attempt["status"] in UNREPORTED:
        return own
    return next((d for d in (own, *others) if (d / "outcome.json").exists()), own)


def _undone(place: RunPlace, record: dict[str, Any]) -> list[Path]:
    """The directories of what undid attempts; most are not there."""
    return [
        place.undo(undo["step_id"], undo["attempt"], undo["kind"])
        for rollback in record.get("rollbacks", [])
        for undo in rollback["compensations"]
    ]


def _keep_logs(folder: int, target: Path) -> None:
    logs = sorted(name for name in os.listdir(folder) if _LOG.fullmatch(name))
    for name in logs[:LOGS_LIMIT_COUNT]:
        target.mkdir(parents=True, exist_ok=True)
        try:
            copy_below(folder, name, target / name, LOG_LIMIT_BYTES)
        except OSError as error:
            _raise_if_ours(error)
            _log.warning("%s of %s is not kept: %s", name, target.name, error)


def _raise_if_ours(error: OSError) -> None:
    """Raise what went wrong with the results; what a step put in a file's place is its own."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE):
        raise error


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "make room there"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "make it writable for the worker"
        case errno.ENOTDIR | errno.EEXIST:
            return "move away what is in its place"
    return "put that right"


def _room_for(artifacts: Path, path: str) -> Path:
    """Where an artifact is to lie, with nothing of an earlier attempt in its way."""
    target = artifacts.joinpath(*parts_of(path))
    for above in reversed(target.relative_to(artifacts).parents):
        if (artifacts / above).is_file():
            (artifacts / above).unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        shutil.rmtree(target)
    target.unlink(missing_ok=True)
    return target


def _is_file(path: Path) -> bool:
    """Whether a file is there, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _second_name(source: Path, target: Path) -> None:
    """Nobody writes to these files any more, so they need not be copied."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _swap(draft: Path, target: Path) -> None:
    """Put `draft` in the place of `target`, which may hold an earlier run's files."""
    for attempt in range(SWAP_TRIES):
        old = target.with_name(f"{draft.name}.{attempt}.old")
        with contextlib.suppress(FileNotFoundError):
            target.rename(old)
        try:
            draft.rename(target)
        except OSError as error:
            # Another call of the same run was faster, just now.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt + 1 == SWAP_TRIES:
                with contextlib.suppress(OSError):  # better the earlier run's files than none
                    old.rename(target)
                raise
        else:
            return
        finally:
            shutil.rmtree(old, ignore_errors=True)
