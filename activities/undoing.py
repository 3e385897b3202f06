"""What undoes one attempt of a step: its context, its process, its try at a time.

It is an attempt itself, in a directory of its own: what it runs has the step's variables, secrets
and limits, and is found and killed as a step's processes are. What it writes is of no account.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from activities import marker
from activities.adoption import process_key
from activities.attempt import Attempt, AttemptHost
from activities.backend import Backends
from activities.leftovers import remove_created
from activities.places import RunPlace
from activities.ports import FreePorts
from activities.safe_files import own_folder
from activities.secrets import WorkerEnvironment
from activities.supervise import Supervisor
from perdure.core.context import apply
from perdure.core.redaction import restore
from perdure.core.task import Step
from perdure.core.undo_step import DECLARED, undo_step
from perdure.messages import CompensateStep, CompensationOutcome, StepFailure, StepTask
from perdure.payloads import adapter
from perdure.steps import StepFunction, registered

OUTCOME = "outcome.json"
FAILURES = "failures"
"""In the directory: how many tries have failed. Temporal counts lost workers with them."""


class UndoHost(AttemptHost):
    """What undoes an attempt, as it sees its machine: see `perdure.steps.UndoHost`."""

    compensates = ""
    """The id of the step."""
    diff: list[dict[str, Any]]
    status = ""
    tries = 1

    @property
    def comes_again(self) -> bool:
        """As of a step: whether an earlier try may have left something that runs."""
        return self.tries > 1

    def own_variables(self) -> dict[str, str]:
        """As of a step, and `PERDURE_COMPENSATES`."""
        step = {"PERDURE_STEP_ID": self.compensates, "PERDURE_COMPENSATES": self.compensates}
        return {**super().own_variables(), **step}


class Undoing(Attempt):
    """One try to undo one attempt."""

    host_type = UndoHost
    host: UndoHost

    def __init__(
        self,
        asked: CompensateStep,
        host: str,
        place: RunPlace,
        backends: Backends | None = None,
        *,
        tries: int = 1,
    ) -> None:
        """`tries`: this one included. Raises UnsafeName."""
        own = place.undo(asked.step["id"], asked.attempt, asked.kind)
        how = undo_step(asked.step, asked.kind)
        super().__init__(_as_step(asked, how), host, place, backends, own_dir=own)
        self.asked = asked
        self._retry = how.retry
        self._tries = tries

    @property
    def key(self) -> str:
        """What marks its processes."""
        return process_key(self.task, self.task.attempt)

    @property
    def is_void(self) -> bool:
        """Whether nothing is to be done: the type of the step says not how it is undone."""
        kind = registered().get(self.asked.step["type"])
        return self.asked.kind == "type" and kind is not None and kind.undo is None

    @property
    def function(self) -> StepFunction:
        """What is to be called."""
        undo = self.type.undo
        return self.type.function if self.asked.kind == DECLARED or undo is None else undo

    @property
    def document(self) -> dict[str, Any]:
        """What that is given: the `compensate` document, or the step's own."""
        return self.step.body if self.asked.kind == DECLARED else self.asked.step

    def prepare(
        self,
        stored: dict[str, Any],
        environment: WorkerEnvironment,
        supervisor: Supervisor,
        free_ports: FreePorts | None = None,
    ) -> None:
        """As of a step. `stored`: the context of before the rollback."""
        asked = self.asked
        if not asked.is_written:
            stored = apply(stored, asked.diff)
        super().prepare(stored, environment, supervisor, free_ports)
        self.host.compensates, self.host.status = asked.step["id"], asked.status
        self.host.diff = restore(asked.diff, self._secrets.load())
        self.host.tries = self._tries

    def remove(self) -> list[str]:
        """Remove the files that the attempt declared; those that were there. Raises StepFailed."""
        workdir = self._place.work_after(self.task.restarts)
        return [name for name in self.asked.creates if remove_created(workdir, name)]

    # --- Over several tries -----------------------------------------------------------------

    def sweep(self) -> None:
        """Kill what an earlier try still runs, and forget how its processes ended."""
        if not self.step_dir.exists():
            return
        marker.sweep(self.key)
        marker.sweep(f"{self.key}/", prefix=True)
        for file in self.step_dir.glob("exit*.json"):
            with contextlib.suppress(OSError):  # a folder in its place is not taken for an end
                file.unlink()

    def earlier(self) -> CompensationOutcome | None:
        """The outcome that a try left whose report was lost."""
        try:
            left = (self.step_dir / OUTCOME).read_bytes()
            outcome: CompensationOutcome = adapter(CompensationOutcome).validate_json(left)
        except (OSError, ValueError):
            return None
        return replace(outcome, adopted=True)

    def keep(self, removed: list[str]) -> CompensationOutcome:
        """Put the outcome on disk, before it is reported. Raises OSError."""
        outcome = CompensationOutcome(self._host_name, self._elapsed, removed=removed)
        own_folder(self.step_dir)
        draft = self.step_dir / f".{OUTCOME}"
        draft.unlink(missing_ok=True)
        draft.write_bytes(adapter(CompensationOutcome).dump_json(outcome))
        draft.replace(self.step_dir / OUTCOME)
        return outcome

    def judge(self, failure: StepFailure) -> StepFailure:
        """The failure as it is reported: masked, and not to be retried after the last try."""
        failure = self._masked(failure)
        is_last = self._count_failure() >= self._retry.max_attempts
        if is_last or failure.type in self._retry.non_retryable_errors:
            return replace(failure, retryable=False)
        return failure

    def forget(self) -> None:
        """Remove what may hold secrets."""
        if self._before is not None:
            self.host.close()

    def _count_failure(self) -> int:
        file = self.step_dir / FAILURES
        with contextlib.suppress(OSError, ValueError):  # then Temporal's count is the limit
            known = int(file.read_bytes()[:20]) if file.exists() else 0
            own_folder(self.step_dir)
            draft = file.with_name(f".{FAILURES}")
            draft.unlink(missing_ok=True)
            draft.write_text(str(known + 1))
            draft.replace(file)
            return known + 1
        return 1


def _as_step(asked: CompensateStep, step: Step) -> StepTask:
    return StepTask(
        run=asked.run,
        step=step.body,
        index=0,
        total=0,
        attempt=asked.attempt,
        epoch=asked.context_epoch,
        version=asked.version,
        context=asked.context,
        redact=asked.redact,
        environments=asked.environments,
        folder=asked.folder,
        suite_workflow_id=asked.suite_workflow_id,
        instances=asked.instances,
        restarts=asked.restarts,
    )
