"""Whether a queue has work left, as a worker that was left behind sees it."""

from __future__ import annotations

import time
from datetime import timedelta

from temporalio.client import Client
from temporalio.service import RPCError

LOOK_SECONDS = 2.0
LOOKS = 2
"""In a row: the server's list lags a little behind what was just started."""

_ANSWER = timedelta(seconds=5)


class Vacancy:
    """Looks now and then whether any workflow on a queue is open."""

    def __init__(self, client: Client, queue: str) -> None:
        quoted = queue.replace("\\", "\\\\").replace("'", "\\'")
        self._query = f"TaskQueue = '{quoted}' AND ExecutionStatus = 'Running'"
        self._client = client
        self._empty = 0
        self._next_look = time.monotonic() + LOOK_SECONDS

    async def is_certain(self) -> bool:
        """Whether nothing was open, several looks in a row; cheap between two looks.

        A server that does not answer says nothing, so the count begins anew.
        """
        if time.monotonic() < self._next_look:
            return False
        try:
            found = await self._client.count_workflows(self._query, rpc_timeout=_ANSWER)
            self._empty = 0 if found.count else self._empty + 1
        except RPCError:
            self._empty = 0
        self._next_look = time.monotonic() + LOOK_SECONDS
        return self._empty >= LOOKS
