"""SuiteWorkflow: any number of tasks, `max_parallel` at once, in a bounded history.

It may continue as new while its tasks run, so they are started with the policy ABANDON. The run of
the suite that started a task hears of its end by the child's handle, whatever that end is; to a
later run the task sends the signal `trial_ended`, and a probe looks after those that cannot
(terminated by hand, or ended in the moment of the continue-as-new).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from temporalio import workflow
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from perdure.core.suite import Suite, Trial
    from perdure.messages import (
        ClosedTrial,
        ProbeTrials,
        ProgressRequest,
        SuiteInput,
        SuiteProgress,
        SuiteResult,
        TaskInput,
        TrialSummary,
        WriteSuite,
    )
    from perdure.names import (
        PROBE_TRIALS,
        SUITE_WORKFLOW,
        TASK_WORKFLOW,
        WRITE_SUITE,
        control_queue,
        task_workflow_id,
    )
    from perdure.payloads import adapter
    from perdure.search_attributes import attributes_of
    from perdure.workflow_task import workflow_task_timeout
    from workflows.options import FIRST_PROBE, PROBE, PROBE_INTERVAL, START_TRIAL_AGAIN, WRITE
    from workflows.shield import uncancelled

STARTS_AT_ONCE = 25
"""Starts under way: each carries a document of up to 128 KiB, and a message holds 4 MB."""


@workflow.defn(name=SUITE_WORKFLOW)
class SuiteWorkflow:
    """Runs the tasks of a suite, each as a workflow of its own."""

    @workflow.init
    def __init__(self, start: SuiteInput) -> None:
        self._start = start
        self._suite = Suite(
            start.suite,
            start.tasks,
            max_parallel=start.max_parallel,
            digest=start.digest,
            finished=start.finished,
            workflow_id=task_workflow_id,
        )
        self._started_at = workflow.time()
        self._starting: set[str] = set()
        self._stirred = False
        if start.state:
            self._suite.restore(start.state["suite"])
            self._started_at = start.state["started_at"]
        self._inherited = self._suite.running
        """Trials that an earlier run of this suite started; this one has no handle of them."""

    @workflow.run
    async def run(self, start: SuiteInput) -> SuiteResult:
        """Run every task; failed ones are counted, they do not fail the suite."""
        probe = asyncio.create_task(self._probe())
        try:
            if start.state is None:
                await self._write("running")
            await self._drive()
        except asyncio.CancelledError:
            self._suite.cancel()
            await self._cancel_running()
        probe.cancel()
        suite = self._suite
        status = "cancelled" if suite.cancelled else "failed" if suite.count("failed") else None
        await uncancelled(self._write(status or "succeeded"))
        if suite.cancelled:
            raise asyncio.CancelledError("the suite was cancelled")
        progress = suite.progress(ProgressRequest(offset=len(suite.ended)))
        return SuiteResult(
            suite=start.suite,
            total=progress.total,
            succeeded=progress.succeeded,
            failed=progress.failed,
            cancelled=progress.cancelled,
        )

    @workflow.signal
    def trial_ended(self, summary: TrialSummary) -> None:
        """A task tells its end; told twice, it counts once."""
        self._suite.hear(summary)
        self._stirred = True

    @workflow.query
    def progress(self, request: ProgressRequest) -> SuiteProgress:
        """Totals, what runs, and what ended since the asker last looked."""
        return self._suite.progress(request)

    # --- Driving ----------------------------------------------------------------------------

    async def _drive(self) -> None:
        handing_over = False
        while not self._suite.over:
            handing_over = handing_over or self._history_is_long()
            if handing_over and not self._starting:
                workflow.continue_as_new(self._carried_over())
            if not handing_over:
                free = STARTS_AT_ONCE - len(self._starting)
                for trial in self._suite.take_startable(free):
                    self._starting.add(trial.workflow_id)
                    # Kept alive by the start that it awaits.
                    asyncio.create_task(self._begin(trial))  # noqa: RUF006
            self._stirred = False
            await workflow.wait_condition(lambda: self._stirred or self._suite.over)

    async def _begin(self, trial: Trial) -> None:
        name = trial.workflow_id
        try:
            handle = await self._start_child(trial)
        except ApplicationError as error:
            self._suite.lose(name, f"could not be started: {error.message}")
        else:
            if handle is None:
                self._suite.lose(name, "cancelled before it could start", cancelled=True)
            else:
                self._suite.started(name, handle.first_execution_run_id or "")
                asyncio.create_task(self._watch(name, handle))  # noqa: RUF006
        self._starting.discard(name)
        self._stirred = True

    async def _start_child(
        self, trial: Trial
    ) -> workflow.ChildWorkflowHandle[object, TrialSummary] | None:
        """Start a trial; None if the suite is cancelled meanwhile.

        Its id may still be held by a task of an earlier, terminated run of the suite: that one is
        cancelled, and the start tried again until it has cleaned up.
        """
        task = self._start.tasks[trial.index]
        options = self._start.options
        while not self._suite.cancelled:
            try:
                return await workflow.start_child_workflow(
                    TASK_WORKFLOW,
                    TaskInput(
                        task=task.task,
                        suite=self._start.suite,
                        trial=trial.trial,
                        index=trial.index,
                        digest=task.digest,
                        seed=task.seed,
                        options=options,
                        folder=task.folder,
                        suite_workflow_id=workflow.info().workflow_id,
                    ),
                    id=trial.workflow_id,
                    result_type=TrialSummary,
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                    search_attributes=attributes_of(
                        "task", self._start.suite, trial.task_id, known=options.search_attributes
                    ),
                    static_summary=f"{trial.task_id} · trial {trial.trial}",
                    task_timeout=workflow_task_timeout(task.task),
                )
            except WorkflowAlreadyStartedError:
                with contextlib.suppress(ApplicationError):  # it has just ended by itself
                    await workflow.get_external_workflow_handle(trial.workflow_id).cancel()
                await workflow.sleep(START_TRIAL_AGAIN)
        return None

    async def _watch(
        self, name: str, handle: workflow.ChildWorkflowHandle[object, TrialSummary]
    ) -> None:
        try:
            self._suite.hear(await handle)
        except ChildWorkflowError as error:
            cause = error.cause
            if isinstance(cause, ApplicationError) and cause.details:
                self._suite.hear(adapter(TrialSummary).validate_python(cause.details[0]))
            else:
                self._suite.lose(
                    name,
                    str(cause) if cause else "closed without a reason",
                    cancelled=isinstance(cause, CancelledError),
                )
        self._stirred = True

    async def _cancel_running(self) -> None:
        """Cancel every task under way and wait until each has cleaned up and told its end."""
        await workflow.wait_condition(lambda: not self._starting)
        cancels = [
            workflow.get_external_workflow_handle(name).cancel() for name in self._suite.running
        ]
        # A task that closed in between cannot be cancelled, and need not be.
        await asyncio.gather(*cancels, return_exceptions=True)
        await workflow.wait_condition(lambda: self._suite.over)

    async def _probe(self) -> None:
        """Look after the tasks that an earlier run of this suite started, until they ended."""
        interval = FIRST_PROBE
        while unheard := [n for n in self._inherited if n in self._suite.running]:
            await workflow.sleep(interval, summary="next look at running tasks")
            on_control = PROBE | {"task_queue": control_queue(workflow.info().task_queue)}
            closed: list[ClosedTrial] = await workflow.execute_activity(
                PROBE_TRIALS,
                ProbeTrials(unheard, workflow.info().workflow_id),
                result_type=list[ClosedTrial],
                **on_control,
            )
            for trial in closed:
                self._suite.found_closed(trial)
            self._stirred = True
            interval = PROBE_INTERVAL

    # --- Handing over, writing down ---------------------------------------------------------

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.options.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> SuiteInput:
        return replace(
            self._start,
            finished=[],
            state={"suite": self._suite.state(), "started_at": self._started_at},
        )

    async def _write(self, status: str) -> None:
        start = self._start
        await workflow.execute_local_activity(
            WRITE_SUITE,
            WriteSuite(
                suite=start.suite,
                run_id=workflow.info().first_execution_run_id,
                digest=start.digest,
                status=status,  # type: ignore[arg-type]
                tasks=[
                    {
                        "id": task.task["id"],
                        "index": index,
                        "digest": task.digest,
                        "repeats": task.repeats,
                    }
                    for index, task in enumerate(start.tasks)
                ],
                started_at=self._started_at,
                results_dir=start.options.results_dir,
                trials=self._suite.ended,
            ),
            result_type=type(None),
            **WRITE,
        )
