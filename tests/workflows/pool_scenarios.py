"""Lives of pools whose histories are kept; the activities of their hosts are faked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from temporalio.client import Client, WorkflowHandle

from perdure.names import instance_workflow_id
from perdure.pool_messages import CountedSet, InstanceResult, PoolTimes
from tests.waiting import until
from tests.workflows.pool_kit import QUICK, Place, Task, env, place

BROKEN = InstanceResult(ok=False, reason="environment a: service web exited with 3", log=["boom"])

Play = Callable[[Place], Awaitable[None]]


async def live(client: Client, name: str, play: Play) -> WorkflowHandle[object, object]:
    """Have a pool live as `play` has it, until it has ended by itself."""
    async with place(client, _TIMES.get(name, QUICK), host=False) as here:
        await play(here)
        await here.ends()
        return here.handle


async def _usual(here: Place) -> None:
    await here.host("h")
    tasks = [await here.ask(env("a"), env("b", disable_reuse=True)) for _ in range(2)]
    for task in tasks:
        await task.hears("granted")
        await task.release()


async def _failures(here: Place) -> None:
    engine = await here.host("h")
    engine.fail["start"] = BROKEN
    task = await here.ask(env("a"))
    await task.hears("refused")
    engine.fail = {"stop": BROKEN}
    task = await here.ask(env("a", max_instances=2))
    (instance,) = (await task.hears("granted"))["instances"]
    engine.dead.add(instance["instance"])
    await task.hears("lost")
    again = await here.again(task)
    await task.release()
    await again.hears("granted")
    await again.release(a="it is odd")

    async def clings() -> bool:
        return any("exited with 3" in i["reason"] for i in (await here.view())["instances"])

    await until(clings, "the stop that failed")
    engine.fail = {}
    await here.wish("shutdown")  # else it is tried again after 30 s only


async def fails_to_reset(here: Place, task: Task, number: int, environment: str) -> None:
    """The instance of the lease cannot be reset; the one that takes its place can."""
    engine = here.engine
    engine.fail["reset"] = BROKEN
    engine.hold.add("stop")
    await task.reset(number, environment)
    await until(lambda: any(what == "stop" for what, _ in engine.calls), "its end")
    engine.fail.clear()
    engine.hold.clear()


async def _renewals(here: Place) -> None:
    await here.host("h")
    task = await here.ask(env("a"), env("b"))
    await task.hears("granted")
    await task.reset(1, "a", "b")
    await task.hears("renewed")
    await fails_to_reset(here, task, 2, "a")
    await until(lambda: hears_again(task, 2), "the answer to the second reset")
    await task.release()


async def hears_again(task: Task, count: int) -> bool:
    """Whether it heard so many renewals."""
    return sum(kind == "renewed" for kind, _ in await task.heard()) == count


async def _deaths(here: Place) -> None:
    engine = await here.host("h")
    engine.hold.add("start")
    a, b, c = [await here.ask(env("a")) for _ in range(3)]
    await here.reaches(0, 3, 1)
    await a.handle.terminate()
    engine.hold.clear()
    await b.hears("granted")
    await b.handle.terminate()
    await c.hears("granted")
    workflow_id = instance_workflow_id(here.pool, "a", 1)
    await here.client.get_workflow_handle(workflow_id).terminate()
    await c.hears("lost")
    await c.release()


async def _long(here: Place) -> None:
    await here.host("h")
    environments = [env("a", 2), env("b", 1)]
    await asyncio.gather(*(here.work_through(3, *environments[: 1 + n % 2]) for n in range(3)))


async def _host_gone(here: Place) -> None:
    task = await here.ask(env("a"))
    assert await task.waits() == "no host is there"
    first = await here.host("h1")
    await task.hears("granted")
    await here.host("h2")
    first.is_silent = True
    await task.hears("lost")
    first.is_silent = False
    await until(lambda: len(first.swept) == 2, "the sweep")
    await task.release()


async def _suites(here: Place) -> None:
    await here.host("h")
    definitions = {"a": env("a").to_json()}
    await here.declare("s", max_parallel=0, environments=definitions, coming=[CountedSet(["a"], 2)])
    a, b = [await here.ask(env("a")) for _ in range(2)]
    assert await b.waits() == "suite s is paused"
    await here.declare(
        "s", max_parallel=1, environments=definitions, prioritised=[b.holder.workflow_id]
    )
    for task in (b, a):
        await task.hears("granted")
        await task.release()
    odd = replace(a.asked, request_id=f"{a.holder.run_id}:2", environments=[{}])
    await here.leases.acquire_lease(odd)
    await a.hears("refused")
    await here.declare("s", over=True)


async def _wishes(here: Place) -> None:
    await here.declare("s")
    await here.host("h")
    await here.wish("prewarm", "a", count=1, definition=env("a").to_json())

    async def is_clean() -> bool:
        return [i["doing"] for i in (await here.view())["instances"]] == ["clean"]

    await until(is_clean, "an instance that is ready")
    for kind in ("reset", "sweep", "stop", "shutdown"):
        await here.wish(kind)


PLAYS: dict[str, Play] = {
    "pool/leases_granted_and_given_back": _usual,
    "pool/failures_and_a_shutdown": _failures,
    "pool/lease_renewed": _renewals,
    "pool/holders_and_an_instance_die": _deaths,
    "pool/continued_as_new": _long,
    "pool/host_gone_and_back": _host_gone,
    "pool/suite_paused_and_prioritised": _suites,
    "pool/what_people_ask_for": _wishes,
}

_TIMES: dict[str, PoolTimes] = {
    "pool/continued_as_new": replace(QUICK, history_limit_events=100),
    "pool/host_gone_and_back": replace(QUICK, host_away_seconds=4.0, host_gone_seconds=6.0),
}
