"""PoolWorkflow: the environments of one pool, for all suites of a server.

Tasks ask for leases and give them back by signals, sent with the start of this workflow if it is
not there; grants, refusals and losses are signals to the task. An instance is a workflow of its
own on its host's queue, which gets orders and answers them, by signals, too. What is decided is
`perdure.core.pool`; here it is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from perdure.core import pool_decisions as told
    from perdure.core.pool import Pool, PoolOptions
    from perdure.core.pool_view import stats, view
    from perdure.core.pool_wishes import CannotFulfil, fulfil
    from perdure.core.pool_words import BadWords, demand_of, request_of
    from perdure.messages import Holder, ProbeHolders
    from perdure.names import (
        DEMAND_SET,
        END_INSTANCES,
        HOST_BEAT,
        INSTANCE_ANSWERED,
        LEASE_GRANTED,
        LEASE_LOST,
        LEASE_REFUSED,
        LEASE_RELEASED,
        LEASE_RENEWED,
        LEASE_SEEN,
        POOL_WORKFLOW,
        PROBE_HOLDERS,
        REFUSED,
        REQUEST_LEASE,
        RESET_ASKED,
        SWEEP_HOST,
        WISH,
        instances_queue,
    )
    from perdure.pool_messages import (
        EndInstances,
        HostBeat,
        InstanceAnswer,
        LeaseRelease,
        LeaseRequest,
        LeaseReset,
        LeaseSeen,
        PoolInput,
        PoolWish,
        SetDemand,
        SweepCall,
    )
    from workflows.instance_orders import InstanceOrders, in_words
    from workflows.options import END, POOL_IDLE, POOL_PROBE_INTERVAL, PROBE, sweep_options
    from workflows.outbox import Outbox

News = told.Grant | told.Refuse | told.Renew | told.LoseLease

_SIGNALS: Mapping[type, str] = MappingProxyType(
    {
        told.Grant: LEASE_GRANTED,
        told.Refuse: LEASE_REFUSED,
        told.Renew: LEASE_RENEWED,
        told.LoseLease: LEASE_LOST,
    }
)


@workflow.defn(name=POOL_WORKFLOW)
class PoolWorkflow:
    """Hands out environments, keeps its instances, and takes back what dead holders had."""

    @workflow.init
    def __init__(self, start: PoolInput) -> None:
        self._start = start
        times = start.options
        self._idle = _seconds(times.idle_seconds, POOL_IDLE)
        self._interval = _seconds(times.probe_seconds, POOL_PROBE_INTERVAL)
        self._next_probe = workflow.time() + self._interval
        if start.state:
            self._pool = Pool.from_state(start.state["pool"])
            self._next_probe = start.state["next_probe"]
        else:
            self._pool = Pool(start.uuid, start.prefix, _pool_options(start))
        self._orders = InstanceOrders(self._pool, start)
        self._outbox = Outbox(self._stir)
        self._sweeps = Outbox(self._stir)
        """A sweep may take minutes; a new run begins it again."""
        self._wake_at: float | None = None
        self._idle_since: float | None = None
        self._draining = False
        self._stirred = False

    @workflow.run
    async def run(self, start: PoolInput) -> None:
        """Serve until nobody has needed anything for a minute, or people shut the pool down."""
        background = [asyncio.create_task(self._probe()), asyncio.create_task(self._alarm())]
        for host in start.state["sweeps"] if start.state else ():
            self._sweeps.write(host, partial(self._sweep, host))
        while True:
            self._draining = self._draining or self._history_is_long()
            if self._draining and self._outbox.is_empty:
                workflow.continue_as_new(self._carried_over())
            if not self._draining:  # what is decided while draining would always be in the air
                self._carry_out(self._pool.decide(workflow.time()))
                self._wake_at = self._pool.wake_at()
            self._stirred = False
            if not await self._goes_on():
                break
        for task in background:
            task.cancel()

    # --- Those who ask ----------------------------------------------------------------------

    @workflow.signal(name=REQUEST_LEASE)
    def request_lease(self, request: LeaseRequest) -> None:
        """A task asks for a lease. Told twice, it counts once."""
        try:
            self._pool.request(request_of(request), workflow.time())
        except BadWords as error:
            refusal = told.Refuse(request.request_id, request.holder, "bad_input", str(error))
            self._outbox.write(request.request_id, partial(self._tell, refusal))
        self._stir()

    @workflow.signal(name=LEASE_RELEASED)
    def lease_released(self, release: LeaseRelease) -> None:
        """A task gives a lease back, or waits for it no more. Told twice, it counts once."""
        self._pool.release(release.request_id, release.holder, workflow.time(), release.broken)
        self._stir()

    @workflow.signal(name=LEASE_SEEN)
    def lease_seen(self, seen: LeaseSeen) -> None:
        """A task has heard that it has its lease, or has lost it."""
        self._pool.acknowledge(seen.request_id, seen.holder)

    @workflow.signal(name=RESET_ASKED)
    def reset_asked(self, word: LeaseReset) -> None:
        """A task wants environments of its lease as new. Told twice, it counts once."""
        now = workflow.time()
        self._pool.renewals.ask(word.request_id, word.holder, word.number, word.environments, now)
        self._stir()

    @workflow.signal(name=DEMAND_SET)
    def demand_set(self, demand: SetDemand) -> None:
        """A suite says what it is going to need, or that it needs nothing more."""
        if demand.over:
            self._pool.needs_no_more(demand.suite, demand.holder)
        else:
            try:
                self._pool.declare(demand_of(demand))
            except BadWords as error:  # its tasks will hear of it
                workflow.logger.warning("demand of suite %s: %s", demand.suite, error)
        self._stir()

    # --- Hosts and instances ----------------------------------------------------------------

    @workflow.signal(name=HOST_BEAT)
    def host_beat(self, beat: HostBeat) -> None:
        """The worker of a host says that it is there."""
        self._pool.hear(beat, workflow.time())
        self._stir()

    @workflow.signal(name=INSTANCE_ANSWERED)
    def instance_answered(self, answer: InstanceAnswer) -> None:
        """What became of an order to an instance, or that the instance is lost."""
        if answer.pool_uuid in ("", self._start.uuid):  # not one of an earlier pool of this name
            self._pool.answer(answer, workflow.time())
            self._stir()

    # --- People -----------------------------------------------------------------------------

    @workflow.update(name=WISH)
    def wish(self, wish: PoolWish) -> str:
        """Do what people ask for; answers with a sentence for them."""
        try:
            answer = fulfil(self._pool, wish, workflow.time())
        except CannotFulfil as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        self._stir()
        return answer

    @workflow.query
    def view(self) -> dict[str, Any]:
        """Hosts, instances, leases and requests; times are seconds since 1970."""
        return {
            "pool": self._start.pool,
            "uuid": self._start.uuid,
            "at": workflow.time(),
            "next_probe": self._next_probe,
            **view(self._pool),
        }

    @workflow.query
    def stats(self) -> dict[str, Any]:
        """The pool in figures (P51)."""
        return asdict(stats(self._pool))

    @workflow.query
    def ticket(self, request_id: str) -> dict[str, Any]:
        """How it stands with a request: its `state`, and the `reason` for people."""
        return asdict(self._pool.ticket(request_id))

    # --- Carrying out -----------------------------------------------------------------------

    def _carry_out(self, decisions: Iterable[told.Decision]) -> None:
        abandoned: list[told.AbandonInstance] = []
        for decision in decisions:
            match decision:
                case told.Grant() | told.Refuse() | told.Renew() | told.LoseLease():
                    self._outbox.write(decision.request_id, partial(self._tell, decision))
                case told.SweepHost():
                    self._sweeps.write(decision.host, partial(self._sweep, decision.host))
                case told.AbandonInstance():
                    abandoned.append(decision)
                case order:
                    hand_on = partial(self._orders.hand_on, order.instance, in_words(order))
                    self._outbox.write(_line(order.instance), hand_on)
        if abandoned:
            self._outbox.write("abandoned", partial(self._end, abandoned))

    async def _tell(self, news: News) -> None:
        """Bring somebody who asked what became of it; who is closed gives it back so."""
        ticket = self._pool.ticket(news.request_id)
        if isinstance(news, told.Grant | told.Renew) and ticket.state != "granted":
            return  # given back, or lost, meanwhile
        if isinstance(news, told.Grant):
            news = replace(news, pool=self._start.pool, pool_uuid=self._start.uuid)
        # By its id alone: the task may have continued as new. A later task of the same id does not
        # know the request, and gives it back in the name of its holder.
        task = workflow.get_external_workflow_handle(news.holder.workflow_id)
        try:
            await task.signal(_SIGNALS[type(news)], news)
        except FailureError:  # it is closed
            self._pool.release(news.request_id, news.holder, workflow.time())

    async def _sweep(self, host: str) -> None:
        """Have removed what this pool left on a host: all that it does not know any more."""
        if host not in self._pool.hosts:
            return
        # Those of other hosts, too, which may share the engine or the machine.
        keep = [instance.number for instance in self._pool.instances]
        try:
            await workflow.execute_activity(
                SWEEP_HOST,
                SweepCall(self._start.pool, self._start.uuid, keep, self._pool.next_number),
                **sweep_options(instances_queue(workflow.info().task_queue, host)),
            )
        except ActivityError as error:
            # The next worker of the host causes another one.
            workflow.logger.warning("host %s could not be swept: %s", host, error.cause)

    async def _end(self, abandoned: list[told.AbandonInstance]) -> None:
        """End the workflows of instances that are gone with their host."""
        ids = [self._orders.workflow_id(gone.instance, gone.environment) for gone in abandoned]
        end = EndInstances(ids, abandoned[0].reason)
        await workflow.execute_activity(END_INSTANCES, end, **END)

    # --- Time -------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._stirred = True

    async def _goes_on(self) -> bool:
        """Wait for something to happen; False if this is the end."""
        is_busy = not self._outbox.is_empty or self._draining
        if self._pool.is_over and not is_busy:
            return False
        if not self._pool.is_idle or is_busy:
            self._idle_since = None
            await workflow.wait_condition(lambda: self._stirred)
            return True
        now = workflow.time()
        self._idle_since = now if self._idle_since is None else self._idle_since
        # Hosts go on beating; that is no reason to stay.
        left = self._idle_since + self._idle - now
        if left <= 0:
            # A signal that the server has and we have not seen makes it refuse our end: then
            # this workflow task is done again, with the signal.
            return False
        try:
            await workflow.wait_condition(
                lambda: self._stirred, timeout=left, timeout_summary="nobody is here"
            )
        except TimeoutError:
            self._stir()
        return True

    async def _alarm(self) -> None:
        """Stir when the pool wants to be asked again though nothing has happened."""
        while True:
            await workflow.wait_condition(lambda: self._wake_at is not None)
            assert self._wake_at is not None
            # A later time does not move the timer, only an earlier one: a beat puts most of them
            # off, and each timer costs two events.
            until = self._wake_at
            try:
                await workflow.wait_condition(
                    lambda: self._wake_at is not None and self._wake_at < until,  # noqa: B023
                    timeout=max(0.001, until - workflow.time()),
                    timeout_summary="look at silent hosts, and at what is to be tried again",
                )
            except TimeoutError:
                if self._wake_at is not None and self._wake_at <= workflow.time():
                    self._wake_at = None
                    self._stir()

    async def _probe(self) -> None:
        """Look from time to time whether those who hold or wait are still there, and the workflows
        of the instances."""
        while True:
            await workflow.wait_condition(lambda: not self._pool.is_idle)
            delay = timedelta(seconds=max(0.001, self._next_probe - workflow.time()))
            await workflow.sleep(delay, summary="next look at the holders")
            instances = {
                Holder(self._orders.workflow_id(i.number, i.environment), ""): i.number
                for i in self._pool.instances
                if _line(i.number) not in self._outbox.waiting  # else it may be about to be started
            }
            if asked := [*self._pool.holders, *instances]:
                gone: list[Holder] = await workflow.execute_activity(
                    PROBE_HOLDERS, ProbeHolders(asked), result_type=list[Holder], **PROBE
                )
                for holder in gone:
                    if holder in instances:
                        self._orders.ended(instances[holder])
                    else:
                        self._pool.close(holder, workflow.time())
                self._stir()
            self._next_probe = workflow.time() + self._interval

    # --- A new run --------------------------------------------------------------------------

    def _history_is_long(self) -> bool:
        info, limit = workflow.info(), self._start.options.history_limit_events
        return info.is_continue_as_new_suggested() or (
            limit is not None and info.get_current_history_length() >= limit
        )

    def _carried_over(self) -> PoolInput:
        return replace(
            self._start,
            state={
                "pool": self._pool.state(),
                "next_probe": self._next_probe,
                "sweeps": self._sweeps.waiting,
            },
        )


def _line(number: int) -> str:
    """To whom orders to an instance are written."""
    return f"instance {number}"


def _pool_options(start: PoolInput) -> PoolOptions:
    usual, times = PoolOptions(), start.options
    return PoolOptions(
        host_away_seconds=times.host_away_seconds or usual.host_away_seconds,
        host_gone_seconds=times.host_gone_seconds or usual.host_gone_seconds,
        starts_early=start.early,
        rules=start.rules,
    )


def _seconds(given: float | None, default: timedelta) -> float:
    return default.total_seconds() if given is None else given
