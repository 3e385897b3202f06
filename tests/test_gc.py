from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure import gc
from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.gc import GRACE, collect
from perdure.storage import TEMPORARY_PREFIX, THRESHOLD_BYTES, DirectoryDriver, data_converter
from tests.waiting import until
from tests.workflows_for_tests import ACTIVITIES, WORKFLOWS, DetailsWorkflow, WaitWorkflow


@dataclass(frozen=True)
class Place:
    """A client whose large values lie in a directory of the test's own."""

    client: Client
    settings: Settings
    limit: timedelta
    """The age from which values are collected: the server's retention and a week."""

    @property
    def blobs(self) -> list[Path]:
        return sorted(p for p in self.settings.blobs.rglob("*") if p.is_file())

    def age(self, days_over_limit: float) -> None:
        """Let every stored value have been used last that long before the limit."""
        then = datetime.now(UTC) - self.limit - timedelta(days=days_over_limit)
        for blob in self.blobs:
            os.utime(blob, (then.timestamp(), then.timestamp()))

    async def store(self, text: str) -> None:
        await self.client.data_converter.encode([text.ljust(THRESHOLD_BYTES, ".")])


@pytest.fixture
async def place(temporal: WorkflowEnvironment, tmp_path: Path) -> Place:
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path)})
    client = Client(
        temporal.client.service_client,
        namespace=temporal.client.namespace,
        data_converter=data_converter(settings),
    )
    described = await client.workflow_service.describe_namespace(
        DescribeNamespaceRequest(namespace=client.namespace)
    )
    retention = described.config.workflow_execution_retention_ttl.ToTimedelta()
    return Place(client, settings, retention + GRACE)


@pytest.fixture
async def waiting(place: Place) -> AsyncIterator[WorkflowHandle[WaitWorkflow, None]]:
    """An open workflow that was given a large value.

    No worker serves it: one would read the value, and so use it, when it likes.
    """
    handle = await place.client.start_workflow(
        WaitWorkflow.run,
        "held".ljust(THRESHOLD_BYTES, "."),
        id=f"gc/{uuid.uuid4()}",
        task_queue=f"gc-{uuid.uuid4()}",
    )
    # The server's list lags a little; in earnest, what just started is young.
    await until(lambda: _is_listed(place.client, handle), "the workflow in the list")
    yield handle
    await handle.terminate()


async def _is_listed(client: Client, handle: WorkflowHandle[Any, Any]) -> bool:
    query = f'WorkflowId = "{handle.id}" AND ExecutionStatus = "Running"'
    return bool((await client.count_workflows(query)).count)


async def test_a_dry_run_tells_and_removes_nothing(place: Place) -> None:
    await place.store("a")
    place.age(1)

    report = await collect(place.client, place.settings)

    assert report.dry_run
    assert (report.blobs, report.collected) == (1, 1)
    assert report.collected_bytes == report.blobs_bytes > THRESHOLD_BYTES
    assert len(place.blobs) == 1


async def test_only_what_is_older_than_retention_and_a_week_is_removed(place: Place) -> None:
    await place.store("old")
    place.age(0.01)
    old = place.blobs
    await place.store("young")
    [young] = set(place.blobs) - set(old)
    nearly = (datetime.now(UTC) - place.limit + timedelta(hours=1)).timestamp()
    os.utime(young, (nearly, nearly))

    report = await collect(place.client, place.settings, dry_run=False)

    assert report.collected == 1
    assert place.blobs == [young]


async def test_the_clock_may_be_given(place: Place) -> None:
    await place.store("a")

    later = datetime.now(UTC) + place.limit + timedelta(hours=1)
    report = await collect(place.client, place.settings, dry_run=False, now=later)

    assert report.collected == 1
    assert place.blobs == []


async def test_what_an_open_history_names_is_kept(
    place: Place, waiting: WorkflowHandle[WaitWorkflow, None]
) -> None:
    held = place.blobs
    await place.store("unused")
    place.age(30)

    report = await collect(place.client, place.settings, dry_run=False)

    assert (report.collected, report.kept_in_use) == (1, 1)
    assert report.runs_read >= 1
    assert place.blobs == held
    # A collection's own reading is no use of a value: the next one finds it as old.
    again = await collect(place.client, place.settings, dry_run=False)
    assert (again.collected, again.kept_in_use) == (0, 1)


async def test_heartbeat_details_of_a_running_activity_are_kept(place: Place) -> None:
    """They stand in no event, only in the server's state of the activity."""
    queue = f"gc-{uuid.uuid4()}"
    async with Worker(place.client, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES):
        handle = await place.client.start_workflow(
            DetailsWorkflow.run,
            # It must not end while it is looked at: its result would be one more value.
            args=[THRESHOLD_BYTES + 1, 120],
            id=f"gc/{uuid.uuid4()}",
            task_queue=queue,
        )

        async def beaten() -> bool:
            pending = (await handle.describe()).raw_description.pending_activities
            return any(p.HasField("heartbeat_details") for p in pending)

        await until(beaten, "a heartbeat")
        await until(lambda: _is_listed(place.client, handle), "the workflow in the list")
        place.age(30)
        named, _ = await gc._named_by_histories(place.client, datetime.now(UTC) - place.limit)
        await handle.terminate()

    assert {blob.name for blob in place.blobs} <= named


async def test_a_value_used_during_the_collection_stays(place: Place) -> None:
    await place.store("a")
    place.age(1)
    found = list(gc._blobs(place.settings.blobs))
    await place.store("a")  # between the look and the removal

    removed = gc._remove(found, (datetime.now(UTC) - place.limit).timestamp())

    assert removed == []
    assert [blob.path for blob in found] == place.blobs


async def test_a_collection_that_was_killed_halfway_loses_nothing(place: Place) -> None:
    await place.store("a")
    [blob] = place.blobs
    blob.rename(blob.with_name(".gone-" + blob.name))

    report = await collect(place.client, place.settings)

    assert report.blobs == 1
    assert place.blobs == [blob]


async def test_files_of_killed_writers_go_after_a_day_and_others_are_not_ours(
    place: Place,
) -> None:
    await place.store("a")
    folder = place.blobs[0].parent
    left, fresh, foreign = (
        folder / f"{TEMPORARY_PREFIX}left",
        folder / f"{TEMPORARY_PREFIX}fresh",
        folder / "notes.txt",
    )
    for file in (left, fresh, foreign):
        file.write_text("x")
    for file in (left, foreign):
        os.utime(file, (1000, 1000))

    await collect(place.client, place.settings, dry_run=False)

    assert not left.exists()
    assert fresh.exists()
    assert foreign.exists()


async def test_no_directory_is_nothing_to_collect(place: Place) -> None:
    report = await collect(place.client, place.settings, dry_run=False)

    assert (report.blobs, report.collected, report.runs_read) == (0, 0, 0)


async def test_values_in_s3_are_left_to_the_bucket(place: Place, tmp_path: Path) -> None:
    settings = Settings.from_env(
        {"PERDURE_STATE_DIR": str(tmp_path), "PERDURE_BLOBS": "s3://bucket"}
    )

    with pytest.raises(PerdureError, match="lifecycle rule"):
        await collect(place.client, settings)


async def test_a_collected_value_that_comes_again_is_stored_again(place: Place) -> None:
    await place.store("a")
    place.age(1)
    await collect(place.client, place.settings, dry_run=False)
    assert place.blobs == []

    await place.store("a")

    [blob] = place.blobs
    assert blob == DirectoryDriver(place.settings.blobs).blob_path(blob.name)
