"""The activities of background jobs, with a real server, real workflows and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from activities import marker
from activities.job_elsewhere import signal_elsewhere
from activities.job_stop import stop_all
from activities.secrets import WorkerEnvironment
from perdure.core.job_output import CAP_MARKER
from perdure.job_messages import (
    FailingLine,
    InterruptAnswer,
    InterruptOrder,
    JobEnd,
    StopJobs,
)
from perdure.payloads import adapter
from perdure.server_process import FLAGS
from tests.activities.jobs_kit import Job, JobsKit, environment
from tests.activities.living import SLEEP, living, new_tag, sleepers
from tests.conftest import find_program
from tests.waiting import until


@pytest.fixture
async def kit(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[JobsKit]:
    """A kit whose workflows are served; workers of jobs are each test's own."""
    made = JobsKit(temporal.client, tmp_path, environment())
    async with made.workflows():
        yield made


@pytest.fixture
async def served(kit: JobsKit) -> AsyncIterator[JobsKit]:
    """One with a worker of jobs."""
    async with kit.worker():
        yield kit


@pytest.fixture
async def tag() -> AsyncIterator[str]:
    made = new_tag()
    yield made
    for pid in living(made):
        os.kill(pid, signal.SIGKILL)


def no_process(exec_id: str) -> bool:
    return not marker.find(f"job/{exec_id}.", prefix=True)


# --- What a job is -------------------------------------------------------------------------------


async def test_a_cell_is_run_and_told_of_whole(served: JobsKit) -> None:
    job = await served.launch("import sys\nprint('é out')\nsys.stderr.write('err\\n')\n6 * 7")
    end = await job.end()
    assert (end.status, end.error, end.exit_code, end.attempts) == ("done", None, 0, 1)
    page = await job.page()
    assert (page.stdout, page.stderr) == ("é out\n42\n", "err\n")
    assert page.done
    assert page.started_at is not None
    assert page.ended_at is not None
    assert page.started_at <= page.ended_at
    assert 0 < end.usage.cpu_seconds < 60
    assert end.usage.wall_seconds > 0
    assert end.usage.peak_memory_bytes > 1_000_000
    assert no_process(job.exec_id)


async def test_a_failing_cell_shows_its_line_and_its_traceback(served: JobsKit) -> None:
    job = await served.launch("x = 1\nraise ValueError('no')\n")
    end = await job.end()
    assert (end.status, end.error) == ("failed", "ValueError: no")
    assert end.failing_line == FailingLine(2, "raise ValueError('no')")
    page = await job.page()
    assert '  File "<cell>", line 2, in <module>' in page.stderr


@pytest.mark.parametrize(
    ("argv", "more", "status", "error"),
    [
        (["/bin/sh", "-c", "exit 0"], {}, "done", None),
        (["/bin/sh", "-c", "exit 3"], {}, "failed", "exit code 3"),
        (["/bin/sh", "-c", "exit 3"], {"ok_exit_codes": [0, 3]}, "done", None),
        (["/bin/sh", "-c", "kill -9 $$"], {}, "failed", "ended by signal 9"),
    ],
)
async def test_a_command_counts_by_its_exit_code(
    served: JobsKit, argv: list[str], more: dict[str, Any], status: str, error: str | None
) -> None:
    end = await (await served.launch(argv=argv, **more)).end()
    assert (end.status, end.error) == (status, error)


async def test_an_exit_of_a_cell_counts_by_its_code(served: JobsKit) -> None:
    assert (await (await served.launch("exit()")).end()).status == "done"
    end = await (await served.launch("import sys; sys.exit(4)")).end()
    assert (end.status, end.error, end.exit_code) == ("failed", "exit code 4", 4)
    end = await (await served.launch("import os; os.abort()")).end()
    assert (end.status, end.error) == ("failed", "ended by signal 6")


async def test_what_cannot_be_started_says_why(served: JobsKit) -> None:
    end = await (await served.launch(argv=["no-such-program"])).end()
    assert (end.status, end.exit_code) == ("failed", None)
    assert end.error is not None
    assert "cannot start 'no-such-program': no such program" in end.error
    end = await (await served.launch("1", env={"KEY": {"from_env": "NOT_THERE"}})).end()
    assert end.error is not None
    assert "NOT_THERE" in end.error
    end = await (await served.launch("1", environment="shop")).end()
    assert end.error is not None
    assert "no instance of the environment 'shop'" in end.error
    end = await (await served.launch("1", cwd="../../..")).end()
    assert end.error is not None
    assert "leads out" in end.error


async def test_b8_what_perdure_itself_cannot_do_is_a_fixed_text(served: JobsKit) -> None:
    served.runs.parent.mkdir(exist_ok=True)
    served.runs.write_text("a file in the place of a folder")
    end = await (await served.launch("1")).end()
    assert (end.status, end.error) == ("failed", "background execution failed")


async def test_a_job_sees_what_a_step_sees_and_its_own_id(served: JobsKit) -> None:
    code = "import json, os\nprint(json.dumps(dict(os.environ)))"
    job = await served.launch(code, env={"MODE": "train"}, context={"metadata": {"k": 1}})
    await job.end()
    seen = json.loads((await job.page()).stdout)
    assert seen["PERDURE_JOB_ID"] == job.exec_id
    assert seen["PERDURE_STEP_ID"] == "train"
    assert seen["PERDURE_TASK_ID"] == "t"
    assert seen["MODE"] == "train"
    assert not {"OTHER", "PERDURE_OUTPUT", "PERDURE_ARTIFACTS", "PERDURE_JOBS"} & set(seen)
    work = Path(seen["PERDURE_WORKDIR"])
    assert work == served.place(job).parents[1] / "work"
    job = await served.launch("import os\nprint(os.getcwd())", cwd=None)
    await job.end()
    assert (await job.page()).stdout == f"{work}\n"
    (work / "below").mkdir()
    job = await served.launch("import os\nprint(os.getcwd())", cwd="below")
    await job.end()
    assert (await job.page()).stdout == f"{work}/below\n"


async def test_an_entrypoint_is_given_the_tasks_context(served: JobsKit) -> None:
    code = """
import json, os
def main(call):
    same = json.load(open(os.environ["PERDURE_CONTEXT"])) == call["context"]
    return call["args"], call["results"], same
"""
    context = {"results": {"build": {"n": 1}}, "metadata": {"k": "v"}}
    job = await served.launch(code, entrypoint="main", args=[1], context=context)
    assert (await job.end()).status == "done"
    assert (await job.page()).stdout == "([1], {'build': {'n': 1}}, True)\n"
    assert not (served.place(job) / "context.json").exists()


async def test_c49_secrets_of_a_job_are_masked_wherever_they_come_out(
    temporal: WorkflowEnvironment, tmp_path: Path
) -> None:
    secret = "s3cr3t-CANARY-9f"
    worker = WorkerEnvironment({"PATH": os.environ["PATH"], "REAL": secret})
    kit = JobsKit(temporal.client, tmp_path, worker)
    code = """
import os
print(os.environ["KEY"], end="\\r", flush=True)
print("x", os.environ["KEY"])
raise ValueError(os.environ["KEY"])
"""
    async with kit.workflows(), kit.worker():
        job = await kit.launch(code, env={"KEY": {"from_env": "REAL"}})
        end = await job.end()
    assert end.error == "ValueError: ***"
    history = (await job.handle.fetch_history()).to_json()
    assert secret not in history
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not any(secret in content for content in files)


async def test_c31_stdin_is_at_its_end_unless_something_is_given(served: JobsKit) -> None:
    job = await served.launch(argv=["cat"])
    assert (await job.end()).status == "done"
    job = await served.launch(argv=["cat"], stdin="given é")
    await job.end()
    assert (await job.page()).stdout == "given é"
    job = await served.launch("import sys\nsys.stdin.read()", stdin="given")
    await job.end()
    assert (await job.page()).stdout == "'given'\n"


async def test_bd10_a_job_over_its_time_limit_is_ended(served: JobsKit, tag: str) -> None:
    argv = ["/bin/sh", "-c", f"echo begun; {SLEEP} {tag}; :"]
    job = await served.launch(argv=argv, time_limit_seconds=0.5)
    end = await job.end()
    assert (end.status, end.error) == ("failed", "the job ran longer than its limit of 0.5 s")
    assert (await job.page()).stdout == "begun\n"
    assert sleepers(tag) == 0


# --- Output --------------------------------------------------------------------------------------


async def test_b5_output_is_seen_while_the_job_runs(served: JobsKit) -> None:
    job = await served.launch("import time\nprint('first', flush=True)\ntime.sleep(600)")
    await job.prints("first\n")
    page = await job.page()
    assert (page.status, page.waiting, page.done) == ("running", False, False)
    await job.interrupt()
    await job.end()


async def test_what_is_not_committed_yet_rides_in_the_heartbeat(served: JobsKit) -> None:
    code = """
import sys, time
print("first")
for n in range(10**9):
    sys.stderr.write(f"\\r{n}%")
    time.sleep(0.02)
"""
    job = await served.launch(code)

    async def bar() -> bool:
        beat = await job.beat()
        return beat is not None and int(beat.live_stderr.rstrip("%") or 0) > 50

    await until(bar, "the bar in the heartbeat")
    beat = await job.beat()
    assert beat
    assert beat.pid
    assert beat.usage.wall_seconds > 0
    assert await job.all_of("stderr") == "", "a bar costs no history"
    await job.interrupt()
    assert (await job.end()).status == "interrupted"
    last = (await job.all_of("stderr")).partition("%")[0]
    assert int(last) >= int(beat.live_stderr.rstrip("%")), "its last state is kept"


async def test_b6_a_burst_is_cut_at_the_cap_and_costs_few_events(served: JobsKit) -> None:
    code = "for n in range(12_000): print('é' * 99)\nprint('last words')"
    job = await served.launch(code)
    assert (await job.end()).status == "done"
    text = await job.all_of()
    assert text == ("é" * 99 + "\n") * 10_000 + CAP_MARKER
    page = await job.page(2**40)
    assert page.tail_stdout.endswith("é\nlast words\n")
    events = len((await job.handle.fetch_history()).events)
    assert events < 60 * 2 + 40, "of 2 MB"
    kept = served.kept(job) / "stdout.log"
    assert kept.read_text() == text


async def test_both_streams_arrive_whole_and_in_order(served: JobsKit) -> None:
    code = """
import sys
for n in range(20_000):
    print(n)
    sys.stderr.write(f"e{n}\\n")
"""
    job = await served.launch(code)
    await job.end()
    assert await job.all_of() == "".join(f"{n}\n" for n in range(20_000))
    assert await job.all_of("stderr") == "".join(f"e{n}\n" for n in range(20_000))


async def test_binary_output_is_replaced_and_never_fatal(served: JobsKit) -> None:
    code = "import os\nos.write(1, bytes(range(256)) * 400)\nprint('after')"
    job = await served.launch(code)
    assert (await job.end()).status == "done"
    text = await job.all_of()
    assert text.endswith("after\n")
    assert "�" in text


async def test_a_jobs_files_lie_with_the_results_as_soon_as_it_has_ended(served: JobsKit) -> None:
    job = await served.launch("print('kept')\nraise ValueError('no')")
    end = await job.end()
    kept = served.kept(job)
    assert sorted(path.name for path in kept.iterdir()) == ["job.json", "stderr.log", "stdout.log"]
    assert (kept / "stdout.log").read_text() == "kept\n"
    told: JobEnd = adapter(JobEnd).validate_json((kept / "job.json").read_bytes())
    assert (told.status, told.error, told.failing_line) == (end.status, end.error, end.failing_line)


async def test_results_that_cannot_be_written_cost_the_job_nothing(served: JobsKit) -> None:
    served.results.write_text("a file in the place of a folder")
    job = await served.launch("print('all the same')")
    assert (await job.end()).status == "done"
    assert (await job.page()).stdout == "all the same\n"


# --- Interrupts and kills ------------------------------------------------------------------------


async def test_c25d_an_interrupted_cell_has_time_to_save(served: JobsKit) -> None:
    code = """
import time
try:
    print("training", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    print("saved")
"""
    job = await served.launch(code)
    await job.prints("training\n")
    await job.interrupt()
    await job.interrupt()
    end = await job.end()
    assert (end.status, end.error, end.interrupted) == ("interrupted", "Interrupted", True)
    assert (await job.page()).stdout == "training\nsaved\n"


async def test_bd4_a_deaf_job_is_killed_with_all_that_it_started(served: JobsKit, tag: str) -> None:
    """BD4."""
    script = f"trap '' INT TERM; echo deaf; setsid {SLEEP} {tag} & {SLEEP} {tag}; {SLEEP} {tag}"
    job = await served.launch(argv=["/bin/sh", "-c", script])
    await job.prints("deaf\n")
    await until(lambda: sleepers(tag) == 2, "the tree")
    await job.interrupt(kill_after=0.5)
    end = await job.end()
    assert (end.status, end.interrupted) == ("killed", True)
    assert end.exit_code == -9
    assert sleepers(tag) == 0
    assert (await job.page()).stdout == "deaf\n"


async def test_bd2_an_interrupt_right_after_the_launch_interrupts(served: JobsKit) -> None:
    """BD2."""
    for pause in (0.0, 0.05, 0.1):
        job = await served.launch("import time\ntime.sleep(600)")
        await asyncio.sleep(pause)
        await job.interrupt()
        assert (await job.end()).status == "interrupted"
        assert no_process(job.exec_id)


async def test_b13_an_interrupt_that_reaches_nobody_says_so(kit: JobsKit) -> None:
    async with kit.worker() as jobs:
        for kill in (False, True):
            answer = await jobs.interrupt_job(InterruptOrder("exec-0123456789ab", 1, kill))
            assert answer == InterruptAnswer(False, "no process of it runs on this host")
        job = await kit.launch("import time\nprint('on', flush=True)\ntime.sleep(600)")
        await job.prints("on\n")
        answer = await jobs.interrupt_job(InterruptOrder(job.exec_id, 2))
        assert answer == InterruptAnswer(False, "its process has ended")
        await job.interrupt()
        await job.end()


async def test_a_job_can_be_interrupted_by_another_worker_of_its_host(kit: JobsKit) -> None:
    async with kit.worker():
        job = await kit.launch("import time\nprint('on', flush=True)\ntime.sleep(600)")
        await job.prints("on\n")
        reason = await asyncio.to_thread(signal_elsewhere, InterruptOrder(job.exec_id, 1))
        assert reason is None
        assert (await job.end()).status == "interrupted"
        job = await kit.launch(argv=["sleep", "600"])

        async def begun() -> bool:
            return not no_process(job.exec_id)

        await until(begun, "the process")
        order = InterruptOrder(job.exec_id, 1, kill=True)
        assert await asyncio.to_thread(signal_elsewhere, order) is None
        assert (await job.end()).error == "ended by signal 9"


async def test_bd7_deaf_jobs_are_stopped_all_at_once(served: JobsKit, tag: str) -> None:
    """BD7."""
    script = f"trap '' INT TERM; echo deaf; {SLEEP} {tag}; {SLEEP} {tag}"
    jobs = [await served.launch(argv=["/bin/sh", "-c", script]) for _ in range(3)]
    for job in jobs:
        await job.prints("deaf\n")
    ended = await served.launch("1")
    await ended.end()
    unknown = "exec-0123456789ab"
    began = time.monotonic()
    exec_ids = [job.exec_id for job in [*jobs, ended]]
    ends = await stop_all(served.client, StopJobs([*exec_ids, unknown], grace_seconds=0.5))
    assert time.monotonic() - began < 0.5 + 5
    assert [end.status for end in ends] == ["killed"] * 3 + ["done", "lost"]
    assert [end.exec_id for end in ends] == [*exec_ids, unknown]
    assert sleepers(tag) == 0


# --- Workers come and go -------------------------------------------------------------------------


async def test_bd10_a_job_waits_while_its_worker_is_full(kit: JobsKit) -> None:
    async with kit.worker(slots=1):
        first = await kit.launch("import time\nprint('on', flush=True)\ntime.sleep(600)")
        await first.prints("on\n")
        second = await kit.launch("print('me too')")
        page = await second.page()
        assert (page.status, page.waiting) == ("running", True)
        await first.interrupt()
        assert (await second.end()).status == "done"


async def test_a_stopping_worker_ends_its_jobs_and_says_so(kit: JobsKit, tag: str) -> None:
    async with kit.worker(drain_seconds=0.2):
        job = await kit.launch(argv=["/bin/sh", "-c", f"echo begun; {SLEEP} {tag}; :"])
        await job.prints("begun\n")
    end = await job.end()
    assert (end.status, end.error) == ("lost", "its worker was stopped")
    assert (await job.page()).stdout == "begun\n"
    assert sleepers(tag) == 0
    told = json.loads((kit.kept(job) / "job.json").read_bytes())
    assert told["status"] == "lost"


async def test_a_restartable_job_starts_again_on_the_next_worker(kit: JobsKit) -> None:
    code = """
import os, time
print("start", os.environ["PERDURE_ATTEMPT"], flush=True)
if os.environ["PERDURE_ATTEMPT"] == "1":
    time.sleep(600)
"""
    async with kit.worker(drain_seconds=0.1):
        job = await kit.launch(code, restartable=True)
        await job.prints("start 1\n")
    async with kit.worker():
        end = await job.end()
    assert (end.status, end.attempts) == ("done", 2)
    expected = "start 1\n[perdure: the worker was lost; started again]\nstart 2\n"
    assert (await job.page()).stdout == expected
    assert (kit.kept(job) / "stdout.log").read_text() == expected


async def test_a_terminated_job_leaves_no_process(served: JobsKit, tag: str) -> None:
    job = await served.launch(argv=["/bin/sh", "-c", f"echo on; setsid {SLEEP} {tag}"])
    await until(lambda: sleepers(tag) == 1, "its process")
    await job.handle.terminate()
    await until(lambda: no_process(job.exec_id), "the end of its processes")
    assert sleepers(tag) == 0


async def test_a_killed_supervisor_loses_the_job_and_nothing_of_it_runs(
    kit: JobsKit, tag: str
) -> None:
    async with kit.worker() as jobs:
        job = await kit.launch(argv=["/bin/sh", "-c", f"echo on; {SLEEP} {tag}"])
        await job.prints("on\n")
        os.kill(jobs._supervisor.pid, signal.SIGKILL)
        end = await job.end()
        assert (end.status, end.error) == ("lost", "its worker was lost")
        assert sleepers(tag) == 0
        assert (await (await kit.launch("1")).end()).status == "done", "a new one is there"


# --- Hostile jobs, and clients that never rest ---------------------------------------------------


async def test_pipes_in_the_place_of_its_logs_hold_up_no_worker(served: JobsKit) -> None:
    code = """
import os
from pathlib import Path
(folder,) = Path(os.environ["PERDURE_WORKDIR"]).parent.glob("jobs/*")
for name in ("stdout.log", "stderr.log"):
    (folder / name).unlink()
    os.mkfifo(folder / name)
"""
    job = await served.launch(code)
    assert (await job.end()).status == "done"
    assert (served.kept(job) / "stdout.log").read_bytes() == b""


@pytest.fixture
async def few_signals(temporal: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[JobsKit]:
    """A kit on a server of its own, which takes six signals for a workflow, and not 10,000."""
    async with await WorkflowEnvironment.start_local(
        data_converter=temporal.client.data_converter,
        dev_server_existing_path=find_program("temporal"),
        dev_server_extra_args=[
            *FLAGS,
            *("--dynamic-config-value", "history.maximumSignalsPerExecution=6"),
        ],
    ) as server:
        made = JobsKit(server.client, tmp_path, environment())
        async with made.workflows(), made.worker():
            yield made


async def interrupt_without_end(job: Job) -> None:
    """As somebody does who asks again and again; until the server refuses it."""
    for _ in range(6):
        with contextlib.suppress(RPCError):  # its output has taken some of them
            await job.handle.signal("in vain")
    with pytest.raises(RPCError) as refused:
        await job.handle.signal("in vain")
    assert refused.value.status is RPCStatusCode.INVALID_ARGUMENT


async def test_a_job_that_can_hear_no_signal_any_more_is_stopped_all_the_same(
    few_signals: JobsKit,
) -> None:
    job = await few_signals.launch("import time\nprint('on', flush=True)\ntime.sleep(600)")
    await job.prints("on\n")
    await interrupt_without_end(job)
    async with asyncio.timeout(60):
        (end,) = await stop_all(few_signals.client, StopJobs([job.exec_id], grace_seconds=0.5))
    assert end.status == "interrupted"


async def test_a_job_whose_output_cannot_be_handed_on_ends_and_its_files_have_all_of_it(
    few_signals: JobsKit,
) -> None:
    code = """
import os, time
print("on", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
print("x" * 300_000)
"""
    job = await few_signals.launch(code)
    await job.prints("on\n")
    await interrupt_without_end(job)
    (few_signals.place(job).parents[1] / "work" / "go").touch()
    assert (await job.end()).status == "done"
    assert len((few_signals.kept(job) / "stdout.log").read_text()) == 300_004
