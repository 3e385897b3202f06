"""Whether a worker that was left behind may go: nobody needs it, and nothing depends on it."""

from __future__ import annotations

import time
from datetime import timedelta

from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from perdure.cli.clearing import PATIENCE_SECONDS, going
from perdure.names import POOL_WORKFLOW

LOOK_SECONDS = 2.0
LOOKS = 2
"""In a row: the server's list lags a little behind what was just started."""

_ANSWER = timedelta(seconds=5)


class Vacancy:
    """Looks now and then whether a worker may go.

    It may when no workflow on its queue is open, and no instance of its host is on its way out:
    only a worker of the host can see those through.
    """

    def __init__(self, client: Client, queue: str, host: str) -> None:
        quoted = queue.replace("\\", "\\\\").replace("'", "\\'")
        self._query = f"TaskQueue = '{quoted}' AND ExecutionStatus = 'Running'"
        self._client = client
        self._going = going(host=host)
        self._empty = 0
        self._patient_until: float | None = None
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
        if self._empty < LOOKS:
            self._patient_until = None
            return False
        now = time.monotonic()
        self._patient_until = self._patient_until or now + PATIENCE_SECONDS
        return now > self._patient_until or not await self._are_instances_going()

    async def _are_instances_going(self) -> bool:
        pools = f"WorkflowType = '{POOL_WORKFLOW}' AND ExecutionStatus = 'Running'"
        try:
            listed = self._client.list_workflows(pools, rpc_timeout=_ANSWER)
            for id in [pool.id async for pool in listed]:
                pool = self._client.get_workflow_handle(id)
                if self._going(await pool.query("view", rpc_timeout=_ANSWER)):
                    return True
        except (RPCError, WorkflowQueryFailedError):
            return True  # nobody knows: look again
        return False
