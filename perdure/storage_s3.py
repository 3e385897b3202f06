"""Large values in S3, by the SDK's own driver; needs the extra `perdure[s3]`.

Region, endpoint and credentials are boto's own settings (`AWS_REGION`, `AWS_ENDPOINT_URL_S3`,
`AWS_PROFILE`, ...).
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from temporalio.contrib.aws.s3driver import S3StorageDriver, S3StorageDriverClient
from temporalio.converter import StorageDriver

from perdure.errors import PerdureError


def s3_driver(url: str) -> StorageDriver:
    """The SDK's driver for `s3://bucket/prefix`. Connects on first use.

    Raises PerdureError if the packages of the extra are absent.
    """
    try:
        aioboto3 = importlib.import_module("aioboto3")
        importlib.import_module("temporalio.contrib.aws.s3driver.aioboto3")
    except ImportError as error:
        raise PerdureError(
            f"PERDURE_BLOBS={url} needs packages that are not installed ({error.name}); "
            "`pip install 'perdure[s3]'`"
        ) from error
    parts = urlsplit(url)
    return S3StorageDriver(_LazyClient(aioboto3.Session(), parts.path.strip("/")), parts.netloc)


class _LazyClient(S3StorageDriverClient):
    """Opens boto's client on the event loop that first uses it; puts `prefix` before keys.

    A data converter is made before there is a loop, and boto's client belongs to one. The
    client is closed with the process.
    """

    def __init__(self, session: Any, prefix: str) -> None:
        self._session = session
        self._prefix = f"{prefix}/" if prefix else ""
        self._clients: dict[asyncio.AbstractEventLoop, asyncio.Future[S3StorageDriverClient]] = {}
        self._open = AsyncExitStack()

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        """Store `data` at `prefix/key`."""
        await (await self._client()).put_object(bucket=bucket, key=self._prefix + key, data=data)

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        """Whether something lies at `prefix/key`."""
        return await (await self._client()).object_exists(bucket=bucket, key=self._prefix + key)

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        """What lies at `prefix/key`."""
        return await (await self._client()).get_object(bucket=bucket, key=self._prefix + key)

    async def _client(self) -> S3StorageDriverClient:
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            # A task, so that a caller that is cancelled does not take it from the others.
            self._clients[loop] = loop.create_task(self._connect())
        try:
            return await asyncio.shield(self._clients[loop])
        except Exception:
            self._clients.pop(loop, None)  # the next use tries again
            raise

    async def _connect(self) -> S3StorageDriverClient:
        adapter = importlib.import_module("temporalio.contrib.aws.s3driver.aioboto3")
        boto = await self._open.enter_async_context(self._session.client("s3"))
        client: S3StorageDriverClient = adapter.new_aioboto3_client(boto)
        return client
