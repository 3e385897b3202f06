"""Tiny workflows with which tests ask what the server, the SDK and our storage do.

In a file of their own: a workflow that is defined in a test file makes the sandbox import
everything that the test imports, at every start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

ONCE = RetryPolicy(maximum_attempts=1)
MINUTE = timedelta(minutes=1)


@activity.defn
async def make_text(size: int) -> str:
    """A text of `size` characters that does not compress."""
    return _text(size)


@activity.defn
async def measure(text: str) -> int:
    """Its length, as the activity received it; refuses a text that is not `make_text`'s."""
    if text != _text(len(text)):
        raise ApplicationError("the text changed on its way", non_retryable=True)
    return len(text)


@activity.defn
async def fail_with_details(size: int) -> None:
    """Fail, with a text of `size` characters in the failure's details."""
    raise ApplicationError("failed on purpose", _text(size), non_retryable=True)


@activity.defn
async def beat_then_hang(size: int) -> None:
    """Send a text of `size` characters as heartbeat details, then never beat again."""
    activity.heartbeat(_text(size))
    await asyncio.sleep(600)


def _text(size: int) -> str:
    return "".join(f"{number:08x}" for number in range(size // 8 + 1))[:size]


@workflow.defn
class PassTextWorkflow:
    """A text goes from an activity to the workflow, on to another, and is the result."""

    def __init__(self) -> None:
        self._text = ""
        self._finish = False

    @workflow.run
    async def run(self, size: int) -> str:
        self._text = await workflow.execute_activity(
            make_text, size, start_to_close_timeout=MINUTE, retry_policy=ONCE
        )
        measured = await workflow.execute_activity(
            measure, self._text, start_to_close_timeout=MINUTE, retry_policy=ONCE
        )
        if measured != size:
            raise ApplicationError(f"{measured} characters arrived, not {size}")
        await workflow.wait_condition(lambda: self._finish)
        return self._text

    @workflow.query
    def text(self) -> str:
        return self._text

    @workflow.signal
    def finish(self) -> None:
        self._finish = True


@dataclass(frozen=True)
class Details:
    """What reached the workflow of an activity that did not succeed."""

    failure: str
    heartbeat: str


@workflow.defn
class DetailsWorkflow:
    """Large details of a failure and of a heartbeat reach the workflow.

    It ends when the heartbeat has been missed for `heartbeat_seconds`.
    """

    @workflow.run
    async def run(self, size: int, heartbeat_seconds: float) -> Details:
        failure, heartbeat = "", ""
        try:
            await workflow.execute_activity(
                fail_with_details, size, start_to_close_timeout=MINUTE, retry_policy=ONCE
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                failure = error.cause.details[0]
        try:
            await workflow.execute_activity(
                beat_then_hang,
                size,
                start_to_close_timeout=timedelta(minutes=10),
                heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
                retry_policy=ONCE,
            )
        except ActivityError as error:
            details = getattr(error.cause, "last_heartbeat_details", [])
            heartbeat = details[0] if details else ""
        return Details(failure, heartbeat)


@workflow.defn
class TimerWorkflow:
    """Sleeps; returns how long that took by the workflow's own clock."""

    @workflow.run
    async def run(self, seconds: float) -> float:
        began = workflow.now()
        await workflow.sleep(seconds)
        return (workflow.now() - began).total_seconds()


@workflow.defn
class CountWorkflow:
    """Runs short activities one after the other, and returns the sum of their answers."""

    @workflow.run
    async def run(self, activities: int) -> int:
        total = 0
        for _ in range(activities):
            # Short: a task that a killed server had handed out, and that never arrived, is given
            # out again after this time.
            total += len(
                await workflow.execute_activity(
                    make_text, 8, start_to_close_timeout=timedelta(seconds=3)
                )
            )
        return total


@workflow.defn
class WaitWorkflow:
    """Holds what it was given until it is told to end."""

    def __init__(self) -> None:
        self._finish = False

    @workflow.run
    async def run(self, text: str) -> None:
        await workflow.wait_condition(lambda: self._finish)

    @workflow.signal
    def finish(self) -> None:
        self._finish = True


WORKFLOWS: list[type] = [
    PassTextWorkflow,
    DetailsWorkflow,
    TimerWorkflow,
    CountWorkflow,
    WaitWorkflow,
]
ACTIVITIES: list[Callable[..., Any]] = [make_text, measure, fail_with_details, beat_then_hang]
