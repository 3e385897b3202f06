"""What clients see of background jobs: on a server with a worker, without one, and from files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    Client,
    DescribeWorkflowInput,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionDescription,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.job_start import JOB_NICENESS
from perdure import jobs
from perdure.client import JobHandle, JobRefused, Perdure, TaskHandle, UnknownJob, UnknownRun
from perdure.core.job_output import CAP_CHARACTERS, CAP_MARKER
from perdure.errors import PerdureError
from perdure.job_files import find_job, jobs_in
from perdure.job_handle import draw_exec_id
from perdure.job_messages import (
    FailingLine,
    JobBeat,
    JobEnd,
    JobInput,
    JobLaunch,
    JobOrigin,
    JobSpec,
    JobUsage,
    OutputBatch,
)
from perdure.jobs import JobsApi, JobUnreadable
from perdure.messages import RunRef
from perdure.names import JOB_OUTPUT, JOB_WORKFLOW, RUN_JOB, job_workflow_id
from perdure.payloads import adapter
from perdure.peeks import Peek, of_record, with_beat, with_end
from perdure.results_shapes import ResultsError
from tests.kit import Bench, bench
from tests.waiting import until

EXEC_ID = "exec-0123456789ab"


def running(stdout: str = "", **more: Any) -> Peek:
    peek = Peek(EXEC_ID, "running", done=False, stdout=stdout, next_offset=len(stdout))
    return replace(peek, **more)


def beat(**more: Any) -> JobBeat:
    return replace(JobBeat(attempt=1, host="here"), **more)


# --- A peek: what is committed, and what the heartbeat has beside ---------------------------------


@pytest.mark.parametrize(
    ("begins", "text", "stdout"),
    [
        (3, "def", "abcdef"),
        (0, "abcdef", "abcdef"),
        (1, "bc", "abc"),
        (0, "ab", "abc"),
    ],
)
def test_a_beat_goes_on_where_the_committed_text_ends(begins: int, text: str, stdout: str) -> None:
    peek = with_beat(running("abc"), beat(stdout_from=begins, stdout=text))
    assert (peek.stdout, peek.next_offset) == (stdout, len(stdout))
    assert peek.tail_stdout == ""


def test_what_does_not_follow_on_the_committed_text_is_its_tail() -> None:
    peek = with_beat(running("abc"), beat(stdout_from=10, stdout="xyz"))
    assert (peek.stdout, peek.next_offset, peek.tail_stdout) == ("abc", 3, "xyz")


def test_a_reader_ahead_of_what_is_committed_is_given_what_follows_for_him() -> None:
    ahead = running(offset=5, next_offset=5)
    assert with_beat(ahead, beat(stdout_from=3, stdout="defgh")).stdout == "fgh"
    assert with_beat(ahead, beat(stdout_from=3, stdout="de")).next_offset == 5


def test_the_line_that_is_redrawn_is_shown_and_is_not_part_of_the_text() -> None:
    peek = with_beat(running("a\n"), beat(stdout_from=2, stdout="b\n", live_stdout=" 40% [##  ]"))
    assert peek.screen == "a\nb\n 40% [##  ]"
    assert (peek.stdout, peek.next_offset) == ("a\nb\n", 4)


def test_a_beat_of_another_start_tells_nothing() -> None:
    peek = running("abc", attempts=2)
    assert with_beat(peek, beat(stdout_from=3, stdout="def")) == peek


def test_a_beat_of_a_job_that_has_ended_tells_nothing() -> None:
    peek = with_end(running("abc"), JobEnd(EXEC_ID, "done", ended_at=2.0))
    assert with_beat(peek, beat(stdout_from=3, stdout="def")) == peek


def test_a_beat_tells_that_the_job_has_begun_and_what_it_uses() -> None:
    used = JobUsage(1.0, 0.5, 4096)
    told = beat(started_at=12.5, usage=used, stderr_from=0, stderr="oh\n")
    peek = with_beat(running(waiting=True), told)
    assert (peek.waiting, peek.started_at, peek.usage) == (False, 12500, used)
    assert (peek.stderr, peek.stderr_next_offset) == ("oh\n", 3)


def test_text_is_cut_at_the_same_point_whether_committed_or_not() -> None:
    """B6."""
    nearly = running("x" * (CAP_CHARACTERS - 2))
    peek = with_beat(nearly, beat(stdout_from=CAP_CHARACTERS - 2, stdout="yyyy"))
    assert peek.stdout.endswith("xyy" + CAP_MARKER)
    again = with_beat(peek, beat(stdout_from=CAP_CHARACTERS - 2, stdout="yyyy", tail_stdout="zz"))
    assert again.stdout == peek.stdout
    assert again.tail_stdout == "zz"


def test_a_peek_as_json_has_the_fields_that_people_know() -> None:
    """B3, B13."""
    end = JobEnd(
        EXEC_ID, "failed", error="ValueError: no", exit_code=1,
        failing_line=FailingLine(3, "raise ValueError"), usage=JobUsage(2.0, 1.0, 10),
        started_at=1.0, ended_at=3.0,
    )  # fmt: skip
    told = with_end(running("hi\n", name="train", run_id="task/s/t/1", step="go"), end).as_json()
    assert told == {
        "exec_id": EXEC_ID, "status": "failed", "done": True, "name": "train", "waiting": False,
        "stdout": "hi\n", "stderr": "", "interrupted": False, "error": "ValueError: no",
        "exit_code": 1, "failing_line": {"number": 3, "text": "raise ValueError"},
        "usage": {"wall_seconds": 2.0, "cpu_seconds": 1.0, "peak_memory_bytes": 10},
        "attempts": 1, "started_at": 1000, "ended_at": 3000, "offset": 0, "next_offset": 3,
        "stderr_offset": 0, "stderr_next_offset": 0, "live_stdout": "", "live_stderr": "",
        "tail_stdout": "", "tail_stderr": "", "run_id": "task/s/t/1", "step": "go",
    }  # fmt: skip
    undelivered = running(interrupt_undelivered="no worker").as_json()
    assert undelivered["interrupt_undelivered"] == "no worker"


def test_exec_ids_are_drawn_and_look_as_they_should() -> None:
    """B1."""
    drawn = {draw_exec_id() for _ in range(100)}
    assert len(drawn) == 100
    assert all(len(exec_id) == 17 and exec_id.startswith("exec-") for exec_id in drawn)


# --- What a record tells ----------------------------------------------------------------------


def test_a_record_tells_of_a_job_what_its_task_knows() -> None:
    entry = {
        "exec_id": EXEC_ID, "name": "train", "step": "go", "epoch": 0, "attempt": 1,
        "status": "running", "launched_at": 5.0, "started_at": None, "ended_at": None,
        "usage": {"wall_seconds": 0.0, "cpu_seconds": 0.0, "peak_memory_bytes": 0},
    }  # fmt: skip
    peek = of_record(entry, "task/s/t/1")
    assert (peek.name, peek.step, peek.started_at, peek.done) == ("train", "go", 5000, False)
    ended = of_record({**entry, "status": "done", "started_at": 6.0, "ended_at": 9.0}, "task/s/t/1")
    assert (ended.started_at, ended.ended_at, ended.went_well) == (6000, 9000, True)


@pytest.mark.parametrize(
    "wrong",
    [{"exec_id": "../x"}, {"status": "sleeping"}, {"ended_at": 1e300}, {"usage": 3}, {"error": []}],
)
def test_a_record_that_tells_nonsense_of_a_job_is_told_in_a_line(wrong: dict[str, object]) -> None:
    entry: dict[str, object] = {"exec_id": EXEC_ID, "status": "done", **wrong}
    with pytest.raises(ResultsError, match=rf"task/s/t/1 .*\({next(iter(wrong))}"):
        of_record(entry, "task/s/t/1")


# --- Files -------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The files of a job that failed, below `results`."""
    folder = tmp_path / "results" / "s" / "t" / "1" / "jobs" / EXEC_ID
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_bytes("añ\n".encode() + b"\xff\n")
    end = JobEnd(EXEC_ID, "failed", error="exit code 3", exit_code=3, started_at=1, ended_at=2)
    (folder / "job.json").write_bytes(adapter(JobEnd).dump_json(end))
    return folder


def test_a_job_is_read_from_its_files_without_any_server(stored: Path) -> None:
    results = stored.parents[4]
    found = find_job(results, EXEC_ID)
    assert found is not None
    peek = found.peek()
    assert (peek.status, peek.exit_code, peek.run_id) == ("failed", 3, "task/s/t/1")
    assert (peek.stdout, peek.next_offset, peek.stderr) == ("añ\n\ufffd\n", 5, "")
    assert found.peek(3).stdout == "\ufffd\n"
    assert found.peek(99).next_offset == 99
    assert [job.exec_id for job in jobs_in(stored.parents[1], "task/s/t/1")] == [EXEC_ID]
    assert find_job(results, "exec-000000000000") is None
    assert find_job(results, "../..") is None
    assert find_job(results / "absent", EXEC_ID) is None


def test_files_are_cut_where_peeks_are(stored: Path) -> None:
    """B6."""
    (stored / "stdout.log").write_text("x" * CAP_CHARACTERS + "y")
    peek = find_job(stored.parents[4], EXEC_ID).peek()  # type: ignore[union-attr]
    assert peek.stdout == "x" * CAP_CHARACTERS + CAP_MARKER


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'{"exec_id": "exec-0123456789ab", "status": "fine"}', b"\xff"]
)
def test_a_job_whose_file_is_not_ours_is_told_in_a_line(stored: Path, content: bytes) -> None:
    (stored / "job.json").write_bytes(content)
    with pytest.raises(ResultsError, match=r"job\.json: .*move it away"):
        find_job(stored.parents[4], EXEC_ID).peek()  # type: ignore[union-attr]


def test_a_job_whose_file_tells_of_another_one_is_told_in_a_line(stored: Path) -> None:
    told = json.loads((stored / "job.json").read_text())
    (stored / "job.json").write_text(json.dumps({**told, "exec_id": "exec-\x1b[2J"}))
    with pytest.raises(ResultsError, match=r"another job \('exec-\\x1b"):
        find_job(stored.parents[4], EXEC_ID).peek()  # type: ignore[union-attr]


def test_a_pipe_in_the_place_of_a_jobs_output_holds_nobody_up(stored: Path) -> None:
    (stored / "stdout.log").unlink()
    os.mkfifo(stored / "stdout.log")
    with pytest.raises(ResultsError, match=r"stdout\.log: "):
        find_job(stored.parents[4], EXEC_ID).peek()  # type: ignore[union-attr]


# --- On a server with a worker --------------------------------------------------------------------

FOREVER = "import time\nprint('on')\nwhile True: time.sleep(0.01)"


@pytest.fixture
async def run(perdure: Perdure, tmp_path: Path) -> AsyncIterator[TaskHandle]:
    """A task that lasts as long as the test."""
    go = tmp_path / "go"
    hold = f"while [ ! -e '{go}' ]; do sleep 0.05; done"
    step = {"id": "hold", "type": "command", "command": hold}
    run = await perdure.start_task({"id": f"t{uuid.uuid4().hex[:8]}", "steps": [step]})
    yield run
    go.touch()
    await run.result()


async def printed(job: JobHandle, text: str) -> None:
    """Wait until a job has printed something."""

    async def has() -> bool:
        peek = await job.peek()
        return text in peek.stdout

    await until(has, f"{text!r} is printed")


async def test_a_job_is_launched_peeked_interrupted_and_read_after_its_end(
    perdure: Perdure, run: TaskHandle
) -> None:
    """B3, B4, B5, B12, BD5, BD11."""
    job = await run.launch_job(FOREVER, name="train")
    await printed(job, "on\n")
    peek = await perdure.peek(job.exec_id)
    assert (peek.status, peek.done, peek.ended_at, peek.name) == ("running", False, None, "train")
    assert (peek.run_id, peek.step, peek.attempts) == (run.id, None, 1)
    assert (await perdure.interrupt(job.exec_id)).exec_id == job.exec_id
    end = await perdure.wait_job(job.exec_id)
    assert (end.status, end.error, end.interrupted) == ("interrupted", "Interrupted", True)
    assert (end.stdout, end.next_offset) == ("on\n", 3)
    assert end.started_at is not None
    assert end.ended_at is not None
    assert end.usage.wall_seconds > 0
    again = await perdure.interrupt(job.exec_id, kill=True)
    assert again == end, "an interrupt of a job that has ended is a peek"


async def test_a_failed_cell_tells_its_line_and_its_stderr(
    perdure: Perdure, run: TaskHandle
) -> None:
    """BD8, B20."""
    job = await run.launch_job("import sys\nprint('oh', file=sys.stderr)\n1/0")
    end = await job.wait()
    assert (end.status, end.error) == ("failed", "ZeroDivisionError: division by zero")
    assert end.failing_line == FailingLine(3, "1/0")
    assert end.stderr.startswith("oh\n")
    assert "line 3" in end.stderr


async def test_a_job_gives_way_to_steps(run: TaskHandle) -> None:
    code = "import os\nprint(os.nice(0))\ntry: print(open('/proc/self/autogroup').read())\n"
    job = await run.launch_job(f"{code}except OSError: pass")
    nice, *group = (await job.wait()).stdout.split()
    assert int(nice) == min(19, os.nice(0) + JOB_NICENESS)
    assert not group or group[-1] == nice, "where Linux schedules sessions, the session does so"


async def test_an_offset_goes_on_where_the_last_peek_ended(run: TaskHandle) -> None:
    """BD9."""
    job = await run.launch_job("for n in range(5): print('ünï' * 40_000)")
    whole = await job.wait()
    assert whole.stdout == ("ünï" * 40_000 + "\n") * 5
    assert (await job.peek(offset=whole.next_offset)).stdout == ""
    part = await job.peek(offset=120_001, stderr_offset=7)
    assert part.stdout == whole.stdout[120_001:]
    assert (part.offset, part.next_offset, part.stderr_next_offset) == (120_001, 600_005, 7)


async def test_a_follower_is_given_each_character_once(run: TaskHandle) -> None:
    job = await run.launch_job(
        "import time\nfor n in range(40):\n print(n)\n time.sleep(0.02)", name="count"
    )
    async with aclosing(job.follow()) as texts:
        text = "".join([piece async for piece in texts])
    assert text == "".join(f"{n}\n" for n in range(40))


async def test_waiting_ends_at_its_time_limit_and_the_job_goes_on(run: TaskHandle) -> None:
    """BD10."""
    job = await run.launch_job(FOREVER)
    assert not (await job.wait(timeout=0.2)).done
    assert (await job.interrupt(kill=True)).exec_id == job.exec_id
    assert (await job.wait()).status == "killed"


async def test_a_launch_that_is_repeated_starts_nothing(run: TaskHandle) -> None:
    exec_id = draw_exec_id()
    first = await run.launch_job("print(1)", exec_id=exec_id)
    await first.wait()
    second = await run.launch_job("print(1)", exec_id=exec_id)
    assert second.exec_id == exec_id
    assert [job.exec_id for job in await run.jobs()] == [exec_id]


async def test_the_jobs_of_a_run_are_listed_with_those_that_have_ended(run: TaskHandle) -> None:
    """B15."""
    done = await run.launch_job("print(1)", name="one")
    await done.wait()
    lasting = await run.launch_job(FOREVER, name="two")
    await printed(lasting, "on\n")
    listed = await run.jobs()
    assert [(job.name, job.status, job.stdout) for job in listed] == [
        ("one", "done", "1\n"), ("two", "running", "on\n"),
    ]  # fmt: skip
    assert listed[0] == await done.peek()
    brief = await run.jobs(output=False)
    assert [(job.name, job.status, job.stdout) for job in brief] == [
        ("one", "done", ""), ("two", "running", ""),
    ]  # fmt: skip
    assert (await run.record())["jobs"][0]["exec_id"] == done.exec_id


async def test_a_peek_of_a_running_job_costs_two_calls(perdure: Perdure, run: TaskHandle) -> None:
    job = await run.launch_job(FOREVER)
    await printed(job, "on\n")
    calls: list[str] = []

    class Counted(OutboundInterceptor):
        async def describe_workflow(
            self, input: DescribeWorkflowInput
        ) -> WorkflowExecutionDescription:
            calls.append("describe")
            return await super().describe_workflow(input)

        async def query_workflow(self, input: QueryWorkflowInput) -> Any:
            calls.append(input.query)
            return await super().query_workflow(input)

    class Counting(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Counted(next)

    config = perdure.client.config()
    config["interceptors"] = [Counting()]
    counted = Client(**config)
    peek = await JobsApi(counted).peek(job.exec_id)
    assert peek.stdout == "on\n"
    assert calls == ["describe", "peek"]
    await job.interrupt(kill=True)


async def test_a_follower_and_a_waiter_outlast_a_server_that_does_not_answer(
    perdure: Perdure, run: TaskHandle
) -> None:
    job = await run.launch_job("print('on')")
    away = ["describe"] * 3

    class Away(OutboundInterceptor):
        async def describe_workflow(
            self, input: DescribeWorkflowInput
        ) -> WorkflowExecutionDescription:
            if away:
                away.pop()
                raise RPCError("it is restarted", RPCStatusCode.UNAVAILABLE, b"")
            return await super().describe_workflow(input)

    class Leaving(Interceptor):
        def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
            return Away(next)

    config = perdure.client.config()
    config["interceptors"] = [Leaving()]
    api = JobsApi(Client(**config))
    with pytest.raises(JobUnreadable, match=f"{job.exec_id}: the Temporal service says UNAVAIL"):
        await api.peek(job.exec_id)
    assert "".join([peek.stdout async for peek in api.follow(job.exec_id)]) == "on\n"
    away.append("describe")
    assert (await api.wait(job.exec_id)).status == "done"


@pytest.mark.parametrize("exec_id", ["exec-000000000000", "train", "", "exec-\x00" + "x" * 5000])
async def test_an_unknown_job_is_named(perdure: Perdure, exec_id: str) -> None:
    """B14."""
    named = re.escape(f"there is no job {exec_id[:256]!r}")
    for ask in (perdure.peek, perdure.interrupt, perdure.wait_job):
        with pytest.raises(UnknownJob, match=named):
            await ask(exec_id)
    with pytest.raises(UnknownJob):
        await anext(perdure.follow_job(exec_id))


async def test_what_cannot_be_launched_is_refused_before_anything_is_asked(
    perdure: Perdure, run: TaskHandle
) -> None:
    """B19."""
    with pytest.raises(JobRefused, match="code: has 200,001 characters"):
        await run.launch_job("#" * 200_001)
    with pytest.raises(JobRefused, match="neither code nor argv"):
        await run.launch_job()
    with pytest.raises(JobRefused, match="cannot be a job's id"):
        await run.launch_job("1", exec_id="mine")
    with pytest.raises(TypeError, match="there is no keyword 'nmae'; did you mean 'name'"):
        await run.launch_job("1", nmae="x")  # type: ignore[call-arg]
    with pytest.raises(UnknownRun):
        await perdure.run("s/absent").launch_job("1")


async def test_a_task_that_has_ended_takes_no_job(perdure: Perdure) -> None:
    """B16."""
    step = {"id": "s", "type": "command", "command": "true"}
    run = await perdure.start_task({"id": f"t{uuid.uuid4().hex[:8]}", "steps": [step]})
    await run.result()
    with pytest.raises(JobRefused, match="has ended: no job can be launched"):
        await run.launch_job("1")


# --- Without a worker, without a history ----------------------------------------------------------


async def job_of(place: Bench, code: str) -> tuple[JobsApi, str]:
    """A job beside a task that lasts, on a worker of the test's own."""
    task = await place.start({"id": "hold", "type": "command", "command": "sleep 600"})
    api = JobsApi(place.client, place.options.results)
    exec_id = draw_exec_id()
    await api.launch(task.id, JobLaunch(exec_id, JobSpec(code)))
    return api, exec_id


async def test_a_job_is_read_while_no_worker_lives(
    temporal: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BD1."""
    monkeypatch.setattr(jobs, "ANSWER", timedelta(seconds=0.5))
    async with bench(temporal.client, tmp_path, drain=timedelta(0)) as place:
        api, done = await job_of(place, "print('one')")
        end = await api.wait(done)
        api, lasting = await job_of(place, FOREVER)
        await until(lambda: _has(api, lasting, "on\n"), "it prints")
    assert await api.peek(done) == end
    peek = await api.peek(lasting)
    assert peek.stdout == "on\n"
    assert peek.status in ("running", "lost"), "nobody has told the server of its end yet"


async def _has(api: JobsApi, exec_id: str, text: str) -> bool:
    return text in (await api.peek(exec_id)).stdout


async def test_a_job_that_the_server_has_forgotten_is_read_from_its_files(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    async with bench(temporal.client, tmp_path) as place:
        api, exec_id = await job_of(place, "import sys\nprint('one')\nsys.stderr.write('two')")
        end = await api.wait(exec_id)
        service = temporal.client.workflow_service
        await service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=temporal.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=job_workflow_id(exec_id)),
            )
        )

        async def is_forgotten() -> bool:
            try:
                await JobsApi(temporal.client).peek(exec_id)
            except UnknownJob:
                return True
            return False

        await until(is_forgotten, "the server forgets it")
        kept = await api.peek(exec_id)
        assert replace(kept, started_at=end.started_at) == replace(end, name=None, step=None)
        await api.interrupt(exec_id)
        assert (await api.wait(exec_id)).stdout == end.stdout


@activity.defn(name=RUN_JOB)
async def beating(nothing: str) -> None:
    """Says in its heartbeat what this version cannot read."""
    activity.heartbeat({"progress": ["something"]})
    await asyncio.sleep(600)


@workflow.defn(name=JOB_WORKFLOW)
class OtherJob:
    """A job of a version whose workers answer no `peek`."""

    @workflow.run
    async def run(self, job: dict[str, Any]) -> None:
        await workflow.execute_activity(beating, "", start_to_close_timeout=timedelta(minutes=10))

    @workflow.signal(name=JOB_OUTPUT)
    def output(self, batch: dict[str, Any]) -> None:
        pass


async def _beats(handle: WorkflowHandle[Any, Any]) -> bool:
    told = (await handle.describe()).raw_description.pending_activities
    return any(pending.HasField("heartbeat_details") for pending in told)


async def test_a_job_of_a_worker_of_another_version_is_read_from_its_history(
    temporal: WorkflowEnvironment,
) -> None:
    queue, exec_id = f"q-{uuid.uuid4().hex[:8]}", draw_exec_id()
    ref = RunRef("task/s/t/1", "r", "s", "t", 1)
    job = JobInput(exec_id, JobSpec("1", name="old"), JobOrigin("step", "go"), ref)
    async with Worker(
        temporal.client,
        task_queue=queue,
        workflows=[OtherJob],
        activities=[beating],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        handle = await temporal.client.start_workflow(
            JOB_WORKFLOW, job, id=job_workflow_id(exec_id), task_queue=queue
        )
        await until(lambda: _beats(handle), "its worker has told something")
        await handle.signal(JOB_OUTPUT, OutputBatch(1, 0, "abc\n", 0, ""))
        await handle.signal(JOB_OUTPUT, {"nothing": "of ours"})
        await handle.signal(JOB_OUTPUT, OutputBatch(1, 2, "c\nd", 0, "e"))
        peek = await JobsApi(temporal.client).peek(exec_id, 1)
        assert (peek.stdout, peek.stderr, peek.next_offset) == ("bc\nd", "e", 5)
        assert (peek.name, peek.step, peek.run_id) == ("old", "go", "task/s/t/1")
        await handle.terminate()
    end = await JobsApi(temporal.client).wait(exec_id)
    assert (end.status, end.error) == ("lost", "its workflow was terminated")


async def test_what_is_no_job_of_ours_is_told_in_a_line(temporal: WorkflowEnvironment) -> None:
    exec_id = draw_exec_id()
    await temporal.client.start_workflow(
        JOB_WORKFLOW, "nonsense", id=job_workflow_id(exec_id), task_queue="nobody's"
    )
    with pytest.raises(JobUnreadable, match=f"{exec_id}: no worker answers, and .* cannot be read"):
        await asyncio.wait_for(JobsApi(temporal.client).peek(exec_id), 20)


async def test_a_launch_that_no_worker_answers_says_what_to_do(
    temporal: WorkflowEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "LAUNCH", timedelta(seconds=0.5))
    async with bench(temporal.client, tmp_path, drain=timedelta(0)) as place:
        task = await place.start({"id": "hold", "type": "command", "command": "sleep 600"})
    launch = JobLaunch(draw_exec_id(), JobSpec("1"))
    with pytest.raises(PerdureError, match=r"does not answer within .* worker"):
        await JobsApi(temporal.client).launch(task.id, launch)
    await temporal.client.get_workflow_handle(task.id).terminate()
