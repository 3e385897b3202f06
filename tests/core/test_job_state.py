"""What a job is as of now: its starts, what was asked of it, its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from perdure.core.job_output import CAP_CHARACTERS, CAP_MARKER
from perdure.core.job_state import (
    EXECUTION_FAILED,
    INTERRUPTED,
    MAX_ERROR_CHARACTERS,
    MAX_INTERRUPTS,
    UNDELIVERED,
    WORN,
    JobLife,
)
from perdure.job_messages import (
    FailingLine,
    InterruptAnswer,
    JobBeat,
    JobExit,
    JobInput,
    JobOrigin,
    JobSpec,
    JobUsage,
    OutputBatch,
    PeekRequest,
)
from tests.core.rollback_kit import REF

DELIVERED = InterruptAnswer(delivered=True)
MISSED = InterruptAnswer(delivered=False, reason="it has ended")
EXIT = JobExit(1, "here", 0, "exit", started_at=10.0, ended_at=12.0)


def job(**spec: Any) -> JobLife:
    given = JobSpec(**spec) if "code" in spec else JobSpec(argv=["work"], **spec)
    return JobLife(JobInput("exec-000000000001", given, JobOrigin(), REF), REF.workflow_id)


def running(**spec: Any) -> JobLife:
    life = job(**spec)
    life.take(OutputBatch(1, 0, "", 0, "", 10.0), 10.5)
    return life


def interrupted(life: JobLife, answer: InterruptAnswer = DELIVERED) -> JobLife:
    life.answered(life.order(), answer, 11.0)
    return life


def ended(life: JobLife, **exit: Any) -> tuple[str, str | None]:
    life.exited(replace(EXIT, attempt=life.attempt, **exit), 12.0)
    assert life.end
    page = life.page(PeekRequest())
    assert page.done
    assert (page.status, page.error) == (life.end.status, life.end.error)
    return life.end.status, life.end.error


@pytest.mark.parametrize(
    ("spec", "exit", "told"),
    [
        ({}, {}, ("done", None)),
        ({}, {"exit_code": 3}, ("failed", "exit code 3")),
        ({"ok_exit_codes": [3]}, {"exit_code": 3}, ("done", None)),
        ({}, {"exit_code": -11}, ("failed", "ended by signal 11")),
        ({"code": "1"}, {"exit_code": 1, "error": "ValueError: no"}, ("failed", "ValueError: no")),
        ({"code": "1"}, {"exit_code": 1, "interrupted": True, "error": INTERRUPTED},
         ("interrupted", INTERRUPTED)),
        ({"time_limit_seconds": 60.0}, {"exit_code": -9, "ended_by": "timeout"},
         ("failed", "the job ran longer than its limit of 60 s")),
        ({}, {"exit_code": None, "ended_by": "unstarted", "error": "no such program"},
         ("failed", "no such program")),
        ({}, {"exit_code": None, "ended_by": "unstarted"}, ("failed", EXECUTION_FAILED)),
        ({}, {"exit_code": -9, "ended_by": "killed"}, ("killed", "killed")),
    ],
)  # fmt: skip
def test_b7_bd5_how_a_job_ended_is_told_by_a_status_and_an_error(
    spec: dict[str, Any], exit: dict[str, Any], told: tuple[str, str | None]
) -> None:
    assert ended(running(**spec), **exit) == told


def test_a_command_that_ends_after_an_interrupt_was_interrupted_whatever_its_exit_code() -> None:
    for code in (0, 1, 130, -2):
        assert ended(interrupted(running()), exit_code=code) == ("interrupted", INTERRUPTED)


def test_b20_a_cell_says_itself_whether_it_ended_for_an_interrupt() -> None:
    cell = interrupted(running(code="1"))
    assert ended(cell, exit_code=0) == ("done", None)
    assert cell.end
    assert cell.end.interrupted, "one was delivered to it"
    own = running(code="raise KeyboardInterrupt")
    assert ended(own, exit_code=1, error="KeyboardInterrupt") == ("failed", "KeyboardInterrupt")
    assert own.end
    assert not own.end.interrupted


def test_an_end_is_judged_when_all_orders_are_answered() -> None:
    life = running()
    order = life.order()
    life.exited(replace(EXIT, exit_code=-2), 12.0)
    assert life.end is None
    assert life.status == "running"
    life.answered(order, DELIVERED, 12.5)
    assert life.end
    assert life.end.status == "interrupted"


def test_b13_an_undelivered_interrupt_is_told_until_one_arrives() -> None:
    life = interrupted(running(), MISSED)
    assert life.page(PeekRequest()).interrupt_undelivered == "it has ended"
    interrupted(life, InterruptAnswer(delivered=False))
    assert life.page(PeekRequest()).interrupt_undelivered == UNDELIVERED
    assert not life.page(PeekRequest()).interrupted
    interrupted(life)
    assert life.page(PeekRequest()).interrupt_undelivered is None
    assert life.page(PeekRequest()).interrupted


def test_bd4_a_kill_after_an_interrupt_says_how_long_it_waited() -> None:
    life = interrupted(running())
    life.answered(life.order(kill=True, after_seconds=5.0), DELIVERED, 16.0)
    told = ended(life, exit_code=-9, ended_by="killed")
    assert told == ("killed", "killed: it still ran 5 s after its interrupt")


def test_a_kill_alone_is_no_interrupt() -> None:
    life = running()
    life.answered(life.order(kill=True), DELIVERED, 16.0)
    assert ended(life, exit_code=-9, ended_by="killed") == ("killed", "killed")
    assert life.end
    assert not life.end.interrupted


def test_who_is_called_off_before_it_began_was_interrupted_and_never_started() -> None:
    life = interrupted(job(), MISSED)
    assert life.is_waiting
    life.never_began(20.0)
    assert life.end
    assert (life.end.status, life.end.attempts, life.end.started_at) == ("interrupted", 0, None)
    assert life.page(PeekRequest()).interrupt_undelivered is None


def test_bd3_who_is_called_off_between_its_start_and_its_process_was_interrupted() -> None:
    life = interrupted(running(), MISSED)
    told = ended(life, exit_code=None, started_at=None, ended_by="cancelled")
    assert told == ("interrupted", f"{INTERRUPTED} before it began")


def test_a_loss_keeps_what_the_last_beat_told() -> None:
    life = running()
    life.take(OutputBatch(1, 0, "one\n", 0, "err"), 11.0)
    usage = JobUsage(3.0, 1.0, 100)
    beat = JobBeat(1, "here", stdout_from=2, stdout="e\ntwo\n", stderr_from=3, live_stdout="50%",
                   tail_stderr="tail", usage=usage)  # fmt: skip
    assert not life.lost(beat, 20.0)
    page = life.page(PeekRequest())
    assert (page.stdout, page.stderr, page.tail_stderr) == ("one\ntwo\n50%", "err", "tail")
    assert (page.status, page.error, page.usage) == ("lost", "its worker was lost", usage)


def test_a_restartable_job_starts_again_until_its_losses_are_used_up() -> None:
    life = running(restartable=True, max_worker_losses=1)
    life.take(OutputBatch(1, 0, "half", 0, "x"), 11.0)
    assert life.lost(None, 20.0, handed_back=True), "this counts against nothing"
    assert (life.attempt, life.is_waiting) == (2, True)
    task = life.task()
    assert task.attempt == 2
    assert task.stdout_from == len(life.page(PeekRequest()).stdout)
    assert task.stderr_from == 1
    late = OutputBatch(1, 4, "late", 1, "late")
    life.take(late, 21.0)
    life.exited(replace(EXIT, stdout_from=4, stdout="late"), 21.0)
    assert life.end is None
    assert life.is_waiting, "whoever was given up has no say"
    assert life.lost(JobBeat(2, "there", stdout_from=task.stdout_from, stdout="more"), 22.0)
    assert not life.lost(None, 23.0)
    assert life.end
    assert (life.end.status, life.end.attempts) == ("lost", 3)
    assert life.end.error == "its worker was lost 2 times (max_worker_losses: 1)"
    line = "[perdure: the worker was lost; started again]\n"
    assert life.page(PeekRequest()).stdout == f"half\n{line}more\n{line}"


def test_who_is_to_stop_does_not_start_again() -> None:
    life = interrupted(running(restartable=True), MISSED)
    assert not life.lost(None, 20.0)
    assert life.status == "lost"


def test_usage_is_summed_over_all_starts() -> None:
    life = running(restartable=True)
    life.lost(JobBeat(1, "here", usage=JobUsage(2.0, 1.0, 500)), 20.0)
    ended(life, usage=JobUsage(3.0, 0.5, 300))
    assert life.end
    assert life.end.usage == JobUsage(5.0, 1.5, 500)
    assert (life.end.started_at, life.end.ended_at) == (10.0, 12.0)


def test_a_page_holds_both_streams_and_says_where_the_next_begins() -> None:
    life = running()
    life.take(OutputBatch(1, 0, "é" * 40_000, 0, "e" * 60_000), 11.0)
    page = life.page(PeekRequest())
    assert (len(page.stdout), page.next_offset, page.committed) == (32_768, 32_768, 40_000)
    assert (page.stderr, page.stderr_next_offset) == ("", 0)
    page = life.page(PeekRequest(page.next_offset, 0))
    assert (len(page.stdout), page.next_offset) == (7_232, 40_000)
    assert len(page.stdout.encode()) + len(page.stderr) == 65_536
    assert life.page(PeekRequest(0, 0, 10**9)).next_offset == 32_768, "more is not given"
    assert life.page(PeekRequest(0, 0, -1)).stdout == "éé", "nor nothing"
    assert life.page(PeekRequest(90_000, 90_000)).next_offset == 90_000


def test_what_is_beyond_the_cap_is_a_tail() -> None:
    life = running()
    life.take(OutputBatch(1, 0, "x" * (CAP_CHARACTERS + 5), 0, ""), 11.0)
    ended(life, stdout_from=CAP_CHARACTERS + 5, tail_stdout="the end")
    page = life.page(PeekRequest(CAP_CHARACTERS))
    assert (page.stdout, page.tail_stdout) == (CAP_MARKER, "the end")


def test_the_end_of_a_job_is_of_one_piece_and_small() -> None:
    life = running(code="1")
    line = FailingLine(3, "raise X")
    ended(life, exit_code=1, error="X" * 10_000, failing_line=line)
    assert life.end
    assert life.end.error == "X" * MAX_ERROR_CHARACTERS
    before = life.end
    life.exited(replace(EXIT, exit_code=0), 30.0)
    life.take(OutputBatch(1, 0, "late", 0, ""), 30.0)
    life.broke(30.0)
    assert life.end == before
    assert life.page(PeekRequest()).stdout == ""
    assert life.page(PeekRequest()).failing_line == line


@pytest.mark.parametrize(
    ("code", "environment", "status"),
    [(-9, None, "killed"), (137, "shop", "killed"), (137, None, "failed"), (-15, None, "failed")],
)
def test_a_kill_by_another_worker_of_the_host_is_told_as_a_kill(
    code: int, environment: str | None, status: str
) -> None:
    life = running(environment=environment)
    life.answered(life.order(kill=True), DELIVERED, 11.0)
    assert ended(life, exit_code=code)[0] == status


def test_a_command_that_is_killed_by_others_has_failed() -> None:
    assert ended(running(), exit_code=-9) == ("failed", "ended by signal 9")


def test_interrupts_without_an_end_stop_costing_events_and_a_kill_still_works() -> None:
    life = running()
    for _ in range(MAX_INTERRUPTS):
        assert life.may_interrupt()
        interrupted(life)
    assert not life.may_interrupt()
    assert life.page(PeekRequest()).interrupt_undelivered == WORN
    life.answered(life.order(kill=True), DELIVERED, 11.0)
    assert ended(life, ended_by="killed", exit_code=-9)[0] == "killed"


def test_all_starts_of_a_job_share_what_it_may_commit() -> None:
    life = running(restartable=True)
    life.take(OutputBatch(1, 0, "one", 0, "", 10.0), 10.6)
    assert life.lost(None, 20.0, handed_back=True)
    assert life.task().commits == 2
