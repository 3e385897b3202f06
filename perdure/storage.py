"""Large values: payloads above 128 KiB live outside of histories.

`data_converter` is the one factory that every client, worker and replayer uses. The driver API
of the SDK is experimental (1.35), so nothing else of ours touches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    DataConverter,
    ExternalStorage,
    SerializationContext,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.payloads import PayloadConverter

THRESHOLD_BYTES = 128 * 1024
"""Payloads of this size and above are stored outside of the history."""

DIRECTORY_DRIVER = "perdure.directory"
"""The driver's name in references; histories remember it."""

BLOB_MISSING = "BlobMissing"
BLOB_CORRUPT = "BlobCorrupt"
BLOB_UNWRITABLE = "BlobUnwritable"

TEMPORARY_PREFIX = ".new-"
"""Files that are being written; what a killed writer left is collected after a day."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def data_converter(settings: Settings) -> DataConverter:
    """The data converter of every client, worker and replayer: pydantic, large values outside.

    Raises PerdureError if `PERDURE_BLOBS` names S3 and its driver is not installed.
    """
    driver: StorageDriver
    if settings.blobs_url:
        from perdure.storage_s3 import s3_driver  # lazily: an optional extra

        driver = s3_driver(settings.blobs_url)
    else:
        driver = DirectoryDriver(settings.blobs)
    kind = DataConverter if settings.blobs_url else _PlainDataConverter
    return kind(
        payload_converter_class=PayloadConverter,
        external_storage=ExternalStorage(drivers=[driver], payload_size_threshold=THRESHOLD_BYTES),
    )


class _PlainDataConverter(DataConverter):
    """One whose parts do the same with a value wherever they meet it.

    The SDK makes a copy of a converter for each place, some ten for a step, which took 3 % of a
    worker's time. Should a later SDK know the second method no more, it makes its copies again.
    """

    def with_context(self, context: SerializationContext) -> Self:
        return self

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> Self:
        return self


def check_blob_dir(settings: Settings, *, embedded: bool) -> None:
    """Refuse a directory that the other workers of a Temporal service would not see.

    Raises PerdureError: the server is not the embedded one, large values go to a directory, and
    nobody said that it is shared.
    """
    if embedded or settings.blobs_url or settings.blobs_shared:
        return
    raise PerdureError(
        f"large values would go to {settings.blobs}, which other machines of this Temporal "
        "service may not see; set PERDURE_BLOB_DIR to a shared directory and "
        "PERDURE_BLOBS_SHARED=1, or PERDURE_BLOBS=s3://bucket/prefix"
    )


class DirectoryDriver(StorageDriver):
    """Keeps payloads as files named by their content: stored twice, kept once.

    A file's modification time is the last time somebody stored or read it; `perdure gc` goes
    by it. Files are not synced to disk: a power cut may lose the newest, which the digest shows.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def name(self) -> str:
        """The name in references."""
        return DIRECTORY_DRIVER

    async def store(
        self, context: StorageDriverStoreContext, payloads: Sequence[Payload]
    ) -> list[StorageDriverClaim]:
        """Write each payload unless it is there already.

        Raises ApplicationError:
            BlobUnwritable: the directory cannot be written (full, missing, forbidden).
        """
        return await asyncio.to_thread(lambda: [self._store(payload) for payload in payloads])

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read each payload and check it against its digest.

        Raises ApplicationError:
            BlobMissing: no such file; not retried if the directory itself is there.
            BlobCorrupt: the file's content is not what was stored; not retried.
        """
        return await asyncio.to_thread(lambda: [self._retrieve(claim) for claim in claims])

    def blob_path(self, digest: str) -> Path:
        """Where the payload with this SHA-256 (hex) lies."""
        return self.directory / digest[:2] / digest

    def _store(self, payload: Payload) -> StorageDriverClaim:
        # Deterministic: equal metadata maps would otherwise differ in their order of keys.
        data = payload.SerializeToString(deterministic=True)
        digest = hashlib.sha256(data).hexdigest()
        path = self.blob_path(digest)
        try:
            if not _touch(path, size=len(data)):
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _write(path, data)
        except OSError as error:
            raise ApplicationError(
                f"a value of {len(data)} bytes cannot be stored in {self.directory} "
                f"({error.strerror or error}); make room there, or correct PERDURE_BLOB_DIR",
                type=BLOB_UNWRITABLE,
            ) from error
        return StorageDriverClaim(claim_data={"sha256": digest, "size": str(len(data))})

    def _retrieve(self, claim: StorageDriverClaim) -> Payload:
        digest = claim.claim_data.get("sha256", "")
        if not _DIGEST.fullmatch(digest):  # it becomes a path
            raise ApplicationError(
                f"a stored value's reference is damaged: sha256 is {digest[:80]!r}",
                type=BLOB_CORRUPT,
                non_retryable=True,
            )
        path = self.blob_path(digest)
        data = _read(path)
        if data is None:
            raise ApplicationError(
                f"the stored value {digest} is not in {self.directory}; it was collected or "
                "removed, or PERDURE_BLOB_DIR is not the directory that it was stored in",
                type=BLOB_MISSING,
                non_retryable=self.directory.is_dir(),
            )
        if hashlib.sha256(data).hexdigest() != digest:
            raise ApplicationError(
                f"the stored value {path} is damaged: its content does not match its name; "
                "restore it from a copy",
                type=BLOB_CORRUPT,
                non_retryable=True,
            )
        _touch(path, size=len(data))
        return Payload.FromString(data)


def _touch(path: Path, *, size: int) -> bool:
    """Mark a file as used now; False if there is none of this size."""
    try:
        if path.stat().st_size != size:  # cut short by a power failure
            return False
        os.utime(path)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's file in a shared directory: it is there, and readable
    return True


def _write(path: Path, data: bytes) -> None:
    """Let `path` appear whole or not at all."""
    fd, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _read(path: Path) -> bytes | None:
    for pause_seconds in (0.05, 0.2, 0.0):  # a collection may be about to put it back
        try:
            return path.read_bytes()
        except FileNotFoundError:
            time.sleep(pause_seconds)
        except OSError as error:
            raise ApplicationError(
                f"the stored value {path} cannot be read ({error.strerror or error})",
                type=BLOB_MISSING,
            ) from error
    return None
