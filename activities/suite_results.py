"""The activity that writes a suite's own file of results, when it starts and when it is over."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from perdure.messages import SuiteTask, WriteSuite
from perdure.names import BAD_INPUT, WRITE_SUITE
from perdure.outcome import Trials, line_of_summary, outcome, with_marks
from perdure.results import ResultsError, SuiteFiles, suite_files, write_json
from perdure.safe_names import UnsafeName


class SuiteResults:
    """What is known of a suite as a whole, written down."""

    def __init__(self, results: Path, server: str | None = None) -> None:
        """`results`: the worker's own directory for them; `server`: the server's id."""
        self._results = results
        self._server = server

    @activity.defn(name=WRITE_SUITE)
    async def write_suite(self, suite: WriteSuite) -> None:
        """Write the suite's own file.

        One that cannot be written is noted in the log, and not a failure: its content is kept in
        the workflow's history, and the tasks need not wait for a disk.

        Raises ApplicationError:
            BadInput: the suite's name cannot be part of a path; not retried.
        """
        results = Path(suite.results_dir) if suite.results_dir else self._results
        try:
            files = suite_files(results, suite.suite)
        except UnsafeName as error:
            raise ApplicationError(str(error), type=BAD_INPUT, non_retryable=True) from None
        try:
            await asyncio.to_thread(self._write_suite, files, suite)
        except (OSError, ResultsError) as error:
            activity.logger.error(
                "suite %s: its file could not be written: %s; see `perdure show`",
                suite.suite,
                error,
            )

    def _write_suite(self, files: SuiteFiles, suite: WriteSuite) -> None:
        document = {**suite_document(suite, time.time()), "server": self._server}
        write_json(files.suite_file, document)
        if suite.status == "running":
            return
        # Trials that were closed from outside wrote nothing themselves.
        known = files.run_ids()
        for trial in suite.trials:
            if trial.run_id and trial.run_id not in known and not trial.unwritten:
                line = files.line_of_record(trial.task_id, trial.trial)
                if line is None or line["run_id"] != trial.run_id:
                    line = {"suite": suite.suite, **line_of_summary(trial)}
                files.append_line(line)


def suite_document(suite: WriteSuite, now: float) -> dict[str, Any]:
    """What stands in the suite's own file; `now`: when it is written."""
    tasks = [SuiteTask({"id": t["id"]}, t["digest"], repeats=t["repeats"]) for t in suite.tasks]
    lines = [with_marks(line_of_summary(trial), trial) for trial in suite.trials]
    known = outcome(
        suite.suite,
        suite.run_id,
        tasks,
        Trials(
            lines,
            is_open=suite.status == "running",
            stopped=suite.stopped,
            cancelled=suite.status == "cancelled",
        ),
    )
    details = ("steps", "retry_resets", "instances")  # the trials' own files have them
    return {
        "suite": suite.suite,
        "run_id": suite.run_id,
        "digest": suite.digest,
        "status": suite.status,
        "stopped": suite.stopped,
        "started_at": suite.started_at,
        "ended_at": None if suite.status == "running" else now,
        "totals": known["totals"],
        "pass_at_k": known["pass_at_k"],
        "tasks": suite.tasks,
        "trials": [{k: v for k, v in line.items() if k not in details} for line in lines],
    }
