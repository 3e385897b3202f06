"""Steps that launch jobs and wait for them: `background`, `await`, and `host.jobs`."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from activities.host import StepHost
from activities.step_jobs import StepJobs
from activities.steps import await_job
from activities.threads import StepThreads, ThreadHost
from perdure.core.job_output import CAP_MARKER
from perdure.errors import PerdureError
from perdure.job_messages import JobOrigin, JobSpec
from perdure.jobs import UnknownJob
from perdure.steps import StepFailed
from tests.activities.step_jobs_kit import JobsInMemory, jobs_of
from tests.activities.steps_kit import Kit
from tests.waiting import until

ID = "exec-0123456789ab"


@pytest.fixture
def api() -> JobsInMemory:
    return JobsInMemory()


def host_with(kit: Kit, jobs: StepJobs, **document: Any) -> StepHost:
    host = kit.host({"id": "s", "type": "custom", **document})
    host.give_jobs(jobs)
    return host


async def awaited(kit: Kit, api: JobsInMemory, **keys: Any) -> Any:
    host = host_with(kit, jobs_of(api))
    return await kit.run("await", host, **{"job": ID, **keys})


async def not_awaited(kit: Kit, api: JobsInMemory, **keys: Any) -> StepFailed:
    host = host_with(kit, jobs_of(api))
    return await kit.fail("await", host, **{"job": ID, **keys})


# --- background ----------------------------------------------------------------------------


async def test_a_step_launches_a_job_and_does_not_wait(kit: Kit, api: JobsInMemory) -> None:
    host = host_with(kit, jobs_of(api, attempt=3))
    result = await kit.run(
        "background", host, command="sleep 999", name="nap", env={"A": "1"}, time_limit=60.0
    )
    (launch,) = api.launches
    assert result == {"exec_id": launch.exec_id, "status": "running"}
    assert launch.origin == JobOrigin("step", "s", 0, 3)
    assert launch.spec == JobSpec(
        argv=["/bin/sh", "-c", "sleep 999"], name="nap", env={"A": "1"}, time_limit_seconds=60.0
    )


async def test_a_refusal_fails_the_step_and_may_be_tried_again(kit: Kit, api: JobsInMemory) -> None:
    api.refusal = "16 jobs of the task run, and at most 16 may; wait for the end of one"
    failed = await kit.fail("background", host_with(kit, jobs_of(api)), code="1")
    assert (str(failed), failed.type, failed.retryable) == (api.refusal, "JobRefused", True)


async def test_a_launch_without_an_answer_is_asked_for_again_as_the_same_job(
    kit: Kit, api: JobsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.failures = 2
    await kit.run("background", host_with(kit, jobs_of(api)), code="1")
    assert len(api.launches) == 1
    api.failures = 2
    monkeypatch.setattr("activities.step_jobs.PATIENCE_SECONDS", 0)
    with pytest.raises(PerdureError, match="nobody answers"):
        await kit.run("background", host_with(kit, jobs_of(api)), code="1")


# --- await ---------------------------------------------------------------------------------


async def test_the_result_is_the_jobs_record(kit: Kit, api: JobsInMemory) -> None:
    api.have(ID, status="done", stdout="made 7\n", stderr="warn\n", exit_code=0, name="make")
    result = await awaited(kit, api)
    assert (result["exec_id"], result["status"], result["exit_code"]) == (ID, "done", 0)
    assert (result["stdout"], result["stderr"], result["name"]) == ("made 7\n", "warn\n", "make")
    assert "live_stdout" not in result


async def test_a_name_means_the_newest_job_that_has_it(kit: Kit, api: JobsInMemory) -> None:
    api.have("exec-000000000001", status="failed", name="train", stdout="old")
    api.have("exec-000000000002", status="done", name="train", stdout="new")
    api.have("exec-000000000003", "task/s/other/1", status="done", name="train", stdout="theirs")
    assert (await awaited(kit, api, job="train"))["stdout"] == "new"


async def test_nobody_waits_for_a_job_that_is_not_there(kit: Kit, api: JobsInMemory) -> None:
    api.have("exec-000000000001", name="train")
    failed = await not_awaited(kit, api, job="trian")
    assert (failed.type, failed.retryable) == ("NoSuchJob", False)
    assert str(failed) == "the task has no job 'trian'; those with a name: 'train'"
    assert (await not_awaited(kit, api)).type == "NoSuchJob"


async def test_a_job_is_interrupted_after_its_time(kit: Kit, api: JobsInMemory) -> None:
    api.have(ID)
    result = await awaited(kit, api, interrupt_after=0.05)
    assert result["status"] == "interrupted"
    assert api.interrupts == [(ID, 5.0)]
    api.have(ID, status="running")
    await awaited(kit, api, interrupt_after=0.05, kill_after=0.5)
    assert api.interrupts[1:] == [(ID, 0.5)]


async def test_a_job_that_ends_in_time_is_not_interrupted(kit: Kit, api: JobsInMemory) -> None:
    api.have(ID)
    waiting = asyncio.create_task(awaited(kit, api, interrupt_after=60))
    await until(lambda: api.changed.is_set() is False)
    api.have(ID, status="done")
    assert (await waiting)["status"] == "done"
    assert api.interrupts == []


@pytest.mark.parametrize(
    ("status", "accept", "good"),
    [
        ("done", None, True),
        ("interrupted", None, True),
        ("failed", None, False),
        ("killed", None, False),
        ("lost", None, False),
        ("killed", ["killed"], True),
        ("done", ["killed", "lost"], False),
        ("failed", ["failed"], True),
    ],
)
async def test_accept_says_which_ends_are_good(
    kit: Kit, api: JobsInMemory, status: str, accept: list[str] | None, good: bool
) -> None:
    api.have(ID, status=status, error="exit code 3", stderr="one\nboom\n")
    keys = {} if accept is None else {"accept": accept}
    if good:
        assert (await awaited(kit, api, **keys))["status"] == status
        return
    failed = await not_awaited(kit, api, **keys)
    assert failed.type == "JobNotAccepted"
    assert str(failed) == (
        f"job '{ID}' ended as {status}: exit code 3; stderr ends with:\none\nboom"
    )
    assert isinstance(failed.result, dict)
    assert failed.result["stderr"] == "one\nboom\n"


ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("keep", "stdout"),
    [
        (False, ""),
        (0, ""),
        (3, "abc\n...(20 bytes left out)...\nxyz"),
        (13, ALPHABET),
        (True, ALPHABET),
    ],
)
async def test_output_is_kept_as_the_step_says(
    kit: Kit, api: JobsInMemory, keep: bool | int, stdout: str
) -> None:
    api.have(ID, status="done", stdout=ALPHABET)
    assert (await awaited(kit, api, keep_output=keep))["stdout"] == stdout


async def test_the_end_of_what_was_beyond_the_cap_is_kept(kit: Kit, api: JobsInMemory) -> None:
    api.have(ID, status="done", stdout="a" * 1_000_000 + CAP_MARKER, tail_stdout="the very end")
    stdout = (await awaited(kit, api, keep_output=100))["stdout"]
    assert stdout.startswith("a" * 100 + "\n...(")
    assert stdout.endswith(" bytes left out)...\nthe very end")


async def test_whoever_waits_gives_signs_of_life(
    kit: Kit, api: JobsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(await_job, "BEAT_SECONDS", 0.01)
    api.have(ID)
    host = host_with(kit, jobs_of(api))
    waiting = asyncio.create_task(kit.run("await", host, job=ID))
    moved = host.moved_at
    await until(lambda: host.moved_at > moved)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert api.interrupts == []


# --- Which job is meant --------------------------------------------------------------------


async def test_each_call_and_each_attempt_launches_a_job_of_its_own(api: JobsInMemory) -> None:
    first, second = jobs_of(api, attempt=1), jobs_of(api, attempt=2)
    ids = [await jobs.launch("1") for jobs in (first, first, second, jobs_of(api, step="other"))]
    assert len(set(ids)) == 4


async def test_the_same_call_of_the_same_attempt_means_the_same_job(api: JobsInMemory) -> None:
    assert await jobs_of(api).launch("1") == await jobs_of(api).launch("1")
    assert len(api.jobs) == 1


async def test_c27_what_a_lost_attempt_launched_is_not_run_twice(api: JobsInMemory) -> None:
    left = await jobs_of(api, attempt=1).launch("1", restartable=True)
    assert await jobs_of(api, attempt=2, lost=(1,)).launch("1", restartable=True) == left
    assert api.interrupts == []
    assert len(api.launches) == 1

    plain = await jobs_of(api, attempt=1).launch("2")
    again = await jobs_of(api, attempt=3, lost=(1, 2)).launch("2")
    assert again != plain
    assert api.interrupts == [(plain, 0.0)]
    assert api.jobs[plain].status == "killed"
    assert api.jobs[again].status == "running"


async def test_a_restartable_job_that_was_lost_all_the_same_is_launched_anew(
    api: JobsInMemory,
) -> None:
    left = await jobs_of(api, attempt=1).launch("1", restartable=True)
    api.have(left, status="lost")
    assert await jobs_of(api, attempt=2, lost=(1,)).launch("1", restartable=True) != left


async def test_an_attempt_that_is_over_launches_and_sees_nothing(api: JobsInMemory) -> None:
    jobs = jobs_of(api)
    exec_id = await jobs.launch("1")
    jobs.end()
    for call in (jobs.launch("2"), jobs.peek(exec_id), jobs.interrupt(exec_id), jobs.list(),
                 jobs.wait(exec_id)):  # fmt: skip
        with pytest.raises(StepFailed, match="is over"):
            await call
    assert len(api.launches) == 1


async def test_what_undoes_a_step_has_no_jobs(kit: Kit) -> None:
    with pytest.raises(StepFailed, match="launches and sees no jobs"):
        _ = kit.host({"id": "s", "type": "custom"}).jobs


async def test_a_secret_does_not_go_into_the_history(api: JobsInMemory) -> None:
    jobs = jobs_of(api, secrets=("s3cr3t-CANARY",))
    specs: list[dict[str, Any]] = [
        {"code": "login('s3cr3t-CANARY')"},
        {"argv": ["x", "--key=s3cr3t-CANARY"]},
        {"code": "1", "env": {"K": "s3cr3t-CANARY"}},
        {"code": "def f(i): 1", "entrypoint": "f", "args": {"k": ["s3cr3t-CANARY"]}},
    ]
    for spec in specs:
        with pytest.raises(StepFailed, match="it holds a secret") as failed:
            await jobs.launch(**spec)
        assert failed.value.type == "BadJob"
        assert "CANARY" not in str(failed.value)
    assert api.launches == []
    await jobs.launch("1", env={"K": {"from_env": "K"}})


async def test_a_name_stands_for_its_newest_job_after_one_has_ended(api: JobsInMemory) -> None:
    jobs = jobs_of(api)
    first = await jobs.launch("1", name="n")
    assert (await jobs.peek("n")).exec_id == first
    api.have(first, status="done")
    assert (await jobs.peek("n")).done
    api.have("exec-000000000009", name="n")  # somebody else's
    assert (await jobs.peek("n")).exec_id == "exec-000000000009"
    with pytest.raises(UnknownJob, match="those with a name: 'n'"):
        await jobs.peek("other")


# --- From functions of people's own --------------------------------------------------------


async def use_async(step: dict[str, Any], context: Any, host: Any) -> Any:
    exec_id = await host.jobs.launch("print(1)", name="n")
    interrupted = await host.jobs.interrupt(exec_id, kill_after=3)
    ended = await host.jobs.wait("n", timeout=20)
    return [ended.status, interrupted.exec_id, len(await host.jobs.list())]


def use_plainly(step: dict[str, Any], context: Any, host: Any) -> Any:
    exec_id = host.jobs.launch("print(1)", name="n")
    interrupted = host.jobs.interrupt(exec_id, kill_after=3)
    ended = host.jobs.wait("n", timeout=20)
    return [ended.status, interrupted.exec_id, len(host.jobs.list())]


@pytest.mark.parametrize("function", [use_async, use_plainly])
async def test_functions_on_threads_use_jobs_in_their_own_way(
    kit: Kit, api: JobsInMemory, function: Any
) -> None:
    host = host_with(kit, jobs_of(api))
    threads = StepThreads(1)
    apart = ThreadHost(host, asyncio.get_running_loop())
    result = await threads.run(function, {}, None, apart, on_cancel=apart.cancel)
    threads.close()
    exec_id = api.launches[0].exec_id
    assert result == ["interrupted", exec_id, 1]
    assert api.interrupts == [(exec_id, 3.0)]


async def test_a_plain_function_that_waits_for_a_job_hears_of_its_cancel(
    kit: Kit, api: JobsInMemory
) -> None:
    api.have(ID)
    waits = threading.Event()
    told: list[BaseException] = []

    def wait(host: Any) -> None:
        waits.set()
        try:
            host.jobs.wait(ID)
        except BaseException as error:
            told.append(error)
            host.jobs.interrupt(ID)  # so much it can still do
            host.jobs.peek(ID)

    host = host_with(kit, jobs_of(api))
    threads = StepThreads(1)
    apart = ThreadHost(host, asyncio.get_running_loop())
    running = asyncio.create_task(threads.run(wait, apart, on_cancel=apart.cancel))
    await until(waits.is_set)
    await asyncio.sleep(0)
    began = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    threads.close()
    assert time.monotonic() - began < 9  # not left behind
    assert [type(error) for error in told] == [StepFailed]
    assert api.interrupts == [(ID, None)]
