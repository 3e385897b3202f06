"""Step type `await`: waits for the end of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from activities.host import StepHost
from activities.steps.streams import KEPT_BYTES, MESSAGE_CHARS, MESSAGE_LINES, joined
from perdure.core.job_documents import ACCEPTED, AWAIT_KILL_SECONDS
from perdure.core.problems import shown
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.jobs import UnknownJob
from perdure.messages import Json
from perdure.peeks import Peek
from perdure.steps import Context, StepFailed, step

BEAT_SECONDS = 1.0


@step("await", keys=BUILT_IN_TYPES["await"].keys, on_loop=True)
async def wait(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Wait until `job` has ended; the result is its peek record.

    After `interrupt_after` it is interrupted, and killed `kill_after` (5 s) later. `job` is a name,
    which is looked up once, or an exec id. Of its output the result has as much as `keep_output`
    says. A step that is told to stop leaves the job alone.

    Raises StepFailed:
        JobNotAccepted: it ended otherwise than `accept` (done, interrupted) says; with the result.
        NoSuchJob: there is no such job.
    """
    job = str(document["job"])
    try:
        exec_id = await host.jobs.find(job)
        async with _alive(host):
            peek = await host.jobs.wait(exec_id, timeout=document.get("interrupt_after"))
            if not peek.done:
                host.log.info("job %s is interrupted", job)
                kill_after = document.get("kill_after", AWAIT_KILL_SECONDS)
                await host.jobs.interrupt(exec_id, kill_after=kill_after)
                peek = await host.jobs.wait(exec_id)
    except UnknownJob as error:
        raise StepFailed(str(error), type="NoSuchJob", kind="bad_input", retryable=False) from None
    result = _result(peek, document.get("keep_output", True))
    if peek.status not in document.get("accept", ACCEPTED):
        raise StepFailed(_told(job, peek), type="JobNotAccepted", result=result)
    return result


@asynccontextmanager
async def _alive(host: StepHost) -> AsyncIterator[None]:
    """For the step's `idle_timeout`: whoever waits gives signs of life."""

    async def beat() -> None:
        while True:
            host.heartbeat()
            await asyncio.sleep(BEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()


def _result(peek: Peek, keep: bool | int) -> dict[str, Json]:
    """The peek record with its output as a context keeps it.

    What was beyond the cap of a job's output is told by its last part, which takes the place of
    the kept output's end.
    """
    record = peek.as_json()
    record["stdout"] = _kept(peek.stdout, peek.tail_stdout, keep)
    record["stderr"] = _kept(peek.stderr, peek.tail_stderr, keep)
    for left_out in ("tail_stdout", "tail_stderr", "live_stdout", "live_stderr"):
        del record[left_out]
    return record


def _kept(text: str, tail: str, keep: bool | int) -> str:
    limit = KEPT_BYTES if keep is True else int(keep)
    content, beyond = text.encode(), tail.encode()
    if limit == 0:
        return ""
    if not beyond and len(content) <= 2 * limit:
        return text
    return joined(content[:limit], (beyond or content)[-limit:], len(content) + len(beyond))


def _told(job: str, peek: Peek) -> str:
    words = f"job {shown(job)} ended as {peek.status}"
    if peek.error:
        words += f": {peek.error}"
    lines = "\n".join(peek.stderr.rstrip()[-4 * MESSAGE_CHARS :].splitlines()[-MESSAGE_LINES:])
    if not lines:
        return words
    lines = lines if len(lines) <= MESSAGE_CHARS else "..." + lines[-MESSAGE_CHARS:]
    return f"{words}; stderr ends with:\n{lines}"
