"""Which server this is: two of them may run suites of one name."""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

PATIENCE = timedelta(seconds=10)


async def server_id(client: Client) -> str | None:
    """The id of the client's namespace: its own on each server, and kept as long as its database.

    None if the server does not tell it to everybody.
    """
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        found = await client.workflow_service.describe_namespace(request, timeout=PATIENCE)
    except RPCError:
        return None
    return found.namespace_info.id or None
