"""The activity that binds a task to a host, where several share a queue."""

from __future__ import annotations

from temporalio import activity

from perdure.names import BIND_HOST


class Binding:
    """Answers for one host."""

    def __init__(self, host: str) -> None:
        self._host = host

    @activity.defn(name=BIND_HOST)
    async def bind_host(self) -> str:
        """The name of the host that took this: from now on the task's steps go there."""
        return self._host
