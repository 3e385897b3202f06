"""The world of `tests.core.rollback_world` with background jobs, launched and ended by chance.

The account of them is kept apart from the run: who launched which, where it runs, who stopped it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from perdure.core.job_book import MAX_RUNNING_JOBS
from perdure.core.rollback import JOB_KINDS, Compensation
from perdure.core.run_jobs import ENDING
from perdure.core.task import Task
from perdure.job_messages import JobEnd, JobLaunch, JobOrigin, JobSpec, JobStatus
from perdure.pool_messages import LeaseReset
from tests.core.rollback_world import ENVIRONMENTS, Chances, Made, World


@dataclass
class Launched:
    """One job."""

    exec_id: str
    made: Made | None
    """The attempt that launched it; None: a person did."""
    environment: str | None
    state: str = "starting"
    stopped: bool = False
    """Whether the run had it stopped."""

    @property
    def runs(self) -> bool:
        return self.state != "ended"


class JobWorld(World):
    """A run with jobs, each thing that it decides about them checked."""

    def __init__(
        self, task: Task, chance: random.Random, chances: Chances, *, launches: float
    ) -> None:
        """`launches`: how many jobs are asked for at each turn, on average."""
        super().__init__(task, chance, chances)
        self.launches = launches
        self.jobs: dict[str, Launched] = {}
        self.asked_for = 0
        self.stopped_before: set[str] = set()
        """Jobs that were stopped before the rollback that is under way."""
        self.unstopped: set[str] = set()
        """Jobs that could not be stopped for a rollback."""
        self.stopping: list[str] = []
        """What is being stopped since the run is over, or has lost its lease."""

    # --- Driving ----------------------------------------------------------------------------

    def turn(self) -> None:
        super().turn()
        for job in [*self.jobs.values()]:
            self._go_on(job)
        while self.chance.random() < self.launches / (1 + self.launches):
            self._launch()
        self._stop_jobs()
        self.listen()
        assert len(self.running) <= MAX_RUNNING_JOBS
        assert {job.exec_id for job in self.running} == {j.exec_id for j in self.run.jobs.running}

    @property
    def running(self) -> list[Launched]:
        return [job for job in self.jobs.values() if job.runs]

    @property
    def is_quiet(self) -> bool:
        starting = any(job.state == "starting" for job in self.jobs.values())
        return super().is_quiet and not starting and not self.stopping

    def _go_on(self, job: Launched) -> None:
        draw, now = self.chance.random(), self.now
        if job.state == "starting" and draw < 0.1:
            del self.jobs[job.exec_id]
            self.run.job_not_started(job.exec_id, now)
        elif job.state == "starting" and draw < 0.7:
            job.state = "running"
            self.run.job_started(job.exec_id, now)
        elif job.runs and draw > 0.9:  # its end may be heard before its start
            self._end_job(job, "done")
        elif draw < 0.02:  # told twice, or by a job of another run of this id
            events = len(self.run.events)
            known = self.jobs[job.exec_id].runs
            assert self.run.job_ended(JobEnd("exec-ffffffffffff", "done"), now) is False
            if not known:
                assert self.run.job_ended(JobEnd(job.exec_id, "failed"), now) is False
            assert len(self.run.events) == events

    def _end_job(self, job: Launched, status: JobStatus) -> None:
        job.state = "ended"
        assert self.run.job_ended(JobEnd(job.exec_id, status, ended_at=self.now), self.now)

    def _launch(self) -> None:
        made = self.chance.choice([None, *self.flying.values(), *self.ghosts[-2:]])
        origin = JobOrigin("person")
        if made:
            d = made.dispatch
            origin = JobOrigin("step", d.step.id, d.epoch, d.attempt)
        environment = self.chance.choice([None, None, *ENVIRONMENTS])
        self.asked_for += 1
        exec_id = f"exec-{self.asked_for:012x}"
        launch = JobLaunch(exec_id, JobSpec(code="1", environment=environment), origin)
        reason, run = self.run.job_refusal(launch), self.run
        if reason is not None:
            assert self._may_refuse(made, environment, reason), reason
            return
        assert not run.halted
        assert not run.over
        assert not run.is_parting
        assert made is None or made in self.flying.values()
        assert len(self.running) < MAX_RUNNING_JOBS
        run.claim_job(launch, self.now)
        self.jobs[exec_id] = Launched(exec_id, made, environment)

    def _may_refuse(self, made: Made | None, environment: str | None, reason: str) -> bool:
        run = self.run
        if reason == ENDING:
            return run.halted or run.over
        if made and made not in self.flying.values():
            return "does not run any more" in reason
        if made and made.step.id in run.to_stop:
            return "is being rolled back" in reason
        if run.is_parting or run.open_lease:
            return "its environments" in reason
        if run.is_rolling_back and environment in self._rollback()["environments"]:
            return "is being reset" in reason
        return len(self.running) == MAX_RUNNING_JOBS and str(MAX_RUNNING_JOBS) in reason

    def _stop_jobs(self) -> None:
        if self.stopping:
            if self.chance.random() < 0.5:
                self._all_stopped()
            return
        self.stopping = self.run.take_jobs_to_stop()
        assert self.run.take_jobs_to_stop() == [], "handed out once"
        if self.stopping:
            assert self.run.over or self.run.is_parting
            assert set(self.stopping) == {job.exec_id for job in self.running}, "all at once"
            assert all(job.state == "running" for job in self.running), "none is missed"

    def _all_stopped(self) -> None:
        stopped, self.stopping = self.stopping, []
        ends = self._stopped(stopped)
        self.run.jobs_stopped(stopped, ends, self.now)

    def _stopped(self, exec_ids: list[str]) -> list[JobEnd]:
        """Let those of them end that run; of some nobody can tell how they did."""
        for exec_id in exec_ids:
            if not self.jobs[exec_id].runs:
                continue
            self.jobs[exec_id].state = "ended"
            self.jobs[exec_id].stopped = True
        chosen = [exec_id for exec_id in exec_ids if self.chance.random() < 0.8]
        return [JobEnd(exec_id, "killed", ended_at=self.now) for exec_id in chosen]

    def before_the_end(self) -> None:
        for _ in range(1_000):
            if not self.run.has_jobs and not self.stopping:
                return
            for job in [*self.jobs.values()]:
                self._go_on(job)
            self._stop_jobs()
        raise AssertionError("its jobs go on for ever")

    # --- Judging ----------------------------------------------------------------------------

    def may_give_back(self) -> None:
        assert not self.running, "the lease is given back under a job"

    def _may_undo(self, compensation: Compensation) -> None:
        if compensation.kind not in JOB_KINDS:
            super()._may_undo(compensation)
            life, number = self.life[compensation.step.id], compensation.attempt
            undone = [made for made in life if made.dispatch.attempt == number]
            left = [job for job in self.running if job.made in undone]
            assert {job.exec_id for job in left} <= self.unstopped, "jobs are stopped first"
            return
        rollback = self._rollback()
        jobs = [self.jobs[exec_id] for exec_id in compensation.exec_ids]
        assert jobs
        assert all(job.state != "starting" for job in jobs)
        if compensation.kind == "jobs":
            (made,) = {id(job.made): job.made for job in jobs}.values()
            assert made
            assert made.step.id in rollback["span"]
            turn = (-(made.ended or 0), -1, made.token)
            assert not self.batch or self.batch[-1] < turn, "in the place of their attempt"
            self.batch.append(turn)
        else:
            assert {job.environment for job in jobs} <= set(rollback["environments"])
            assert compensation.number == rollback["compensations"][-1]["number"], "last of all"

    def end_undoing(self, compensation: Compensation, *, failed: bool) -> None:
        if compensation.kind in JOB_KINDS and not failed:
            ends = self._stopped(compensation.exec_ids)
            self.run.jobs_gone(compensation.exec_ids, ends, self.now)
        elif failed:
            self.unstopped |= set(compensation.exec_ids)

    def _may_reset(self, word: LeaseReset) -> None:
        super()._may_reset(word)
        inside = [job for job in self.running if job.environment in word.environments]
        assert not inside, "an instance is reset under a job"

    def _take_back(self, event: dict[str, Any]) -> None:
        span = set(event["steps"])
        lives = [made for step_id in span for made in self.life[step_id]]
        assert not [job for job in self.running if job.made in lives], "of the span"
        environments = next(
            r["environments"]
            for r in self.run.record()["rollbacks"]
            if r["epoch"] == event["epoch"]
        )
        for job in self.jobs.values():
            if job.stopped and job.made not in lives and job.environment not in environments:
                assert job.exec_id in self.stopped_before, "jobs of others go on"
        self.stopped_before = {job.exec_id for job in self.jobs.values() if job.stopped}
        super()._take_back(event)

    def _start_over(self) -> None:
        assert not self.running, "the run starts over beside a job"
        super()._start_over()
        self.stopped_before = {job.exec_id for job in self.jobs.values() if job.stopped}

    def check_the_end(self) -> None:
        super().check_the_end()
        assert not self.running
        told = {job["exec_id"]: job["status"] for job in self.run.record().get("jobs", [])}
        assert told.keys() == self.jobs.keys()
        assert "running" not in told.values()
        kinds = [event["type"] for event in self.run.events]
        assert kinds.count("job.launched") == kinds.count("job.ended") == len(told)
