"""The jobs of a run: who may launch one, how many, and when they are stopped."""

from __future__ import annotations

import json
from typing import Any

from perdure.core.job_book import MAX_RUNNING_JOBS
from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease
from perdure.core.run import TaskRun
from perdure.core.run_jobs import ENDING
from perdure.job_messages import JobEnd, JobLaunch, JobOrigin, JobSpec, JobUsage
from perdure.messages import PoolUse, StepFailure, StepOutcome
from tests.core.rollback_kit import HOLDER, UNDO, Driver, back_to, drive, start, step, task
from tests.workflows.fake_pool import MAIL, SHOP

PERSON = JobOrigin("person")


def launch(number: int = 1, origin: JobOrigin = PERSON, **spec: Any) -> JobLaunch:
    return JobLaunch(f"exec-{number:012x}", JobSpec(code="1", **spec), origin)


def by(step_id: str, attempt: int = 1, epoch: int = 0) -> JobOrigin:
    return JobOrigin("step", step_id, epoch, attempt)


def claim(run: TaskRun, made: JobLaunch, now: float = 1.0) -> str:
    assert run.job_refusal(made) is None
    run.claim_job(made, now)
    return made.exec_id


def begin(run: TaskRun, made: JobLaunch, now: float = 1.0) -> str:
    exec_id = claim(run, made, now)
    run.job_started(exec_id, now)
    return exec_id


def running_task(**more: Any) -> Driver:
    driver = drive(step("a", **UNDO), step("b", "a", **UNDO, **back_to("a")), **more)
    driver.go()
    return driver


def leased(*environments: str) -> Driver:
    run = start(
        task(step("a", uses=["shop"], **back_to("a")), environments=[*environments]),
        pool=PoolUse(),
        environments=[{"shop": SHOP, "mail": MAIL}[name] for name in environments],
    )
    run.take_lease_words()
    return Driver(run)


def grant(driver: Driver) -> None:
    request = driver.run.open_lease
    assert request
    instances = [
        GrantedInstance(n, d["environment"]["name"], d["environment"]["name"], f"p{n}", {})
        for n, d in enumerate(request.environments)
    ]
    assert driver.run.lease_granted(
        Grant(request.request_id, HOLDER, "h", instances, pool="default"), 1.0
    )
    driver.run.take_lease_words()


# --- Launching --------------------------------------------------------------------------------


def test_b10_b11_a_place_is_claimed_before_the_start_and_given_back_if_it_fails() -> None:
    run = running_task().run
    made = [claim(run, launch(n)) for n in range(MAX_RUNNING_JOBS)]
    told = "16 jobs of the task run, and at most 16 may; interrupt one, or wait for the end of one"
    assert run.job_refusal(launch(99)) == told
    run.job_not_started(made[0], 2.0)
    assert run.job_refusal(launch(99)) is None
    assert run.job_refusal(launch(1)) is None, "it is known already"
    assert len(run.jobs.running) == 15
    assert "job.launched" not in [event["type"] for event in run.events]


def test_a_name_is_free_again_after_the_end_and_means_the_newest() -> None:
    run = running_task().run
    first = begin(run, launch(1, name="train"))
    assert run.job_refusal(launch(2, name="train")) == (
        f"the name 'train' is that of {first}, which runs; wait for its end, or choose another name"
    )
    run.job_ended(JobEnd(first, "done"), 2.0)
    second = claim(run, launch(2, name="train"))
    newest = run.jobs.of_name("train")
    assert newest
    assert newest.exec_id == second
    run.job_not_started(second, 3.0)
    newest = run.jobs.of_name("train")
    assert newest
    assert newest.exec_id == first


def test_only_the_attempt_that_runs_may_launch() -> None:
    driver = running_task()
    assert driver.run.job_refusal(launch(1, by("a"))) is None
    for origin in (by("a", 2), by("a", 1, 1), by("b"), by("nobody")):
        assert "does not run any more" in (driver.run.job_refusal(launch(1, origin)) or "")
    driver.end("a")
    assert "does not run any more" in (driver.run.job_refusal(launch(1, by("a"))) or "")


def test_b16_nothing_is_launched_once_the_task_has_begun_to_end() -> None:
    driver = running_task()
    driver.run.cancel("enough", 2.0)
    assert driver.run.job_refusal(launch()) == ENDING
    other = drive(step("a"))
    other.go()
    other.end("a")
    assert other.run.job_refusal(launch()) == ENDING


def test_a_job_needs_the_lease_and_an_environment_of_it() -> None:
    driver = leased("shop", "mail")
    assert "waits for its environments" in (driver.run.job_refusal(launch()) or "")
    grant(driver)
    assert driver.run.job_refusal(launch(environment="shop")) is None
    reason = driver.run.job_refusal(launch(environment="web"))
    assert reason == "environment 'web' is not one of the task's, which are: shop, mail"
    alone = running_task().run
    assert "which are: none" in (alone.job_refusal(launch(environment="shop")) or "")


# --- What is seen -----------------------------------------------------------------------------


def test_a_run_without_jobs_says_nothing_of_them() -> None:
    run = running_task().run
    for told in (run.record(), run.progress(), run.state()):
        assert "jobs" not in told


def test_record_and_progress_tell_of_jobs() -> None:
    run = running_task().run
    exec_id = begin(run, launch(1, by("a"), name="train"), 3.0)
    assert run.progress()["jobs"] == [{"exec_id": exec_id, "name": "train"}]
    end = JobEnd(exec_id, "failed", "exit code 1", 1, usage=JobUsage(1.0), started_at=4.0,
                 ended_at=5.0)  # fmt: skip
    assert run.job_ended(end, 6.0)
    assert not run.job_ended(end, 7.0), "told twice"
    assert not run.job_ended(JobEnd("exec-ffffffffffff", "done"), 7.0), "of another run"
    assert run.progress()["jobs"] == []
    (told,) = run.record()["jobs"]
    assert (told["step"], told["attempt"], told["status"]) == ("a", 1, "failed")
    assert (told["launched_at"], told["started_at"], told["ended_at"]) == (3.0, 4.0, 5.0)
    launched, ended = (event for event in run.events if event["type"].startswith("job."))
    assert (launched["type"], launched["exec_id"], launched["step"]) == (
        "job.launched",
        exec_id,
        "a",
    )
    assert (ended["status"], ended["error"]) == ("failed", "exit code 1")


def test_an_end_that_comes_before_the_word_of_the_start_is_told_after_it() -> None:
    run = running_task().run
    exec_id = claim(run, launch())
    run.job_ended(JobEnd(exec_id, "done"), 2.0)
    run.job_started(exec_id, 2.0)
    run.job_not_started(exec_id, 2.0)
    told = [event["type"] for event in run.events if event["type"].startswith("job.")]
    assert told == ["job.launched", "job.ended"]
    assert len(run.record()["jobs"]) == 1


def test_the_book_goes_over_a_continue_as_new() -> None:
    driver = running_task()
    begin(driver.run, launch(1, name="old"))
    driver.run.job_ended(JobEnd("exec-000000000001", "failed", "no"), 2.0)
    begin(driver.run, launch(2, by("a"), name="old"))
    driver.end("a")
    before = driver.run.record()["jobs"]
    driver.carry_over()
    run = driver.run
    assert run.record()["jobs"] == before
    named = run.jobs.of_name("old")
    assert named
    assert named.exec_id == "exec-000000000002"
    assert [job.exec_id for job in run.jobs.of_attempt("a", 0, 1)] == ["exec-000000000002"]
    assert json.loads(json.dumps(run.state()["jobs"])) == run.state()["jobs"]


# --- Stopping ---------------------------------------------------------------------------------


def test_bd7_what_runs_at_the_end_is_stopped_at_once_when_all_have_started() -> None:
    driver = drive(step("a"))
    driver.go()
    first, second = begin(driver.run, launch(1)), claim(driver.run, launch(2))
    assert driver.run.take_jobs_to_stop() == []
    driver.end("a")
    assert driver.run.over
    assert driver.run.take_jobs_to_stop() == [], "who is not there yet cannot be stopped"
    driver.run.job_started(second, 2.0)
    assert driver.run.take_jobs_to_stop() == [first, second]
    assert driver.run.take_jobs_to_stop() == [], "once"
    driver.run.jobs_stopped([first, second], [JobEnd(first, "interrupted")], 3.0)
    told = {job["exec_id"]: job["status"] for job in driver.run.record()["jobs"]}
    assert told == {first: "interrupted", second: "lost"}
    assert not driver.run.has_jobs


def test_b18_a_run_that_lost_its_environments_keeps_the_lease_until_its_jobs_are_gone() -> None:
    driver = leased("shop")
    grant(driver)
    driver.go()
    exec_id = begin(driver.run, launch(1, environment="shop"))
    run = driver.run
    request = run.record()["lease"]["request_id"]
    run.lease_lost(LoseLease(request, HOLDER, "it died", ["shop"]), 2.0)
    assert "starts over" in (run.job_refusal(launch(2)) or "")
    driver.end("a", StepOutcome("cancelled"))
    run.take_lease_words()
    assert run.take_jobs_to_stop() == [exec_id]
    assert run.restarts == 0
    run.jobs_stopped([exec_id], [], 3.0)
    assert run.restarts == 1
    words = [type(word).__name__ for word in run.take_lease_words()]
    assert words == ["LeaseRelease", "LeaseRequest"]


def test_a_rollback_stops_jobs_of_each_attempt_before_it_undoes_it() -> None:
    driver = running_task()
    begin(driver.run, launch(1, by("a")))
    begin(driver.run, launch(2))
    driver.end("a")
    driver.go()
    begin(driver.run, launch(3, by("b")))
    begin(driver.run, launch(4, by("b")))
    driver.run.job_ended(JobEnd("exec-000000000004", "done"), 3.0)
    driver.fail("b")
    assert driver.undo() == ["b#0.1 jobs", "b#0.1 declared", "a#0.1 jobs", "a#0.1 declared"]
    assert [undo.exec_ids for undo in driver.undone] == [
        ["exec-000000000003"], [], ["exec-000000000001"], []
    ]  # fmt: skip
    undos = driver.run.record()["rollbacks"][0]["compensations"]
    assert ["exec_ids" in undo for undo in undos] == [True, False, True, False]


def test_a_rollback_waits_for_a_job_of_its_span_that_is_being_started() -> None:
    driver = running_task()
    driver.end("a")
    driver.go()
    exec_id = claim(driver.run, launch(1, by("b")))
    driver.fail("b")
    assert driver.run.take_compensation(5.0) is None
    driver.run.job_not_started(exec_id, 6.0)
    assert driver.undo() == ["b#0.1 declared", "a#0.1 declared"]


def test_jobs_of_others_inside_what_is_reset_are_stopped_last() -> None:
    driver = leased("shop", "mail")
    grant(driver)
    driver.go()
    own = begin(driver.run, launch(1, by("a"), environment="shop"))
    guest = begin(driver.run, launch(2, environment="shop"))
    begin(driver.run, launch(3, environment="mail"))
    driver.fail("a")
    assert driver.undo() == ["a#0.1 jobs", "a#0.1 guests"]
    assert [undo.exec_ids for undo in driver.undone] == [[own], [guest]]
    assert "is being reset" in (driver.run.job_refusal(launch(4, environment="shop")) or "")
    assert driver.run.job_refusal(launch(4, environment="mail")) is None


def test_jobs_that_cannot_be_stopped_spoil_the_environments_they_are_in() -> None:
    driver = leased("shop", "mail")
    grant(driver)
    driver.go()
    exec_id = begin(driver.run, launch(1, by("a"), environment="mail"))
    driver.fail("a")
    undo = driver.run.take_compensation(5.0)
    assert undo
    driver.run.compensated(undo, StepFailure("no way", type="Stuck"), 6.0)
    assert driver.run.failure
    assert driver.run.take_jobs_to_stop() == [exec_id]
    driver.run.jobs_stopped([exec_id], [], 7.0)
    driver.run.close(8.0)
    (release,) = driver.run.take_lease_words()
    assert release.broken == dict.fromkeys(  # type: ignore[union-attr]
        ["shop", "mail"], "jobs there were not stopped: no way"
    )
