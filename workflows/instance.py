"""InstanceWorkflow: the life of one environment instance, on its host's queue.

It follows the newest order of its pool and answers it; a newer one ends what is under way. While
the instance is up, a watch tells when it dies. An instance whose pool is gone stops by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, TimeoutError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from perdure.core.pool_definitions import Definition
    from perdure.names import (
        ANSWER_POOL,
        CHECK_INSTANCE,
        INSTANCE_ANSWERED,
        INSTANCE_WORKFLOW,
        ORDER,
        PREPARE_ENVIRONMENT,
        RESET_INSTANCE,
        START_INSTANCE,
        STOP_INSTANCE,
        WATCH_INSTANCE,
    )
    from perdure.pool_messages import (
        AnswerCall,
        AnswerKind,
        InstanceAnswer,
        InstanceCall,
        InstanceInput,
        InstanceOrder,
        InstanceResult,
    )
    from workflows.options import (
        ANSWER_AGAIN,
        CHECK,
        LOCAL_WORD,
        STOP,
        STOP_AGAIN,
        WATCH,
        prepare_options,
        reset_options,
        start_options,
    )
    from workflows.shield import heed_cancel, uncancelled

_ANSWERS: Mapping[str, tuple[AnswerKind, AnswerKind]] = MappingProxyType(
    {
        "start": ("started", "start_failed"),
        "reset": ("reset_done", "reset_failed"),
        "check": ("healthy", "unhealthy"),
        "stop": ("stopped", "stop_failed"),
    }
)


@workflow.defn(name=INSTANCE_WORKFLOW)
class InstanceWorkflow:
    """One instance, from the order to start it until it is gone without a trace."""

    @workflow.init
    def __init__(self, start: InstanceInput) -> None:
        state = start.state or {}
        self._start = start
        self._definition = Definition.from_json(start.definition)
        self._newest = InstanceOrder(**state["newest"]) if state else start.order
        self._followed = state.get("followed", 0)
        """The number of the newest order that is under way, or answered."""
        self._answer = InstanceAnswer(**state["answer"]) if state.get("answer") else None
        """To the newest order, once there is one."""
        self._ports: dict[str, int] = state.get("ports", {})
        self._is_up: bool = state.get("is_up", False)
        self._watch: asyncio.Task[InstanceResult] | None = None
        self._say_again = False
        self._is_doing = "waits for its first order"

    @workflow.run
    async def run(self, start: InstanceInput) -> None:
        """Follow orders until the instance was stopped."""
        try:
            while await self._goes_on():
                pass
        except asyncio.CancelledError:
            # By people: the pool would order a stop, and wait for an answer.
            await uncancelled(self._end("its workflow was cancelled"))
            raise

    @workflow.signal(name=ORDER)
    def order(self, order: InstanceOrder) -> None:
        """An order of the pool. Told twice, it is followed once and answered again."""
        if self._newest is None or order.order > self._newest.order:
            self._newest = order
        elif self._answer and order.order == self._answer.order:
            self._say_again = True

    @workflow.query
    def instance(self) -> dict[str, Any]:
        """What it is and what it does."""
        return {
            "pool": self._start.pool,
            "environment": self._start.environment,
            "number": self._start.number,
            "project": self._start.project,
            "ports": self._ports,
            "is_up": self._is_up,
            "is_doing": self._is_doing,
            "newest_order": self._newest and asdict(self._newest),
            "answer": self._answer and asdict(self._answer),
        }

    # --- What happens -----------------------------------------------------------------------

    async def _goes_on(self) -> bool:
        """Wait for one thing to happen and deal with it; False: this is the end."""
        if self._must_follow:
            return await self._follow()
        if self._say_again:
            self._say_again = False
            return await self._has_heard()
        if self._history_is_long():
            await self._watch_ends()
            await heed_cancel()
            if not self._must_follow and not self._say_again:
                workflow.continue_as_new(self._carried_over())
            return True
        self._watch_over()
        if not await self._stirs():
            return await self._has_heard()
        if self._watch and self._watch.done() and not self._must_follow:
            watch, self._watch = self._watch, None
            return watch.cancelled() or await self._died(watch.result())
        return True

    @property
    def _must_follow(self) -> bool:
        return self._newest is not None and self._newest.order > self._followed

    async def _stirs(self) -> bool:
        """Wait for an order, or for the death of the instance; False if nothing comes."""
        watch = self._watch
        try:
            await workflow.wait_condition(
                lambda: (
                    self._must_follow or self._say_again or (watch is not None and watch.done())
                ),
                # A watch looks after the pool, too.
                timeout=None if watch else ANSWER_AGAIN,
                timeout_summary="is the pool still there?",
            )
        except asyncio.TimeoutError:  # noqa: UP041
            return False
        return True

    async def _follow(self) -> bool:
        """Follow the newest order; a newer one, which comes meanwhile, ends that."""
        order = self._newest
        assert order is not None
        self._followed, self._answer, self._say_again = order.order, None, False
        self._is_doing = order.kind
        work = asyncio.create_task(self._obey(order))
        try:
            await workflow.wait_condition(lambda: work.done() or self._must_follow)
        finally:
            work.cancel()
            # Two must never be at work on one instance: what was ended has let go of it.
            await uncancelled(_settled(work))
        if self._must_follow:
            return True
        self._is_doing = f"has followed its order: {order.kind}"
        result = InstanceResult(False, "it was cancelled") if work.cancelled() else work.result()
        self._is_up = result.ok and order.kind != "stop"
        self._answer = self._answer_to(order, result)
        was_heard = await self._has_heard()
        return was_heard and self._answer.kind != "stopped"

    async def _obey(self, order: InstanceOrder) -> InstanceResult:
        definition = self._definition
        if order.kind == "start":
            self._ports = dict(order.ports)
            if not definition.environment.process:  # there is nothing to prepare for a process
                prepared = await self._call(PREPARE_ENVIRONMENT, prepare_options(definition))
                if not prepared.ok:
                    return prepared
            options = start_options(definition, reset=order.reset)
            return await self._call(START_INSTANCE, options, order)
        if order.kind == "reset":
            result = await self._call(RESET_INSTANCE, reset_options(definition))
            if self._watch and self._watch.done():
                self._watch = None  # a reset may take parts of it down and up again
            return result
        if order.kind == "check":
            try:
                looked: InstanceResult = await workflow.execute_local_activity(
                    CHECK_INSTANCE, self._instance(), result_type=InstanceResult, **CHECK
                )
                return looked
            except ActivityError as error:
                return _failed(error)
        await self._watch_ends()
        return await self._call(STOP_INSTANCE, STOP)

    async def _died(self, result: InstanceResult) -> bool:
        """The watch is over: the instance is dead, or its pool gone."""
        self._is_up = False
        if result.ok:
            await self._stop_alone()
            return False
        self._is_doing = "is dead and waits for the order to stop"
        newest = self._newest.order if self._newest else 0
        self._answer = self._told("lost", newest, result)
        return await self._has_heard()

    # --- The pool ---------------------------------------------------------------------------

    async def _has_heard(self) -> bool:
        """Tell the pool the newest answer; False if there is none to hear it, and all is over."""
        if self._answer is None:
            # Never an order: nothing was started, and an order that comes now meets nobody.
            return False
        if await self._is_told(self._answer):
            return True
        if self._answer.kind != "stopped":
            await self._stop_alone()
        return False

    async def _is_told(self, answer: InstanceAnswer) -> bool:
        """Send the pool an answer; False: it is gone. By its id alone: it may have continued as
        new."""
        start = self._start
        if start.local_words:  # one event, in place of three and another workflow task
            is_told: bool = await workflow.execute_local_activity(
                ANSWER_POOL, AnswerCall(start.pool, answer), result_type=bool, **LOCAL_WORD
            )
            return is_told
        pool = workflow.get_external_workflow_handle(start.pool_workflow_id)
        try:
            await pool.signal(INSTANCE_ANSWERED, answer)
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            return False
        return True

    async def _stop_alone(self) -> None:
        """Stop without an order: nobody will give one."""
        self._is_doing = "stops, since its pool is gone"
        await self._watch_ends()
        for pause in STOP_AGAIN:
            if (await self._call(STOP_INSTANCE, STOP)).ok:
                return
            await workflow.sleep(pause, summary="before the next try to stop")
        # What is left has the labels of its pool, and `perdure pool sweep --foreign` finds it.
        workflow.logger.error("instance %s could not be stopped", self._start.project)

    async def _end(self, reason: str) -> None:
        """Stop, and tell the pool that there is no such instance any more."""
        await self._watch_ends()
        result = await self._call(STOP_INSTANCE, STOP)
        newest = self._newest
        number = newest.order if newest else 0
        lost = InstanceResult(ok=False, reason=f"environment {self._start.environment}: {reason}")
        self._answer = self._told("lost", number, lost)
        if result.ok and newest and newest.kind == "stop":
            self._answer = self._told("stopped", number, result)
        await self._has_heard()

    def _answer_to(self, order: InstanceOrder, result: InstanceResult) -> InstanceAnswer:
        good, bad = _ANSWERS[order.kind]
        kind = good if result.ok else bad
        if result.taken_ports and order.kind == "start":
            kind = "ports_taken"
        return self._told(kind, order.order, result, was_reset=order.reset and result.ok)

    def _told(
        self, kind: AnswerKind, order: int, result: InstanceResult, *, was_reset: bool = False
    ) -> InstanceAnswer:
        return InstanceAnswer(
            instance=self._start.number,
            order=order,
            kind=kind,
            reason=result.reason,
            log=result.log,
            is_final=result.is_final,
            is_crowded=result.is_crowded,
            ports=result.taken_ports,
            at_start=result.at_start,
            pool_uuid=self._start.pool_uuid,
            was_reset=was_reset,
        )

    # --- Activities -------------------------------------------------------------------------

    async def _call(
        self, name: str, options: workflow.ActivityConfig, start: InstanceOrder | None = None
    ) -> InstanceResult:
        call = self._instance()
        if start:
            call = replace(call, reset=start.reset, task=start.task)
        try:
            result: InstanceResult = await workflow.execute_activity(
                name, call, result_type=InstanceResult, **options
            )
            return result
        except ActivityError as error:
            return _failed(error)

    def _instance(self) -> InstanceCall:
        start = self._start
        return InstanceCall(
            pool=start.pool,
            pool_uuid=start.pool_uuid,
            number=start.number,
            environment=start.environment,
            project=start.project,
            definition=start.definition,
            ports=self._ports,
            pool_run_id=start.pool_run_id,
        )

    def _watch_over(self) -> None:
        if self._is_up and self._watch is None:
            self._watch = asyncio.create_task(self._call(WATCH_INSTANCE, WATCH))

    async def _watch_ends(self) -> None:
        if self._watch:
            self._watch.cancel()
            await _settled(self._watch)
            self._watch = None

    # --- A new run --------------------------------------------------------------------------

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> InstanceInput:
        return replace(
            self._start,
            state={
                "newest": self._newest and asdict(self._newest),
                "followed": self._followed,
                "answer": self._answer and asdict(self._answer),
                "ports": self._ports,
                "is_up": self._is_up,
            },
        )


async def _settled(task: asyncio.Task[InstanceResult]) -> None:
    """Wait until the task is done, however it ends."""
    await asyncio.wait({task})


def _failed(error: ActivityError) -> InstanceResult:
    """Activities answer with results; this one could not, however often it was tried.

    Raises CancelledError if it was cancelled.
    """
    if is_cancelled_exception(error):
        raise asyncio.CancelledError from error
    cause = error.cause or error
    why = "its worker was lost again and again" if isinstance(cause, TimeoutError) else str(cause)
    return InstanceResult(ok=False, reason=f"activity {error.activity_type}: {why}")
