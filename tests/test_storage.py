"""Large values: C14 as far as storage answers for it, with a real server and a real directory."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowHandle
from temporalio.converter import (
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from perdure.config import Settings
from perdure.errors import PerdureError
from perdure.storage import (
    BLOB_CORRUPT,
    BLOB_MISSING,
    BLOB_UNWRITABLE,
    TEMPORARY_PREFIX,
    THRESHOLD_BYTES,
    DirectoryDriver,
    check_blob_dir,
    data_converter,
)
from tests.waiting import until
from tests.workflows_for_tests import ACTIVITIES, WORKFLOWS, DetailsWorkflow, PassTextWorkflow

MIB = 1024 * 1024


@dataclass(frozen=True)
class Served:
    """A client, and the queue on which a worker answers it."""

    client: Client
    queue: str
    blobs: Path


@pytest.fixture
async def served(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Served]:
    """A worker and a client with a blob directory of the test's own."""
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path)})
    client = Client(
        temporal.client.service_client,
        namespace=temporal.client.namespace,
        data_converter=data_converter(settings),
    )
    queue = f"storage-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=WORKFLOWS, activities=ACTIVITIES):
        yield Served(client, queue, settings.blobs)


def payloads(message: Message) -> Iterator[Payload]:
    """Every payload in a message, wherever it stands."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        if field.is_repeated:
            values = value.values() if hasattr(value, "values") else value
            yield from (p for v in values if isinstance(v, Message) for p in payloads(v))
        else:
            yield from payloads(value)


async def sizes_in_history(handle: WorkflowHandle[Any, Any]) -> list[int]:
    return [
        payload.ByteSize()
        async for event in handle.fetch_history_events()
        for payload in payloads(event)
    ]


def blobs_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


# --- Through a server -------------------------------------------------------------------------


async def test_c14_twenty_mib_pass_from_activity_to_workflow_to_activity_and_out(
    served: Served,
) -> None:
    size = 20 * MIB
    handle = await served.client.start_workflow(
        PassTextWorkflow.run, size, id=f"pass/{uuid.uuid4()}", task_queue=served.queue
    )
    await handle.signal(PassTextWorkflow.finish)

    result = await handle.result()

    assert len(result) == size
    assert await handle.query(PassTextWorkflow.text) == result
    sizes = await sizes_in_history(handle)
    assert max(sizes) < 2 * 1000 * 1000
    assert sum(sizes) < 10_000
    # The same value went by five times, and was kept once.
    assert len(blobs_in(served.blobs)) == 1


async def test_c14_details_of_failures_and_heartbeats_may_be_large(served: Served) -> None:
    size = 3 * MIB
    handle = await served.client.start_workflow(
        DetailsWorkflow.run, args=[size, 4], id=f"details/{uuid.uuid4()}", task_queue=served.queue
    )

    details = await handle.result()

    assert len(details.failure) == size
    assert details.heartbeat == details.failure
    assert max(await sizes_in_history(handle)) < 2 * 1000 * 1000


async def _has_text(handle: WorkflowHandle[Any, Any], size: int) -> bool:
    return len(await handle.query(PassTextWorkflow.text)) == size


async def test_a_new_worker_replays_what_the_old_one_stored(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path)})
    queue = f"storage-{uuid.uuid4()}"
    handle = None
    for _ in range(2):
        client = Client(temporal.client.service_client, data_converter=data_converter(settings))
        async with Worker(
            client,
            task_queue=queue,
            workflows=WORKFLOWS,
            activities=ACTIVITIES,
            max_cached_workflows=0,
        ):
            handle = handle or await client.start_workflow(
                PassTextWorkflow.run, 3 * MIB, id=f"replay/{uuid.uuid4()}", task_queue=queue
            )
            await until(lambda handle=handle: _has_text(handle, 3 * MIB), "the text")
    assert handle
    await handle.terminate()


async def test_a_client_without_the_driver_is_told_what_is_wrong(
    served: Served, temporal: WorkflowEnvironment
) -> None:
    handle = await served.client.start_workflow(
        PassTextWorkflow.run, 3 * MIB, id=f"bare/{uuid.uuid4()}", task_queue=served.queue
    )
    await handle.signal(PassTextWorkflow.finish)
    await handle.result()
    bare = Client(temporal.client.service_client)

    with pytest.raises(Exception, match="external storage is not configured"):
        await bare.get_workflow_handle(handle.id).result()


# --- The driver -------------------------------------------------------------------------------


def payload(data: bytes) -> Payload:
    return Payload(metadata={"encoding": b"binary/plain", "more": b"1"}, data=data)


async def store(driver: DirectoryDriver, *values: Payload) -> list[StorageDriverClaim]:
    return await driver.store(StorageDriverStoreContext(), values)


async def retrieve(driver: DirectoryDriver, *claims: StorageDriverClaim) -> list[Payload]:
    return await driver.retrieve(StorageDriverRetrieveContext(), claims)


async def test_values_come_back_in_order_and_equal_ones_are_kept_once(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path / "blobs")
    values = [payload(b"a" * 10), payload(b"b" * 10), payload(b"a" * 10)]

    claims = await store(driver, *values)

    assert await retrieve(driver, *claims) == values
    assert len(blobs_in(driver.directory)) == 2
    for path in blobs_in(driver.directory):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        assert path.parent.name == path.name[:2]


async def test_storing_or_reading_again_renews_the_time_of_use(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path)
    [claim] = await store(driver, payload(b"x"))
    path = driver.blob_path(claim.claim_data["sha256"])

    for use in (lambda: store(driver, payload(b"x")), lambda: retrieve(driver, claim)):
        os.utime(path, (1000, 1000))
        await use()
        assert path.stat().st_mtime > 1_000_000


async def test_many_writers_of_one_value_leave_one_whole_file(tmp_path: Path) -> None:
    drivers = [DirectoryDriver(tmp_path) for _ in range(8)]
    value = payload(os.urandom(MIB))

    claims = await asyncio.gather(*(store(driver, value) for driver in drivers))

    assert all(claim == claims[0] for claim in claims)
    assert await retrieve(drivers[0], *claims[0]) == [value]
    assert len(blobs_in(tmp_path)) == 1


async def test_a_missing_value_names_itself_and_the_directory(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path / "blobs")
    [claim] = await store(driver, payload(b"x"))
    digest = claim.claim_data["sha256"]
    driver.blob_path(digest).unlink()

    with pytest.raises(ApplicationError) as raised:
        await retrieve(driver, claim)

    assert raised.value.type == BLOB_MISSING
    assert raised.value.non_retryable
    assert digest in str(raised.value)
    assert str(driver.directory) in str(raised.value)


async def test_a_missing_directory_may_come_back_and_is_tried_again(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path / "blobs")
    [claim] = await store(driver, payload(b"x"))
    driver.directory.rename(tmp_path / "unmounted")

    with pytest.raises(ApplicationError) as raised:
        await retrieve(driver, claim)

    assert raised.value.type == BLOB_MISSING
    assert not raised.value.non_retryable


async def test_a_damaged_value_is_not_handed_out(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path)
    [claim] = await store(driver, payload(b"x" * 100))
    driver.blob_path(claim.claim_data["sha256"]).write_bytes(b"y" * 100)

    with pytest.raises(ApplicationError, match="damaged") as raised:
        await retrieve(driver, claim)

    assert raised.value.type == BLOB_CORRUPT
    assert raised.value.non_retryable


async def test_a_value_cut_short_by_a_power_failure_is_written_anew(tmp_path: Path) -> None:
    driver = DirectoryDriver(tmp_path)
    [claim] = await store(driver, payload(b"x" * 100))
    driver.blob_path(claim.claim_data["sha256"]).write_bytes(b"")

    await store(driver, payload(b"x" * 100))

    assert await retrieve(driver, claim) == [payload(b"x" * 100)]


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
async def test_a_reference_that_is_no_digest_is_never_a_path(tmp_path: Path, digest: str) -> None:
    claim = StorageDriverClaim(claim_data={"sha256": digest})

    with pytest.raises(ApplicationError, match="reference is damaged") as raised:
        await retrieve(DirectoryDriver(tmp_path), claim)

    assert raised.value.type == BLOB_CORRUPT


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("a file in its place")

    with pytest.raises(ApplicationError, match="PERDURE_BLOB_DIR") as raised:
        await store(DirectoryDriver(tmp_path / "blobs"), payload(b"x"))

    assert raised.value.type == BLOB_UNWRITABLE
    assert not raised.value.non_retryable


async def test_a_failed_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = DirectoryDriver(tmp_path)
    data = payload(b"x").SerializeToString(deterministic=True)
    # A directory in the file's place: the last step of the write fails.
    driver.blob_path(hashlib.sha256(data).hexdigest()).joinpath("in the way").mkdir(parents=True)

    with pytest.raises(ApplicationError):
        await store(driver, payload(b"x"))

    assert not list(tmp_path.rglob(f"{TEMPORARY_PREFIX}*"))


# --- The converter ----------------------------------------------------------------------------


async def test_only_large_values_go_to_the_directory(tmp_path: Path) -> None:
    converter = data_converter(Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path)}))
    small, large = "x" * (THRESHOLD_BYTES - 1000), "y" * THRESHOLD_BYTES

    encoded = await converter.encode([small, large])

    assert await converter.decode(encoded) == [small, large]
    assert encoded[0].ByteSize() > THRESHOLD_BYTES - 1000
    assert encoded[1].ByteSize() < 1000
    assert len(blobs_in(tmp_path / "blobs")) == 1


async def test_dataclasses_and_every_json_value_come_back_as_they_went(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Message:
        value: object
        items: list[dict[str, object]] = dataclasses.field(default_factory=list)

    converter = data_converter(Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path)}))
    values: list[Any] = [
        None,
        True,
        0,
        -1,
        2**70,
        1.5,
        1.0,
        "",
        "ü\0\u2028🙂",
        [],
        {},
        {"a": [1, {"b": None}]},
    ]

    for value in values:
        for message in (Message(value), Message(value, [{"x": value}])):
            [back] = await converter.decode(await converter.encode([message]), [Message])
            assert back == message
            assert json.dumps(back.value) == json.dumps(value)


def test_a_directory_that_others_may_not_see_is_refused_beside_a_foreign_server(
    tmp_path: Path,
) -> None:
    def settings(**env: str) -> Settings:
        return Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path), **env})

    check_blob_dir(settings(), embedded=True)
    check_blob_dir(settings(PERDURE_BLOBS_SHARED="1"), embedded=False)
    check_blob_dir(settings(PERDURE_BLOBS="s3://bucket"), embedded=False)
    with pytest.raises(PerdureError, match=r"PERDURE_BLOBS_SHARED=1.*PERDURE_BLOBS=s3://"):
        check_blob_dir(settings(), embedded=False)


def test_s3_without_its_packages_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aioboto3", None)

    with pytest.raises(PerdureError, match=r"pip install 'perdure\[s3\]'"):
        data_converter(
            Settings.from_env(
                {"PERDURE_STATE_DIR": str(tmp_path), "PERDURE_BLOBS": "s3://bucket/prefix"}
            )
        )


async def test_values_go_to_s3_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    moto = pytest.importorskip("moto.server", reason="moto, a local S3, is absent")
    aioboto3 = pytest.importorskip("aioboto3", reason="the extra s3 is absent")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        async with aioboto3.Session().client("s3") as s3:
            await s3.create_bucket(Bucket="bucket")
            with tempfile.TemporaryDirectory() as folder:
                converter = data_converter(
                    Settings.from_env(
                        {"PERDURE_STATE_DIR": folder, "PERDURE_BLOBS": "s3://bucket/some/prefix"}
                    )
                )
            values = ["x" * THRESHOLD_BYTES, "y" * THRESHOLD_BYTES]
            assert await converter.decode(await converter.encode(values)) == values
            listed = await s3.list_objects_v2(Bucket="bucket")
            keys = [entry["Key"] for entry in listed["Contents"]]
            assert len(keys) == 2
            assert all(key.startswith("some/prefix/") for key in keys)
    finally:
        server.stop()
