"""Activities under their registered names that play a script instead of touching the world.

A step of a test's document says what its attempts do: `{"id": "a", "type": "fake", "play": ["fail",
"ok"]}`; the last word counts for all further attempts. With `runs` in place of `play`, a word says
what a whole run of the trial does; with `by_trial`, what each trial does. `cost` is what an attempt
used. `undo` says in the same way what becomes of the tries to undo it, over all its attempts.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities.binding import Binding
from activities.contexts import Contexts
from activities.limits import Slots
from activities.results import Results
from perdure.messages import (
    CarriedWork,
    CarryWork,
    CompensateStep,
    CompensationOutcome,
    ContextDiffs,
    ContextRequest,
    FailureKind,
    FinishTask,
    LimitOptions,
    PoolUse,
    StepFailure,
    StepOutcome,
    StepTask,
    SuiteInput,
    SuiteTask,
    TaskInput,
    TaskOptions,
    TrialSummary,
    WriteMissing,
    WriteSuite,
)
from perdure.names import (
    CARRY_WORK,
    COMPENSATE_STEP,
    FINISH_TASK,
    RUN_STEP,
    WORKER_SHUTDOWN,
    WRITE_MISSING,
    WRITE_SUITE,
    control_queue,
    jobs_queue,
    shared_queue,
    suite_workflow_id,
    task_workflow_id,
)
from perdure.sandbox import sandbox
from tests.workflows.fake_jobs import FakeJobs
from worker import BEAT_THROTTLE, SHARED_WORKFLOWS, STICKY_TIMEOUT, WORKFLOWS


@dataclass
class World:
    """What the fakes were asked to do."""

    client: Client
    queue: str
    started: list[tuple[str, str, int]] = field(default_factory=list)
    """Task, step, attempt, in order."""
    steps: list[StepTask] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    finished: list[FinishTask] = field(default_factory=list)
    suites: list[WriteSuite] = field(default_factory=list)
    mute: set[str] = field(default_factory=set)
    """Tasks that send their suite no signal."""
    no_room_for: set[str] = field(default_factory=set)
    """Tasks whose records cannot be written."""
    missing: list[WriteMissing] = field(default_factory=list)
    host: str = "here"
    """Where steps run."""
    open: bool = False
    """Whether steps that play `hold` may end."""
    deaf: bool = False
    """Whether they take no notice of a cancel."""
    shared: str = ""
    """Where the workflows of limits run; by default on a queue of this world's own."""
    limits: LimitOptions = field(default_factory=LimitOptions)
    undone: list[CompensateStep] = field(default_factory=list)
    """Every try to undo an attempt, in order."""
    log: list[str] = field(default_factory=list)
    """What happened to the world: `do a.1`, `undo a.1`."""
    carried: list[CarryWork] = field(default_factory=list)
    """Every try to bring a run an earlier one's files."""
    files: str = "ok"
    """Whether they can be had: `ok` or `gone`; `hold`: not before the world is open."""
    job_slots: int = 32
    """Jobs at once."""
    pool: list[Callable[..., Any]] = field(default_factory=list)
    """Activities by which tasks talk to a pool (`tests.workflows.fake_pool`)."""

    def __post_init__(self) -> None:
        # Telling and probing touch nothing but the server: they are the real ones.
        nowhere = Path("/nonexistent")
        self.results = Results(self.client, nowhere, nowhere, Contexts(self.client))
        self.shared = self.shared or shared_queue(self.queue)
        self.slots = Slots(self.client, self.shared, self.limits)
        self.jobs = FakeJobs(self.client)
        self.jobs.log = self.log

    def attempts(self, step_id: str) -> int:
        """How often a step was started, over all tasks."""
        return sum(1 for _, step, _ in self.started if step == step_id)

    @activity.defn(name=RUN_STEP)
    async def run_step(self, task: StepTask) -> StepOutcome:
        self.started.append((task.run.task_id, task.step["id"], task.attempt))
        self.steps.append(task)
        self.log.append(f"do {task.step['id']}.{task.attempt}")
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._play(task)
        finally:
            self.running -= 1

    async def _play(self, task: StepTask) -> StepOutcome:
        step = task.step
        script = step.get("play", ["ok"])
        turn = task.attempt
        if "runs" in step:
            again = (task.run.workflow_id, step["id"])
            script = step["runs"]
            turn = sum(1 for s in self.steps if (s.run.workflow_id, s.step["id"]) == again)
        if "by_trial" in step:
            script, turn = step["by_trial"], task.run.trial
        word = script[min(turn, len(script)) - 1]
        usage = {"cost": step["cost"]} if "cost" in step else {}
        value = {
            "attempt": task.attempt,
            **({"text": "x" * step["size"]} if "size" in step else {}),
        }
        ops = [{"op": "set", "path": ["results", step["id"]], "value": value}]
        if word == "hold fail":
            while not self.open:
                activity.heartbeat(StepOutcome("failed", ops, host="here"))
                await asyncio.sleep(0.05)
            word = "fail"
        if word == "ok":
            return StepOutcome("succeeded", ops, host=self.host, usage=usage)
        if word in ("fail", "infra"):
            kind: FailureKind = "infrastructure" if word == "infra" else "task"
            failure = StepFailure("asked to fail", type=step.get("error", "Asked"), kind=kind)
            outcome = StepOutcome("failed", ops, failure=failure, host=self.host, usage=usage)
            raise ApplicationError("asked to fail", outcome, type="Asked", non_retryable=True)
        if word == "orphaned":  # its instance was found dead
            lost = {i.environment: f"{i.environment} is dead" for i in task.instances}
            failure = StepFailure("nobody answers", kind="environment")
            outcome = StepOutcome("failed", ops, failure=failure, host=self.host, lost=lost)
            raise ApplicationError("nobody answers", outcome, type="Asked", non_retryable=True)
        if word == "shutdown":
            raise ApplicationError("stopping", type=WORKER_SHUTDOWN, non_retryable=True)
        if word == "lose":
            activity.heartbeat(StepOutcome("failed", ops, host=self.host))
            await asyncio.sleep(3600)
        while word == "read late" and not self.open:
            activity.heartbeat(StepOutcome("failed", ops, host="here"))
            await asyncio.sleep(0.05)
        if word in ("read", "read late"):
            asked = ContextRequest(task.epoch, have=-1, want=task.version)
            handle = self.client.get_workflow_handle(task.run.workflow_id)
            answer = await handle.query("context_diffs", asked, result_type=ContextDiffs)
            ops[0]["value"]["diffs"] = len(answer.diffs)
            return StepOutcome("succeeded", ops, host=self.host)
        assert word in ("hang", "hold"), word
        while word == "hang" or not self.open:
            try:
                activity.heartbeat(StepOutcome("failed", ops, host=self.host))
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                if not self.deaf:
                    return StepOutcome("cancelled", ops, host=self.host)
        return StepOutcome("succeeded", ops, host=self.host)

    @activity.defn(name=COMPENSATE_STEP)
    async def compensate_step(self, asked: CompensateStep) -> CompensationOutcome:
        script = asked.step.get("undo", ["ok"])
        self.undone.append(asked)
        turn = sum(1 for before in self.undone if before.step["id"] == asked.step["id"])
        word = script[min(turn, len(script)) - 1]
        self.log.append(f"undo {asked.step['id']}.{asked.attempt}")
        if word in ("fail", "give up"):
            failure = StepFailure("cannot be undone", type="Stuck", retryable=word == "fail")
            raise ApplicationError(
                failure.message, failure, type="Stuck", non_retryable=word == "give up"
            )
        if word == "lose":
            await asyncio.sleep(3600)
        while word == "hold" and not self.open:
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return CompensationOutcome("here")

    @activity.defn(name=CARRY_WORK)
    async def carry_work(self, asked: CarryWork) -> CarriedWork:
        self.carried.append(asked)
        self.log.append("carry")
        while self.files == "hold" and not self.open:
            activity.heartbeat()
            await asyncio.sleep(0.05)
        if self.files == "gone":
            return CarriedWork(found=False, host=self.host, reason="they are on there")
        return CarriedWork(found=True, host=self.host, files=2)

    @activity.defn(name=FINISH_TASK)
    async def finish_task(self, end: FinishTask) -> TrialSummary:
        self.finished.append(end)
        summary = end.summary
        if end.run.task_id in self.no_room_for:
            summary = replace(summary, unwritten=True, note="no room")
        if end.run.task_id not in self.mute and end.suite_workflow_id:
            await self.results._tell(end.suite_workflow_id, end.suite_run_id, summary)
        if summary.withdrawn:
            await self.results.cancel_withdrawn(end.run)
        return summary

    @activity.defn(name=WRITE_MISSING)
    async def write_missing(self, asked: WriteMissing) -> list[TrialSummary]:
        self.missing.append(asked)
        still = [trial for trial in asked.trials if trial.task_id in self.no_room_for]
        return [replace(trial, note="still no room") for trial in still]

    @activity.defn(name=WRITE_SUITE)
    async def write_suite(self, suite: WriteSuite) -> None:
        self.suites.append(suite)

    # --- Starting things --------------------------------------------------------------------

    async def start_task(
        self,
        *steps: dict[str, Any],
        options: TaskOptions | None = None,
        use: PoolUse | None = None,
        definitions: Sequence[dict[str, Any]] = (),
        **document: Any,
    ) -> WorkflowHandle[Any, TrialSummary]:
        """Start a task of these steps under an id of its own.

        `use`: where it takes a lease of the environments of these `definitions`.
        """
        suite = f"s{uuid.uuid4().hex[:8]}"
        return await self.client.start_workflow(
            "TaskWorkflow",
            TaskInput(
                task=task_document("t", *steps, **document),
                suite=suite,
                options=options or TaskOptions(),
                pool=use,
                environments=[*definitions],
            ),
            id=task_workflow_id(suite, "t", 1),
            task_queue=self.queue,
            result_type=TrialSummary,
        )

    async def start_suite(
        self,
        tasks: list[dict[str, Any]],
        *,
        suite: str | None = None,
        repeats: int = 1,
        **more: Any,
    ) -> WorkflowHandle[Any, Any]:
        """Start a suite of these task documents under an id of its own."""
        suite = suite or f"s{uuid.uuid4().hex[:8]}"
        return await self.client.start_workflow(
            "SuiteWorkflow",
            SuiteInput(suite, [SuiteTask(t, "digest", repeats=repeats) for t in tasks], **more),
            id=suite_workflow_id(suite),
            task_queue=self.queue,
        )


def task_document(id: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A task of fake steps."""
    return {"id": id, "steps": [{"type": "fake", **step} for step in steps], **more}


@asynccontextmanager
async def world(client: Client, **settings: Any) -> AsyncIterator[World]:
    """A worker of the real workflows and the fake activities, on a queue of its own."""
    made = World(client, **{"queue": f"q-{uuid.uuid4().hex[:8]}", **settings})
    async with (
        Worker(
            client,
            task_queue=made.queue,
            workflows=WORKFLOWS,
            activities=[
                made.run_step,
                made.finish_task,
                made.write_suite,
                made.write_missing,
                Binding(made.host).bind_host,
                made.carry_work,
                *made.pool,
            ],
            workflow_runner=sandbox(),
            max_heartbeat_throttle_interval=BEAT_THROTTLE,
            default_heartbeat_throttle_interval=BEAT_THROTTLE,
        ),
        Worker(
            client,
            task_queue=control_queue(made.queue),
            activities=[
                made.results.probe_trials,
                made.slots.ask_slot,
                made.slots.release_slot,
                made.slots.remind_limits,
                made.compensate_step,
                made.jobs.interrupt_job,
                made.jobs.stop_jobs,
                *made.pool,
            ],
        ),
        Worker(
            client,
            task_queue=jobs_queue(made.queue, None),
            activities=[made.jobs.run_job],
            max_heartbeat_throttle_interval=BEAT_THROTTLE,
            default_heartbeat_throttle_interval=BEAT_THROTTLE,
            max_concurrent_activities=made.job_slots,
        ),
        Worker(
            client,
            task_queue=made.shared,
            workflows=SHARED_WORKFLOWS,
            activities=[made.slots.probe_holders],
            workflow_runner=sandbox(),
            sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
        ),
    ):
        try:
            yield made
        finally:  # a step that heeds nothing would hold up the workers' end for ever
            made.deaf, made.open = False, True
