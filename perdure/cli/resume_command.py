"""`perdure retry RUN --from-step ID`: one task again, from one of its steps on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from perdure.cli.console import emit, emit_json, say
from perdure.cli.signals import LEAVING, asked_to_end
from perdure.suite_input import suite_queue
from perdure.task_handle import TaskFailed

if TYPE_CHECKING:
    from perdure.cli.reading import Named
    from perdure.client import Perdure, TaskHandle
    from perdure.workers import WorkerConfig

SUCCEEDED, FAILED, INTERRUPTED = 0, 1, 130

LAST_EVENTS_SECONDS = 5.0


async def resume_run(
    wanted: Named, from_step: str, worker: WorkerConfig, *, detach: bool, json: bool
) -> int:
    """Run a task from a step on to its end, or leave it to a worker; returns the exit status.

    Raises PerdureError for what stands in the way.
    """
    from perdure.cli.reading import server_to_act
    from perdure.config import Settings

    leave = asyncio.Event()
    cleared = asyncio.Event()

    def insist(number: signal.Signals) -> None:
        if cleared.is_set():
            leave.set()
            return
        say(f"left at once; look with: perdure show {wanted}")
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
        await _clear(perdure, record, leave)
        await _tell_end(perdure, wanted, record, json=json)
        if asked.event.is_set():
            return INTERRUPTED
    return SUCCEEDED if record["status"] == "succeeded" else FAILED


async def _follow(handle: TaskHandle) -> dict[str, Any]:
    """Tell what happens to the run's end; its record."""
    from perdure.cli.events_command import event_line

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
    from perdure.cli.clearing import left_lines, of_suite, until_gone

    lease, suite = record["lease"], record["suite"]
    queue = suite_queue(perdure.settings.queue, suite)
    if not lease or not perdure.looks_after(queue) or perdure.is_served_by_others(queue):
        return
    find = of_suite(suite, record["environments"])
    left = await until_gone(perdure.pool(lease["pool"]).view, find, say, leave=leave)
    for line in left_lines(left, lease["pool"]):
        say(line)


async def _tell_end(perdure: Perdure, wanted: Named, record: dict[str, Any], *, json: bool) -> None:
    from perdure.cli.show_command import recorded_run, show_run

    if json:
        emit_json(record)
        return
    assert wanted.task_id is not None
    _, files = await recorded_run(perdure, wanted)
    show_run(record, files)
    if record["status"] != "succeeded":
        say(f"again with: perdure {shlex.join(sys.argv[1:])}")
