"""Writing the records that could not be written when their runs ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from temporalio import activity
from temporalio.client import Client

from activities.beats import beating
from activities.results import Results
from perdure.core.summary import clip_summary
from perdure.errors import PerdureError
from perdure.event_log import pages
from perdure.history import TaskHistory
from perdure.messages import FinishTask, RunRef, TrialSummary, WriteMissing
from perdure.names import WRITE_MISSING, task_workflow_id
from perdure.results import ResultsError, result_line


class MissingRecords:
    """The activity that looks after a full disk."""

    def __init__(self, client: Client, results: Results) -> None:
        self._client = client
        self._results = results

    @activity.defn(name=WRITE_MISSING)
    async def write_missing(self, missing: WriteMissing) -> list[TrialSummary]:
        """Write record, events, logs and artifacts of these trials, from the server's histories
        and from what their runs have left on this host.

        A record that is there by now is left as it is. Returns the summaries of the trials whose
        record still cannot be written, with the reason as note.
        """
        async with beating():
            return await self._write_all(missing)

    async def _write_all(self, missing: WriteMissing) -> list[TrialSummary]:
        left: list[TrialSummary] = []
        for trial in missing.trials:
            run = RunRef(
                workflow_id=task_workflow_id(missing.suite, trial.task_id, trial.trial),
                run_id=trial.run_id,
                suite=missing.suite,
                task_id=trial.task_id,
                trial=trial.trial,
            )
            try:
                await self._write(run, trial, missing.results_dir)
                continue
            except OSError as error:
                note = self._results.unwritten_note(run, missing.results_dir, error)
            except PerdureError as error:
                note = f"its record could not be written: {error}"
            activity.logger.error("%s: %s", run.workflow_id, note)
            left.append(clip_summary(replace(trial, note=note, unwritten=True)))
        return left

    async def _write(self, run: RunRef, trial: TrialSummary, results_dir: str | None) -> None:
        if await asyncio.to_thread(self._is_there, run, results_dir):
            return
        history = TaskHistory(self._client, run.workflow_id)
        events = []
        async for page in pages(self._client, run.workflow_id, run.run_id):
            for event in page:
                events += [told for told, _ in await history.take(event)]
        end = FinishTask(run, history.record(), events, trial, results_dir)
        await asyncio.to_thread(self._results.write_run, end)

    def _is_there(self, run: RunRef, results_dir: str | None) -> bool:
        """Whether the record was written after all; its line is added if that is missing."""
        files, _ = self._results.trial_files(run, results_dir)
        try:
            record = files.read_record(run.task_id, run.trial)
        except ResultsError:
            return False  # damaged: it is replaced
        if record is None or record["run_id"] != run.run_id:
            return False
        files.append_line(result_line(record))
        return True
