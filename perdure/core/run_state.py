"""What is known of one task run: where its steps stand, its context, its events.

It is begun here, seen here, and carried over a continue-as-new. What moves it are the rules of
`perdure.core.run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from perdure.core.graph import Frontier, Graph
from perdure.core.job_book import JobBook
from perdure.core.journal import Journal
from perdure.core.record import Attempt, StepRecord, summed
from perdure.core.rollback import Rollbacks
from perdure.core.run_context import RunContext, first_context
from perdure.core.run_lease import RunLease
from perdure.core.run_record import record_of
from perdure.core.run_slots import RunSlots
from perdure.core.run_start import check_limits, check_range
from perdure.core.task import Task
from perdure.messages import (
    CarriedWork,
    ContextDiffs,
    ContextRequest,
    FailureKind,
    PoolUse,
    Resumed,
    RunRef,
    TaskInput,
)
from perdure.pool_messages import LeaseRelease

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True)
class RunFailure:
    """Why a run did not succeed: the first fatal error (T22)."""

    step: str | None
    message: str
    type: str
    kind: FailureKind


class RunState:
    """One run of a task as of now."""

    def __init__(
        self,
        task: Task,
        run: RunRef,
        *,
        now: float,
        seed: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        agent_model: str | None = None,
        agent_artifact_id: str | None = None,
        start_step: int = 0,
        end_step: int | None = None,
        limits: Mapping[str, int] | None = None,
        timeout_seconds: float | None = None,
        pool: PoolUse | None = None,
        environments: Sequence[dict[str, Any]] = (),
        bind: bool = False,
        index: int = 0,
    ) -> None:
        """Begin a run of `task` at `now`.

        `limits`: slots by the limits' names. `timeout_seconds`: an upper bound of the task's own.
        `pool`: where it takes a lease of an instance of each of the `environments` (definitions)
        before its first step; `bind`: on the host of the worker that asks, and on no other.
        `index`: the task's position in the list of its suite.
        Raises BadRange if `start_step` or `end_step` lies outside the task, UnknownLimit if a step
        in that range takes a slot of a limit that is not among the `limits`, and BadStart if two
        environments would set the same variable.
        """
        total = len(task.steps)
        check_range(total, start_step, end_step)
        check_limits((step.body for step in task.steps[start_step:end_step]), limits or {})
        self.task = task
        self.run = run
        self.started_at = now
        self.ended_at: float | None = None
        self.epoch = 0
        self.rev = 0
        self.start_step = start_step
        self.end_step = total if end_step is None else end_step
        self.failure: RunFailure | None = None
        self.cancelled: str | None = None
        bounds = [s for s in (task.timeout_seconds, timeout_seconds) if s is not None]
        self.timeout_seconds = min(bounds, default=None)
        """Of the task's own limit and the one it was started with, the shorter."""
        self.events: list[dict[str, Any]] = []
        self._graph = Graph.of(task.steps)
        self._steps = {s.id: StepRecord(s.id, s.type) for s in task.steps}
        self._completed: list[str] = []
        for step in task.steps[:start_step]:  # T15: as done, and recorded from the start
            self._steps[step.id].status = "succeeded"
            self._completed.append(step.id)
        begun = first_context(task, run, seed, metadata, agent_model, agent_artifact_id)
        self._context = RunContext(Journal(begun))
        self._frontier = self._new_frontier()
        self.resumed: Resumed | None = None
        """The run that it goes on from, without what it was given of it."""
        self.work: CarriedWork | None = None
        """What came of that run's files; None: nobody has looked."""
        self._past: dict[int, RunContext] = {}
        """Of earlier epochs, while attempts go on that began under them."""
        self._rollbacks = Rollbacks()
        self.jobs = JobBook()
        """The background jobs of the task."""
        self._running: dict[str, Attempt] = {}
        self._waiting: list[str] = []
        self._slots: RunSlots | None = None
        """None where no step takes a slot: then limits cost nothing."""
        if limits and any(step.limit for step in task.steps):
            self._slots = RunSlots(run, limits, task.priority)
        self.withdrawn = False
        """True: it ended before it began, since its suite needed it no more."""
        self._lease: RunLease | None = None
        """None: it takes none."""
        self._stray_releases: list[LeaseRelease] = []
        if pool:
            self._lease = RunLease(
                run, pool, environments, priority=task.priority, bind=bind, now=now, index=index
            )
        self._note("task.started", now)
        self._note_request(now)

    @classmethod
    def of(cls, start: TaskInput, run: RunRef, now: float) -> Self:
        """The run that was asked for, begun at `now`, or gone on with where it was.

        Raises as the constructor.
        """
        options = start.options
        made = cls(
            Task.from_dict(start.task),
            run,
            now=now,
            seed=start.seed,
            metadata=start.metadata,
            agent_model=options.agent_model,
            agent_artifact_id=options.agent_artifact_id,
            start_step=options.start_step,
            end_step=options.end_step,
            limits=options.limits,
            timeout_seconds=options.task_timeout_seconds,
            pool=start.pool,
            environments=start.environments,
            bind=not options.multi_host,
            index=start.index,
        )
        if start.state:
            made.restore(start.state["run"])
        return made

    # --- How far it is ----------------------------------------------------------------------

    @property
    def halted(self) -> bool:
        """True when nothing new is started: a fatal failure, a cancel or the task's time limit."""
        return self.failure is not None or self.cancelled is not None

    @property
    def over(self) -> bool:
        """True when nothing runs any more and nothing is to be started."""
        if self._running:
            return False
        return self.halted or len(self._completed) >= self.end_step

    @property
    def running(self) -> list[str]:
        """Ids of the steps under way, in step order."""
        return sorted(self._running, key=self._graph.index)

    @property
    def status(self) -> RunStatus:
        """`running` until the run is over."""
        if not self.over:
            return "running"
        if self.failure:
            return "failed"
        return "cancelled" if self.cancelled is not None else "succeeded"

    @property
    def context(self) -> dict[str, Any]:
        """The context as of now; treat it as read-only."""
        return self._context.value

    @property
    def context_bytes(self) -> int:
        """An upper bound of the context's size as JSON, kept without walking it again."""
        return self._context.size_bytes

    @property
    def version(self) -> int:
        """Number of diffs applied in this epoch."""
        return self._context.version

    def diffs(self, request: ContextRequest) -> ContextDiffs:
        """What a worker's copy of the context lacks."""
        known = self._context if request.epoch == self.epoch else self._past.get(request.epoch)
        return known.diffs(request) if known else ContextDiffs(stale=True)

    @property
    def completed(self) -> int:
        """Steps that are done, tolerated failures among them (T21)."""
        return len(self._completed)

    @property
    def ended(self) -> list[str]:
        """The steps that came to an end, in that order: completed ones, and of a run that failed
        those whose failures nothing answered (T49, TD17)."""
        if self.failure is None:
            return self._completed
        fatal = (e.step_id for e in self._context.entries if e.status == "failed")
        return list(dict.fromkeys([*self._completed, *fatal]))

    @property
    def attempts(self) -> int:
        """Attempts made so far, over all steps."""
        return sum(len(r.attempts) for r in self._steps.values())

    def may_lie_on(self, host: str) -> bool:
        """Whether an attempt may have left something on a host.

        One that was cancelled and names no host never began.
        """
        attempts = (attempt for record in self._steps.values() for attempt in record.attempts)
        return any(a.host == host or (not a.host and a.status != "cancelled") for a in attempts)

    @property
    def duration_seconds(self) -> float | None:
        """Wall time from start to end; None while it runs."""
        return None if self.ended_at is None else round(self.ended_at - self.started_at, 3)

    @property
    def usage(self) -> dict[str, float]:
        """What all attempts together reported."""
        return summed([a.usage for r in self._steps.values() for a in r.attempts])

    def progress(self) -> dict[str, Any]:
        """A short state: for a line on a terminal.

        `waiting` holds the steps that wait for the delay before their next attempt or for a slot;
        `waiting_for` the latter alone, each with the name of its limit. `lease` is None for a run
        that takes none.
        """
        slots = self._slots.waiting if self._slots else {}
        return {
            "status": self.status,
            "completed": self.completed,
            "total": self.end_step,
            "running": self.running,
            "waiting": [*self._waiting, *slots],
            "waiting_for": slots,
            "lease": self._lease and self._lease.progress(),
        }

    def record(self) -> dict[str, Any]:
        """Everything about the run, as `show --json` prints it (T48)."""
        return record_of(self, self._steps, self.ended, self._lease, self._rollbacks)

    # --- Over a continue-as-new -------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a restored run needs; only while nothing runs, or is left to be sent."""
        return {
            "started_at": self.started_at,
            "epoch": self.epoch,
            "rev": self.rev,
            "failure": asdict(self.failure) if self.failure else None,
            "cancelled": self.cancelled,
            "completed": self._completed,
            "waiting": self._waiting,
            "steps": {
                s: r.to_state()
                for s, r in self._steps.items()
                if r.attempts or r.status == "waiting"
            },
            "journal": self._context.state(),
            "events": self.events,
            "slots": self._slots.state() if self._slots else None,
            "lease": self._lease.to_state() if self._lease else None,
            "rollbacks": self._rollbacks.to_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`, taken from a run of the same task and range."""
        self.started_at = state["started_at"]
        self.epoch = state["epoch"]
        self.rev = state["rev"]
        self.failure = RunFailure(**state["failure"]) if state["failure"] else None
        self.cancelled = state["cancelled"]
        self._completed = list(state["completed"])
        self._waiting = list(state["waiting"])
        for step_id, known in state["steps"].items():
            # An older version of perdure carries no `since`: epochs were those of restarts alone.
            self._steps[step_id].restore({"since": self.epoch, **known})
        self._context = RunContext.from_state(state["journal"])
        self._frontier = self._new_frontier()
        if self._lease and state.get("lease"):
            self._lease.restore(state["lease"])
        self._rollbacks.restore(state.get("rollbacks"))
        known_waiting = set(self._waiting)
        if self._slots and state.get("slots"):
            self._slots.restore(state["slots"])
            known_waiting |= {*self._slots.waiting, *self._slots.granted}
        # What a rollback takes back is ready again when that has ended.
        held = {*self._rollbacks.next}
        if current := self._rollbacks.current:
            held |= {*self._graph.span(*current.span)}
        ready = self._frontier.take_ready()
        self._waiting += [s for s in ready if s not in known_waiting | held]
        self.events = list(state["events"])

    def _new_frontier(self) -> Frontier:
        return Frontier(self._graph, self._completed, self.end_step)

    def _note(self, kind: str, now: float, **facts: Any) -> None:
        self.events.append({"seq": len(self.events) + 1, "type": kind, "at": now, **facts})

    def _note_request(self, now: float) -> None:
        if self._lease:
            names = self._lease.environments
            self._note(
                "lease.requested", now, request_id=self._lease.request_id, environments=names
            )
