"""Reading histories in pages, on a real server."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from temporalio.client import (
    Client,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    WorkflowHistoryEventAsyncIterator,
)
from temporalio.testing import WorkflowEnvironment

from perdure import event_log
from perdure.event_log import HistoryError, pages

SIGNALS = 12


class Pages(WorkflowHistoryEventAsyncIterator):
    """A history in pages of two events, whose tokens the server takes no more for a while."""

    async def fetch_next_page(self, *, page_size: int | None = None) -> None:
        await super().fetch_next_page(page_size=2)
        if self._next_page_token and Stale.left:
            Stale.left -= 1
            self._next_page_token = b"of another branch"


class Stale(Interceptor):
    """Makes `left` of the tokens stale."""

    left = 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _Reading(next)


class _Reading(OutboundInterceptor):
    def fetch_workflow_history_events(
        self, input: FetchWorkflowHistoryEventsInput
    ) -> WorkflowHistoryEventAsyncIterator:
        found: Any = super().fetch_workflow_history_events(input)
        return Pages(found._client, input)


@pytest.fixture
async def workflow_id(temporal: WorkflowEnvironment) -> str:
    """A workflow with so many signals, which nobody serves."""
    id = f"pages-{uuid.uuid4().hex[:8]}"
    handle = await temporal.client.start_workflow("Nobody", id=id, task_queue=id)
    for number in range(SIGNALS):
        await handle.signal("counted", number)
    return id


@pytest.fixture
def client(temporal: WorkflowEnvironment, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(event_log, "_PAUSE_SECONDS", 0.01)
    return Client(**{**temporal.client.config(), "interceptors": [Stale()]})


@pytest.mark.parametrize("stale", [0, 1, 7])
async def test_a_history_whose_pages_are_asked_for_too_late_is_read_anew(
    client: Client, workflow_id: str, stale: int
) -> None:
    """The server refuses a page's token when the history has moved on since it was given."""
    Stale.left = stale
    events = [event.event_id async for page in pages(client, workflow_id) for event in page]
    assert events == list(range(1, 2 + 1 + SIGNALS))
    assert Stale.left == 0


async def test_a_follower_outlives_it_too(client: Client, workflow_id: str) -> None:
    Stale.left = 3
    seen = []
    async for page in pages(client, workflow_id, follow=True):
        seen += [event.event_id for event in page]
        if len(seen) == 2 + SIGNALS:
            await client.get_workflow_handle(workflow_id).terminate()
    assert seen == list(range(1, 2 + 1 + SIGNALS + 1))


async def test_a_history_that_can_never_be_read_on_is_given_up(
    client: Client, workflow_id: str
) -> None:
    Stale.left = 1_000
    with pytest.raises(HistoryError, match="INVALID_ARGUMENT"):
        async for _ in pages(client, workflow_id):
            pass
    assert 1_000 - Stale.left == 1 + event_log.STALE_PAGES
