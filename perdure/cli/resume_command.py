"""`perdure retry RUN --from-step ID`: one task again, from one of its steps on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from typing import Any

from perdure.cli.clearing import left_lines, of_suite, until_gone
from perdure.cli.console import emit, emit_json, printable, say
from perdure.cli.events_command import event_line
from perdure.cli.reading import Named, server_to_act
from perdure.cli.session import without
from perdure.cli.show_command import recorded_run, show_run
from perdure.cli.signals import LEAVING, Asked, asked_to_end
from perdure.cli.tables import totals_line
from perdure.client import Perdure, TaskFailed, TaskHandle
from perdure.config import Settings
from perdure.event_log import find_execution
from perdure.names import suite_workflow_id
from perdure.outcome import trials_of
from perdure.suite_input import suite_queue
from perdure.workers import WorkerConfig

SUCCEEDED, FAILED, INTERRUPTED = 0, 1, 130

LAST_EVENTS_SECONDS = 5.0
LIST_SECONDS = 0.2


async def resume_run(
    wanted: Named, from_step: str, worker: WorkerConfig, *, detach: bool, json: bool
) -> int:
    """Run a task from a step on to its end, or leave it to a worker; returns the exit status.

    Raises PerdureError for what stands in the way.
    """
    leave = asyncio.Event()
    cleared = asyncio.Event()

    def insist(number: signal.Signals) -> None:
        if cleared.is_set():
            leave.set()
            return
        say(f"left at once; go on with: {_command()}")
        os._exit(INTERRUPTED)

    async with (
        asked_to_end(
            insist, asking=(signal.SIGINT,), insisting=(*LEAVING, signal.SIGQUIT)
        ) as asked,
        server_to_act(Settings.from_env(), "retry") as perdure,
    ):
        run = f"{wanted.suite}/{wanted.task_id}/{wanted.trial}"
        handle = await perdure.retry_task(run, from_step, worker=worker, say=say)
        if detach:
            return await _detach(perdure, handle, wanted, json=json)
        following = asyncio.create_task(_follow(handle))
        first = asyncio.create_task(asked.event.wait())
        await asyncio.wait({following, first}, return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        if not following.done():
            say("cancelling; cleaning up (Ctrl-C again leaves at once)")
            await handle.cancel("Ctrl-C")
        record = await following
        cleared.set()
        leaving = asyncio.create_task(_leave_when_asked(asked, leave))
        await _clear(perdure, record, leave)
        leaving.cancel()
        await _tell_end(perdure, wanted, record, json=json)
        if record["status"] != "succeeded":
            say(f"again with: {_command()}")
        if asked.event.is_set():
            return INTERRUPTED
    return SUCCEEDED if record["status"] == "succeeded" else FAILED


async def _follow(handle: TaskHandle) -> dict[str, Any]:
    """Tell what happens to the run's end; its record."""

    async def tell() -> None:
        async for event in handle.events():
            say(event_line(event))

    telling = asyncio.create_task(tell())
    try:
        record = (await handle.result()).record
    except TaskFailed as failed:
        record = failed.record
    finally:
        await asyncio.wait({telling}, timeout=LAST_EVENTS_SECONDS)
        telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    return record


async def _detach(perdure: Perdure, handle: TaskHandle, wanted: Named, *, json: bool) -> int:
    perdure.detach(suite_queue(perdure.settings.queue, wanted.suite))
    if json:
        emit_json(await handle.record())
    else:
        emit(f"run {wanted}  run id {handle.run_id}  workflow {handle.id}")
    say(f"it goes on by itself; follow it with: perdure events {wanted} --follow")
    say(f"stop it with: perdure cancel {wanted}")
    return SUCCEEDED


async def _clear(perdure: Perdure, record: dict[str, Any], leave: asyncio.Event) -> None:
    """See out what the run leaves in its pool, if it is this process's worker that stops it."""
    lease, suite = record["lease"], record["suite"]
    queue = suite_queue(perdure.settings.queue, suite)
    if not lease or not perdure.looks_after(queue) or perdure.is_served_by_others(queue):
        return
    find = of_suite(suite, record["environments"])
    left = await until_gone(perdure.pool(lease["pool"]).view, find, say, leave=leave)
    for line in left_lines(left, lease["pool"]):
        say(line)


async def _leave_when_asked(asked: Asked, leave: asyncio.Event) -> None:
    """The first Ctrl-C that comes when the run is over: there is nothing to cancel."""
    if not asked.event.is_set():  # else this takes another one
        await asked.event.wait()
        leave.set()


async def _tell_end(perdure: Perdure, wanted: Named, record: dict[str, Any], *, json: bool) -> None:
    if json:
        emit_json(record)
        return
    _, files = await recorded_run(perdure, wanted)
    show_run(record, files)
    if told := await _suite_line(perdure, record):
        emit("")
        emit(told)


async def _suite_line(perdure: Perdure, record: dict[str, Any]) -> str | None:
    """What the suite comes to with this run; None: it is of none."""
    if await find_execution(perdure.client, suite_workflow_id(record["suite"])) is None:
        return None
    suite = await perdure.suite(record["suite"])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_EVENTS_SECONDS):  # the server's list may lag
            while True:
                document = await suite.outcome()
                if any(trial["run_id"] == record["run_id"] for _, trial in trials_of(document)):
                    return f"{printable(record['suite'])}: {totals_line(document['totals'])}"
                await asyncio.sleep(LIST_SECONDS)
    return None


def _command() -> str:
    """The command that goes on with the run, or makes another."""
    return f"perdure {shlex.join(without(sys.argv[1:], {'--detach'}))}"
