"""Background jobs that steps launch, through a real server, a real worker and real processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.testing import WorkflowEnvironment

from activities.secrets import WorkerEnvironment
from perdure.client import Perdure
from perdure.jobs import JobsApi
from perdure.names import job_workflow_id
from perdure.peeks import Peek
from perdure.steps import step
from tests.kit import Bench, bench, processes_with, step_named
from tests.mortal import Mortal
from tests.waiting import until, written


@step("kit-watch", keys={"job", "word"})
async def watch(step: dict[str, Any], context: Any, host: Any) -> Any:
    while step["word"] not in (await host.jobs.peek(step["job"])).stdout:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return {"names": [job.name for job in await host.jobs.list()]}


@step("kit-use-jobs")
def use_jobs(step: dict[str, Any], context: Any, host: Any) -> Any:
    exec_id = host.jobs.launch("import time\nprint('begun', flush=True)\ntime.sleep(600)")
    while "begun" not in host.jobs.peek(exec_id).stdout:
        pass
    host.jobs.interrupt(exec_id)
    ended = host.jobs.wait(exec_id)
    return {"status": ended.status, "error": ended.error, "stdout": ended.stdout}


@pytest.fixture
async def here(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[Bench]:
    variables = {"PATH": os.environ["PATH"]}
    async with bench(temporal.client, tmp_path, environment=WorkerEnvironment(variables)) as made:
        yield made


@pytest.fixture
def mark() -> str:
    """A word in the command lines of one test's processes."""
    return f"mark-{uuid.uuid4().hex}"


def shell(id: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "command", "command": command, **more}


def background(id: str, command: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "background", "command": command, **more}


def family(mark: str) -> str:
    """A shell that sleeps, with a child and a grandchild that do."""
    tree = f"(sleep 600.1; : {mark}) & sh -c 'sh -c \"sleep 600.2; : {mark}\"; : {mark}' & wait"
    return f"echo begun; {tree}; : {mark}"


async def jobs_of(here: Bench, handle: WorkflowHandle[Any, Any]) -> list[Peek]:
    return await JobsApi(here.client, here.options.results).list(handle.id)


async def begun(here: Bench, handle: WorkflowHandle[Any, Any]) -> None:
    """Return when a job of the task has printed that it has begun."""

    async def one_has() -> bool:
        return any("begun" in job.stdout for job in await jobs_of(here, handle))

    await until(one_has, "a job has begun")


async def nothing_left(client: Client, mark: str, exec_ids: list[str]) -> None:
    """Return when no process and no open workflow of the jobs is left."""
    await until(lambda: not processes_with(mark), "no process of the job is left")

    async def all_closed() -> bool:
        found = [
            await client.get_workflow_handle(job_workflow_id(id)).describe() for id in exec_ids
        ]
        return all(job.status is not WorkflowExecutionStatus.RUNNING for job in found)

    await until(all_closed, "the job's workflow is closed")


# --- Launch, peek, await -------------------------------------------------------------------


async def test_a_step_launches_another_peeks_until_a_word_shows_and_the_task_goes_on(
    here: Bench,
) -> None:
    loop = "for n in range(10**6):\n print('epoch', n, flush=True)\n time.sleep(0.05)"
    record = await here.run(
        {"id": "launch", "type": "background", "code": f"import time\n{loop}", "name": "train"},
        {"id": "watch", "type": "kit-watch", "job": "train", "word": "epoch 3"},
        {"id": "stop", "type": "await", "job": "train", "interrupt_after": 0.1},
        shell("after", "echo on"),
    )
    assert record["status"] == "succeeded", record["failure"]
    results = record["context"]["results"]
    exec_id = results["launch"]["exec_id"]
    assert results["launch"]["status"] == "running"
    assert results["watch"] == {"names": ["train"]}
    stopped = results["stop"]
    assert (stopped["exec_id"], stopped["status"], stopped["error"]) == (
        exec_id, "interrupted", "Interrupted",
    )  # fmt: skip
    assert stopped["stdout"].startswith("epoch 0\nepoch 1\nepoch 2\nepoch 3\n")
    assert results["after"]["stdout"] == "on\n"
    (job,) = record["jobs"]
    assert (job["exec_id"], job["step"], job["status"]) == (exec_id, "launch", "interrupted")


async def test_a_plain_function_launches_waits_and_interrupts(here: Bench) -> None:
    record = await here.run({"id": "a", "type": "kit-use-jobs"})
    assert record["status"] == "succeeded", record["failure"]
    assert record["context"]["results"]["a"] == {
        "status": "interrupted", "error": "Interrupted", "stdout": "begun\n",
    }  # fmt: skip


async def test_a_job_that_fails_fails_the_step_that_waits_for_it(here: Bench) -> None:
    record = await here.run(
        {"id": "launch", "type": "background", "code": "x = 1\n1 / 0", "name": "bad"},
        {"id": "wait", "type": "await", "job": "bad"},
    )
    assert record["status"] == "failed"
    failure = record["failure"]
    assert (failure["step"], failure["type"]) == ("wait", "JobNotAccepted")
    assert "job 'bad' ended as failed: ZeroDivisionError" in failure["message"]
    kept = record["context"]["results"]["wait"]
    assert (kept["failing_line"]["number"], kept["status"]) == (2, "failed")
    assert "ZeroDivisionError" in kept["stderr"]


async def test_what_the_document_says_of_a_job_is_what_its_process_gets(here: Bench) -> None:
    show = "import os, sys; print(os.getcwd(), os.environ['MODE'], sys.stdin.read(), end='')"
    record = await here.run(
        shell("prepare", "mkdir -p deep"),
        {
            "id": "launch",
            "type": "background",
            "command": [sys.executable, "-c", f"{show}; raise SystemExit(3)"],
            "cwd": "deep",
            "env": {"MODE": "eval"},
            "stdin": "fed",
            "ok_exit_codes": [3],
            "name": "show",
        },
        {"id": "wait", "type": "await", "job": "show"},
    )
    assert record["status"] == "succeeded", record["failure"]
    cwd, mode, fed = record["context"]["results"]["wait"]["stdout"].split()
    assert (Path(cwd).name, mode, fed) == ("deep", "eval", "fed")


# --- A step's own process ------------------------------------------------------------------

AGENT = """
import json, os, sys, time, urllib.error
from urllib.request import urlopen

jobs = os.environ["PERDURE_JOBS"] + "/jobs"
assert not [name for name in os.environ if name.startswith("TEMPORAL")]
cell = "import time\\nprint('begun', flush=True)\\ntime.sleep(600)"
made = json.load(urlopen(jobs, json.dumps({"code": cell, "name": "mine"}).encode()))
while "begun" not in json.load(urlopen(f"{jobs}/{made['exec_id']}"))["stdout"]:
    time.sleep(0.05)
try:
    urlopen(jobs, json.dumps({"code": cell, "name": "mine"}).encode())
except urllib.error.HTTPError as error:
    refused = [error.code, json.load(error)["error"]]
urlopen(f"{jobs}/mine/interrupt", json.dumps({"kill_after": 5}).encode())
while not (ended := json.load(urlopen(f"{jobs}/mine")))["done"]:
    time.sleep(0.05)
listed = json.load(urlopen(jobs))
open("address", "w").write(jobs)
print(json.dumps({"made": made, "refused": refused, "ended": ended["status"],
                  "listed": [job["exec_id"] for job in listed]}))
"""

ASK_LATER = """
import urllib.error, urllib.request
try:
    urllib.request.urlopen(open("address").read())
except urllib.error.HTTPError as error:
    print(error.code)
"""


async def test_a_steps_own_process_uses_jobs_without_temporal(here: Bench) -> None:
    record = await here.run(
        {"id": "agent", "type": "command", "command": [sys.executable, "-c", AGENT], "json": True},
        {"id": "later", "type": "command", "command": [sys.executable, "-c", ASK_LATER]},
    )
    assert record["status"] == "succeeded", record["failure"]
    told = record["context"]["results"]["agent"]["json"]
    exec_id = told["made"]["exec_id"]
    assert told["made"] == {"exec_id": exec_id, "status": "running"}
    assert told["refused"][0] == 409
    assert exec_id in told["refused"][1]
    assert (told["ended"], told["listed"]) == ("interrupted", [exec_id])
    assert record["context"]["results"]["later"]["stdout"] == "403\n"
    (job,) = record["jobs"]
    assert (job["step"], job["name"], job["status"]) == ("agent", "mine", "interrupted")


# --- The task's end ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["success", "failure", "cancel", "cancel twice", "time limit"])
async def test_c38_nothing_of_a_job_outlives_its_task(here: Bench, mark: str, how: str) -> None:
    last = {"success": "true", "failure": "exit 3"}.get(how, "sleep 600")
    handle = await here.start(
        background("launch", family(mark), name="tree"),
        {"id": "watch", "type": "kit-watch", "job": "tree", "word": "begun"},
        shell("last", last),
        timeout=5 if how == "time limit" else None,
    )
    if how.startswith("cancel"):
        await begun(here, handle)
        assert processes_with(mark)
        await handle.cancel()
        if how == "cancel twice":
            await handle.cancel()
    with suppress(WorkflowFailureError):
        await handle.result()
    # At its end nothing is left, not only some time later: what comes next may need the same.
    assert processes_with(mark) == []
    record = here.record(handle)
    (job,) = record["jobs"]
    assert job["status"] in ("interrupted", "killed"), job
    await nothing_left(here.client, mark, [job["exec_id"]])
    (peek,) = await jobs_of(here, handle)
    assert (peek.status, peek.stdout) == (job["status"], "begun\n")


async def test_c38_a_terminated_tasks_job_ends_soon(
    here: Bench, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.jobs.PARENT_CHECK_SECONDS", 0.5)
    handle = await here.start(
        background("launch", family(mark)), shell("last", "sleep 600"),
    )  # fmt: skip
    await begun(here, handle)
    (job,) = await jobs_of(here, handle)
    await handle.terminate()
    await nothing_left(here.client, mark, [job.exec_id])


async def test_c38_a_terminated_jobs_processes_end_and_the_task_goes_on(
    here: Bench, mark: str
) -> None:
    handle = await here.start(
        background("launch", family(mark), name="tree"),
        shell("last", "while [ ! -e go ]; do sleep 0.05; done"),
    )
    await begun(here, handle)
    (job,) = await jobs_of(here, handle)
    await here.client.get_workflow_handle(job_workflow_id(job.exec_id)).terminate()
    await nothing_left(here.client, mark, [job.exec_id])
    (here.work_of(handle) / "go").touch()
    assert (await handle.result()).status == "succeeded"


async def test_bd7_a_task_ends_its_deaf_jobs_all_at_once(here: Bench, mark: str) -> None:
    deaf = f"trap '' INT; echo begun; sleep 600.{{}}; : {mark}"
    steps = [background(f"l{n}", deaf.format(n), name=f"j{n}") for n in range(3)]
    watching = [
        {"id": f"w{n}", "type": "kit-watch", "job": f"j{n}", "word": "begun"} for n in range(3)
    ]
    record = await here.run(*steps, *watching)
    assert record["status"] == "succeeded", record["failure"]
    assert [job["status"] for job in record["jobs"]] == ["killed"] * 3
    assert processes_with(mark) == []
    ended = [job["ended_at"] for job in record["jobs"]]
    assert max(ended) - min(ended) < 4  # one after the other, they would take 5 s each


# --- Rollback ------------------------------------------------------------------------------


async def test_a_rollback_interrupts_the_jobs_of_its_span_then_kills_them(
    here: Bench, mark: str
) -> None:
    """The first one hears of it and says so, the other is deaf."""
    polite = (
        "import signal, sys, time\n"
        "def leave(*_):\n    open('left', 'a').write('x')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, leave)\n"
        "print('begun', flush=True)\ntime.sleep(600)\n"
    )
    handle = await here.start(
        background("outside", f"echo begun; sleep 600.9; : {mark}", name="outside"),
        {"id": "polite", "type": "background", "command": [sys.executable, "-c", polite, mark],
         "name": "polite"},
        background("deaf", f"trap '' INT; echo begun; sleep 600.7; : {mark}", name="deaf"),
        {"id": "w1", "type": "kit-watch", "job": "polite", "word": "begun"},
        {"id": "w2", "type": "kit-watch", "job": "deaf", "word": "begun"},
        shell(
            "judge",
            "test -e twice && exit 0; touch twice; exit 3",
            retry_config={"retry_from_step_id": "polite"},
        ),
        shell("last", "cat left; while [ ! -e go ]; do sleep 0.05; done"),
    )  # fmt: skip
    await until(lambda: (here.work_of(handle) / "left").exists(), "the polite job has left")

    async def is_over() -> bool:
        return len(await jobs_of(here, handle)) == 5

    await until(is_over, "both were launched again")
    jobs = await jobs_of(here, handle)
    assert [(job.name, job.status) for job in jobs[:3]] == [
        ("outside", "running"), ("polite", "interrupted"), ("deaf", "killed"),
    ]  # fmt: skip
    assert [(job.name, job.status) for job in jobs[3:]] == [
        ("polite", "running"), ("deaf", "running"),
    ]  # fmt: skip
    (here.work_of(handle) / "go").touch()
    assert (await handle.result()).status == "succeeded"
    record = here.record(handle)
    undone = [(c["step_id"], c["kind"]) for c in record["rollbacks"][0]["compensations"]]
    assert [(id, kind) for id, kind in undone if kind == "jobs"] == [
        ("deaf", "jobs"), ("polite", "jobs"),
    ]  # fmt: skip
    assert record["compensation_failures"] == []
    assert step_named(record, "outside")["attempts"][0]["status"] == "succeeded"
    await nothing_left(here.client, mark, [job.exec_id for job in jobs])


async def test_two_attempts_of_a_step_that_fails_launch_two_jobs(here: Bench, mark: str) -> None:
    code = (
        "import json, os, sys\nfrom urllib.request import urlopen\n"
        "body = {'argv': ['/bin/sh', '-c', 'echo begun; sleep 600; : " + mark + "']}\n"
        "jobs = os.environ['PERDURE_JOBS'] + '/jobs'\n"
        "made = json.load(urlopen(jobs, json.dumps(body).encode()))\n"
        "open('made', 'a').write(made['exec_id'] + '\\n')\n"
        "sys.exit(3 if os.environ['PERDURE_ATTEMPT'] == '1' else 0)\n"
    )
    handle = await here.start(
        {"id": "a", "type": "command", "command": [sys.executable, "-c", code],
         "retry": {"max_attempts": 2, "initial_interval": 0}},
    )  # fmt: skip
    assert (await handle.result()).status == "succeeded"
    made = (here.work_of(handle) / "made").read_text().split()
    assert len(set(made)) == 2
    record = here.record(handle)
    assert [(job["exec_id"], job["attempt"]) for job in record["jobs"]] == [
        (made[0], 1), (made[1], 2),
    ]  # fmt: skip
    await nothing_left(here.client, mark, made)


async def test_a_secret_of_a_job_is_in_no_history_and_no_file(here: Bench) -> None:
    canary = "s3cr3t-CANARY-j6"
    secret = here.options.runs.parent / "secret"
    secret.write_text(canary)
    handle = await here.start(
        background(
            "launch", 'echo "it is $KEY"', name="tell", env={"KEY": {"from_file": str(secret)}}
        ),
        {"id": "wait", "type": "await", "job": "tell"},
    )
    assert (await handle.result()).status == "succeeded"
    record = here.record(handle)
    assert record["context"]["results"]["wait"]["stdout"] == "it is ***\n"
    exec_id = record["jobs"][0]["exec_id"]
    for workflow in (handle, here.client.get_workflow_handle(job_workflow_id(exec_id))):
        assert canary not in (await workflow.fetch_history()).to_json()
    await written(here.results_of(handle) / "jobs" / exec_id / "stdout.log")
    files = [path for path in here.options.results.rglob("*") if path.is_file()]
    assert all(canary not in path.read_text("utf-8", "replace") for path in files)
    assert json.loads((here.results_of(handle) / "jobs" / exec_id / "job.json").read_text())


# --- Where it runs -------------------------------------------------------------------------


async def test_jobs_of_a_task_that_is_bound_to_its_host_run_there(
    perdure: Perdure, mark: str
) -> None:
    """On a server that is not embedded, with a client that sees and stops what a step launched."""
    run = await perdure.start_task(
        {
            "id": f"t{uuid.uuid4().hex[:8]}",
            "steps": [
                background("launch", family(mark), name="tree"),
                {"id": "wait", "type": "await", "job": "tree", "accept": ["interrupted"]},
                shell("after", "echo on"),
            ],
        }
    )

    async def has_begun() -> bool:
        return any("begun" in job.stdout for job in await run.jobs())

    await until(has_begun, "the job has begun")
    (job,) = await run.jobs()
    assert (job.name, job.step, job.run_id) == ("tree", "launch", run.id)
    await perdure.interrupt(job.exec_id, kill_after=5)
    await run.result()
    assert (await perdure.peek(job.exec_id)).status == "interrupted"
    assert processes_with(mark) == []


# --- Lost workers --------------------------------------------------------------------------

LAUNCH_AND_HANG = """
import json, os, sys, time
from urllib.request import urlopen

jobs, restartable = os.environ["PERDURE_JOBS"] + "/jobs", sys.argv[1] == "restartable"
body = {"argv": ["/bin/sh", "-c", "echo $$ >>starts; sleep 600; : " + sys.argv[2]],
        "name": "only", "restartable": restartable}
made = json.load(urlopen(jobs, json.dumps(body).encode()))
open("made", "a").write(made["exec_id"] + "\\n")
while os.environ["PERDURE_ATTEMPT"] == "1":
    time.sleep(0.05)
"""


@pytest.fixture
def mortal(temporal: WorkflowEnvironment, tmp_path: Path) -> Iterator[Mortal]:
    made = Mortal(temporal.client, tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("how", ["restartable", "once"])
async def test_c27_a_step_whose_worker_was_lost_launches_no_second_job_beside_the_first(
    mortal: Mortal, mark: str, how: str
) -> None:
    here = mortal.bench
    command = [sys.executable, "-c", LAUNCH_AND_HANG, how, mark]
    handle = await here.start(
        {"id": "a", "type": "command", "command": command, "heartbeat_timeout": 1},
        shell("last", "until [ -e go ]; do sleep 0.05; done", heartbeat_timeout=1),
    )
    work = here.work_of(handle)
    await written(work / "starts")
    await written(work / "made")
    mortal.kill_and_start()

    def has_started_again() -> bool:
        return all(len((work / name).read_text().split()) == 2 for name in ("made", "starts"))

    await until(has_started_again, "the job runs again, and the step was tried again")
    first, second = (work / "made").read_text().split()
    assert (first == second) is (how == "restartable")
    # By session: a shell that has just forked is two processes for a moment.
    assert len({os.getsid(pid) for pid in processes_with(mark) if is_shell(pid)}) == 1
    (work / "go").touch()
    assert (await handle.result()).status == "succeeded"
    jobs = {job["exec_id"]: job for job in here.record(handle)["jobs"]}
    if how == "restartable":
        assert [job["attempts"] for job in jobs.values()] == [2]
    else:
        assert jobs[first]["status"] in ("lost", "killed")
        assert jobs[second]["status"] == "interrupted"
    await nothing_left(here.client, mark, [*jobs])


def is_shell(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).cmdline()[0] == "/bin/sh"
    return False
