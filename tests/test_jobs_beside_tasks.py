"""Background jobs beside tasks that go on: nobody is held up by one, and none is left over."""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    FetchWorkflowHistoryEventsInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventAsyncIterator,
)
from temporalio.testing import WorkflowEnvironment

from activities.job_start import JobStart
from activities.secrets import WorkerEnvironment
from perdure.core.job_state import JobLife
from perdure.job_handle import draw_exec_id
from perdure.job_messages import JobLaunch, JobSpec
from perdure.jobs import JobRefused, JobsApi
from perdure.names import job_workflow_id
from tests.activities.living import living, new_tag
from tests.kit import Bench, bench
from tests.waiting import until

LASTS = {"id": "last", "type": "command", "command": "until [ -e go ]; do sleep 0.05; done"}


@pytest.fixture
async def here(
    request: pytest.FixtureRequest, temporal: WorkflowEnvironment, tmp_path: Path
) -> AsyncIterator[Bench]:
    variables = WorkerEnvironment({"PATH": os.environ["PATH"]})
    options: dict[str, Any] = getattr(request, "param", {})
    async with bench(temporal.client, tmp_path, environment=variables, **options) as made:
        yield made


@pytest.fixture
def api(here: Bench) -> JobsApi:
    return JobsApi(here.client, here.options.results)


async def launched(api: JobsApi, task: WorkflowHandle[Any, Any], **spec: Any) -> str:
    exec_id = draw_exec_id()
    await api.launch(task.id, JobLaunch(exec_id, JobSpec(**spec)))
    return exec_id


async def printed(api: JobsApi, exec_id: str, text: str) -> None:
    async def has_come() -> bool:
        return text in (await api.peek(exec_id)).stdout

    await until(has_come, f"{text!r} is printed")


async def test_a_job_that_never_rests_holds_up_neither_jobs_nor_steps(
    here: Bench, api: JobsApi
) -> None:
    """B2: each has a process of its own."""
    whose = "import os; print(os.getpid(), os.getpgid(0), flush=True)"
    record = await here.run(
        {"id": "long", "type": "background", "code": f"{whose}\nwhile True: pass", "name": "long"},
        {"id": "short", "type": "background", "code": whose, "name": "short"},
        {"id": "wait", "type": "await", "job": "short"},
        {"id": "step", "type": "command", "command": "echo on"},
        {"id": "stop", "type": "await", "job": "long", "interrupt_after": 0.1},
    )
    assert record["status"] == "succeeded", record["failure"]
    results = record["context"]["results"]
    assert results["step"]["stdout"] == "on\n"
    ids = [results[id]["stdout"].split() for id in ("wait", "stop")]
    assert len({tuple(pair) for pair in ids}) == 2
    assert all(group == pid for pid, group in ids), "and a process group of its own"


async def test_a_job_that_has_ended_is_no_load_for_its_worker(here: Bench, api: JobsApi) -> None:
    """BD6: what it printed is on disk and on the server, and in no process any more."""
    task = await here.start(LASTS)
    for _ in range(3):
        exec_id = await launched(api, task, code="print('x' * 1_000_000)")
        assert len((await api.wait(exec_id)).stdout) > 1_000_000
    (here.work_of(task) / "go").touch()
    await task.result()

    def is_forgotten() -> bool:
        gc.collect()
        return not any(isinstance(held, JobStart | JobLife) for held in gc.get_objects())

    await until(is_forgotten, "nothing of a job is held")
    assert len((await api.peek(exec_id)).stdout) > 1_000_000
    kept = here.results_of(task) / "jobs" / exec_id
    assert json.loads((kept / "job.json").read_text())["status"] == "done"
    assert (kept / "stdout.log").stat().st_size > 1_000_000


async def test_jobs_that_are_launched_while_their_task_ends_are_refused_or_stopped(
    here: Bench, api: JobsApi
) -> None:
    """B17."""
    tag = new_tag()
    task = await here.start(LASTS)
    await until(lambda: here.work_of(task).exists(), "the task is under way")

    async def one() -> str | None:
        try:
            return await launched(api, task, argv=["sleep", tag])
        except JobRefused:
            return None

    launching = [asyncio.create_task(one()) for _ in range(4)]
    (here.work_of(task) / "go").touch()
    while not (await task.describe()).close_time:
        launching.append(asyncio.create_task(one()))
        await asyncio.sleep(0.05)
    assert (await task.result()).status == "succeeded"
    assert living(tag) == []
    exec_ids = {exec_id for exec_id in await asyncio.gather(*launching) if exec_id}
    assert {job["exec_id"] for job in here.record(task).get("jobs", [])} == exec_ids
    for exec_id in exec_ids:
        job = await here.client.get_workflow_handle(job_workflow_id(exec_id)).describe()
        assert job.status is not WorkflowExecutionStatus.RUNNING


@pytest.mark.parametrize("here", [{"job_slots": 1}], indirect=True, ids=["one place"])
async def test_a_worker_runs_as_many_jobs_as_it_may_and_the_others_wait(
    here: Bench, api: JobsApi
) -> None:
    """BD10: a full house queues; who waits can be called off."""
    task = await here.start(LASTS)
    forever = "import time\nprint('on', flush=True)\ntime.sleep(600)"
    first, second, third = [await launched(api, task, code=forever) for _ in range(3)]
    await printed(api, first, "on")
    waiting = [await api.peek(exec_id) for exec_id in (second, third)]
    assert [(peek.status, peek.waiting) for peek in waiting] == [("running", True)] * 2
    await api.interrupt(second)
    called_off = await api.wait(second)
    assert (called_off.status, called_off.stdout) == ("interrupted", "")
    await api.interrupt(first)
    await printed(api, third, "on")
    (here.work_of(task) / "go").touch()
    assert (await task.result()).status == "succeeded"


async def test_a_job_whose_process_cannot_be_started_gives_its_place_back(
    here: Bench, api: JobsApi
) -> None:
    """B11: sixteen that cannot be started leave room for sixteen that can."""
    task = await here.start(LASTS)
    await until(lambda: here.work_of(task).exists(), "the task is under way")
    absent = [await launched(api, task, argv=["/absent/program"]) for _ in range(16)]
    ends = [await api.wait(exec_id) for exec_id in absent]
    assert {end.status for end in ends} == {"failed"}
    assert "/absent/program" in (ends[0].error or "")

    async def are_known() -> bool:
        known = await api.list(task.id, output=False)
        return all(job.done for job in known)

    await until(are_known, "the task has heard of their ends")
    await asyncio.gather(*(launched(api, task, argv=["sleep", "600"]) for _ in range(16)))
    with pytest.raises(JobRefused, match="16 jobs of the task run, and at most 16 may"):
        await launched(api, task, code="1")
    (here.work_of(task) / "go").touch()
    assert (await task.result()).status == "succeeded"


async def test_who_waits_for_a_job_asks_the_server_once(here: Bench, api: JobsApi) -> None:
    """BD10: waiting is no polling."""
    asked: list[str] = []

    class Asked(OutboundInterceptor):
        async def describe_workflow(
            self, input: DescribeWorkflowInput
        ) -> WorkflowExecutionDescription:
            asked.append("how it is")
            return await super().describe_workflow(input)

        def fetch_workflow_history_events(
            self, input: FetchWorkflowHistoryEventsInput
        ) -> WorkflowHistoryEventAsyncIterator:
            asked.append("tell me its end")
            return super().fetch_workflow_history_events(input)

        async def query_workflow(self, input: QueryWorkflowInput) -> Any:
            asked.append(input.query)
            return await super().query_workflow(input)

    class Asking(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Asked(next)

    task = await here.start(LASTS)
    exec_id = await launched(api, task, code="import time\nprint('on')\ntime.sleep(600)")
    await printed(api, exec_id, "on")
    config = here.client.config()
    config["interceptors"] = [Asking()]
    waiting = asyncio.create_task(JobsApi(Client(**config)).wait(exec_id))
    await asyncio.sleep(0.5)  # for whoever would look again and again
    assert asked == ["tell me its end"]
    await api.interrupt(exec_id)
    assert (await waiting).status == "interrupted"
    assert asked[:2] == ["tell me its end", "how it is"]
    (here.work_of(task) / "go").touch()
    await task.result()
