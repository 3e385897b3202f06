"""Collection of stored values that nothing needs any more."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.event_log import UnknownRun, pages_of_run
from perdure.storage import TEMPORARY_PREFIX

GRACE = timedelta(days=7)
"""On top of the server's retention."""

TEMPORARY_AGE = timedelta(days=1)
"""A file that is still being written is younger."""

_GONE = ".gone-"
_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True)
class GcReport:
    """What a collection found, and what it removed or would remove."""

    directory: Path
    dry_run: bool
    limit: datetime
    """Only what nobody stored or read since then is collected."""
    blobs: int = 0
    """Stored values in the directory."""
    blobs_bytes: int = 0
    collected: int = 0
    """Removed; with `dry_run`, to be removed."""
    collected_bytes: int = 0
    kept_in_use: int = 0
    """Old enough, but named by a history that the server still has."""
    runs_read: int = 0
    """Histories that were searched for references."""


@dataclass(frozen=True)
class _Blob:
    path: Path
    size: int
    used_at: float


async def collect(
    client: Client, settings: Settings, *, dry_run: bool = True, now: datetime | None = None
) -> GcReport:
    """Remove stored values untouched for retention + 7 days that no retained history names.

    The server's retention counts, not the setting. Only the client's namespace is asked: a
    directory that several namespaces share must not be collected. Raises PerdureError if values
    are in S3 (a lifecycle rule of the bucket does it there) or the server does not answer.
    """
    if settings.blobs_url:
        raise PerdureError(
            f"large values are in {settings.blobs_url}; let a lifecycle rule of the bucket "
            "collect them, with at least the retention of the Temporal namespace + 7 days"
        )
    now = now or datetime.now(UTC)
    directory = settings.blobs
    try:
        limit = now - await _retention(client) - GRACE
        blobs = await asyncio.to_thread(lambda: list(_blobs(directory)))
        old = [blob for blob in blobs if blob.used_at < limit.timestamp()]
        named: set[str] = set()
        runs_read = 0
        if old:
            named, runs_read = await _named_by_histories(client, limit)
    except RPCError as error:
        raise PerdureError(
            f"the Temporal server could not be asked which values are in use ({error.message}); "
            "nothing was removed: try again when it answers"
        ) from error
    unused = [blob for blob in old if blob.path.name not in named]
    removed = unused if dry_run else await asyncio.to_thread(_remove, unused, limit.timestamp())
    if not dry_run:
        await asyncio.to_thread(_remove_temporary, directory, now - TEMPORARY_AGE)
    return GcReport(
        directory=directory,
        dry_run=dry_run,
        limit=limit,
        blobs=len(blobs),
        blobs_bytes=sum(blob.size for blob in blobs),
        collected=len(removed),
        collected_bytes=sum(blob.size for blob in removed),
        kept_in_use=len(old) - len(unused),
        runs_read=runs_read,
    )


async def _retention(client: Client) -> timedelta:
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace)
    )
    retention: timedelta = described.config.workflow_execution_retention_ttl.ToTimedelta()
    return retention


async def _named_by_histories(client: Client, limit: datetime) -> tuple[set[str], int]:
    """Digests that stand in retained histories, and the number of histories.

    A run that started after `limit` touched at its start what it was given, so the open runs and
    those that started before are all that can name an older value.
    """
    named: set[str] = set()
    runs_read = 0
    query = f'ExecutionStatus = "Running" OR StartTime < "{limit.isoformat()}"'
    async for run in client.list_workflows(query):
        handle = client.get_workflow_handle(run.id, run_id=run.run_id)
        try:
            async for page in pages_of_run(client, run.id, run.run_id):
                for event in page:
                    named |= _digests(event.SerializeToString())
            # Heartbeat details of a running activity are in no event.
            named |= _digests((await handle.describe()).raw_description.SerializeToString())
        except UnknownRun:
            pass  # its retention ended just now
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        runs_read += 1
    return named, runs_read


def _digests(message: bytes) -> set[str]:
    # Of the raw bytes: a reference is found wherever a payload may stand in an event. What
    # merely looks like a digest keeps a value too long, which harms nobody.
    return {found.decode() for found in _DIGEST.findall(message)}


def _blobs(directory: Path) -> Iterator[_Blob]:
    for path in directory.glob("[0-9a-f][0-9a-f]/*"):
        if path.name.startswith(_GONE):  # a collection was killed halfway
            path = _put_back(path)
        if len(path.name) == 64 and _DIGEST.fullmatch(os.fsencode(path.name)):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                yield _Blob(path, stat.st_size, stat.st_mtime)


def _remove(blobs: list[_Blob], limit: float) -> list[_Blob]:
    """Remove those that are still untouched.

    Each is first renamed out of the way: who stores the same value now writes it anew, and who
    touched it just before has it put back.
    """
    removed = []
    for blob in blobs:
        aside = blob.path.with_name(_GONE + blob.path.name)
        try:
            blob.path.rename(aside)
            if aside.stat().st_mtime < limit:
                aside.unlink()
                removed.append(blob)
            else:
                _put_back(aside)
        except FileNotFoundError:
            continue  # another collection was quicker
        except OSError as error:
            raise PerdureError(
                f"{blob.path} cannot be removed ({error.strerror}); run `perdure gc` as the "
                f"owner of {blob.path.parent}"
            ) from error
    return removed


def _put_back(aside: Path) -> Path:
    path = aside.with_name(aside.name.removeprefix(_GONE))
    with contextlib.suppress(FileNotFoundError):
        aside.rename(path)
    return path


def _remove_temporary(directory: Path, limit: datetime) -> None:
    for path in directory.glob(f"[0-9a-f][0-9a-f]/{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < limit.timestamp():
                path.unlink()
