"""A world in which a run's steps work by chance, and a plain account of what is true there.

The account knows nothing of how a run is built: which attempts were made, in which order they
ended, which of them count. By it each thing that the run decides is judged as it is told.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from perdure.core.context import diff, same
from perdure.core.pool_decisions import Grant, GrantedInstance, LoseLease, Renew
from perdure.core.rollback import Compensation
from perdure.core.run import Dispatch, TaskRun
from perdure.core.task import Step, Task
from perdure.messages import (
    ContextRequest,
    Holder,
    PoolUse,
    SlotGrant,
    SlotRequest,
    StepFailure,
    StepOutcome,
)
from perdure.pool_messages import LeaseRelease, LeaseRequest, LeaseReset
from tests.core.rollback_kit import REF, task
from tests.workflows.fake_pool import MAIL, SHOP

ENVIRONMENTS = ("shop", "mail")


@dataclass(frozen=True)
class Chances:
    """How likely it is, at each turn, that something goes wrong."""

    failure: float = 0.2
    loss: float = 0.05
    """A worker is lost, or hands its attempt back."""
    cancel: float = 0.0
    """The task is cancelled, or its time is up."""
    undo_failure: float = 0.0
    reset_failure: float = 0.1
    """That an instance cannot be reset: another one takes its place, or the lease is lost."""
    lease_loss: float = 0.0
    fatal: float = 0.1
    """That a step is one whose failure ends the task."""
    limited: float = 0.0
    """That a step takes a slot."""
    carry_over: float = 0.3
    """That a workflow continues as new, as soon as it may. Never, and what is only mended by that
    comes to light."""


def random_task(chance: random.Random, size: int, chances: Chances) -> Task:
    """A task of `size` steps."""
    steps: list[dict[str, Any]] = []
    for number in range(size):
        earlier = [step["id"] for step in steps]
        step: dict[str, Any] = {"id": f"s{number}", "type": chance.choice(["command", "custom"])}
        if chance.random() < 0.9:
            nearest = earlier[-6:]
            chosen = sorted(chance.sample(nearest, chance.randint(0, min(2, len(nearest)))))
            step["depends_on"] = [{"task_step_id": name} for name in chosen]
        if chance.random() < 0.5:
            above = sorted(_ancestors(steps, step))
            step["retry_config"] = {
                "retry_from_step_id": chance.choice([step["id"], *above]),
                "max_retries": chance.randint(1, 3),
                "environments": chance.choice(["reset", "keep"]),
                "delay": chance.choice([0, 0, 7]),
            }
        if chance.random() < 0.4:
            step["retry"] = {"max_attempts": 2, "initial_interval": chance.choice([0, 3])}
        if chance.random() < 0.5:
            step["compensate"] = {"type": "command", "command": "undo"}
        if chance.random() < 0.2:
            step["creates"] = [f"made/{number}"]
        step["uses"] = chance.sample(ENVIRONMENTS, chance.choice([0, 0, 0, 1, 1, 2]))
        step["fail_task_on_error"] = chance.random() < chances.fatal
        step["max_worker_losses"] = chance.randint(0, 3)
        if chance.random() < chances.limited:
            step["limit"] = "gpu"
        steps.append(step)
    return task(
        *steps, environments=list(ENVIRONMENTS), max_rollbacks=chance.choice([1, 3, 20, 20])
    )


def _parents(steps: list[dict[str, Any]], step: dict[str, Any]) -> set[str]:
    known = step.get("depends_on")
    if known is not None:
        return {entry["task_step_id"] for entry in known}
    before = []
    for other in steps:
        if other["id"] == step["id"]:
            break
        before.append(other["id"])
    return set(before)


def _ancestors(steps: list[dict[str, Any]], step: dict[str, Any]) -> set[str]:
    found = _parents(steps, step)
    by_id = {other["id"]: other for other in steps}
    return found.union(*(_ancestors(steps, by_id[name]) for name in found)) if found else found


@dataclass
class Made:
    """One attempt."""

    dispatch: Dispatch
    seen: dict[str, Any]
    """The context as of its start."""
    wrote: list[dict[str, Any]] = field(default_factory=list)
    ended: int | None = None
    """Its place in the order of all ends."""
    status: str = "running"
    undone: list[str] = field(default_factory=list)
    """The kinds of its compensations that have been begun."""

    @property
    def step(self) -> Step:
        return self.dispatch.step

    @property
    def token(self) -> str:
        """What it writes, wherever it writes."""
        return f"{self.step.id}.{self.dispatch.attempt}"

    @property
    def undoings(self) -> list[str]:
        """The compensations that it needs, in their order."""
        step = self.step
        found = ["declared"] if "compensate" in step.body else []
        found += ["type"] if step.type == "custom" else []
        return [*found, "creates"] if step.creates else found


def work(context: dict[str, Any], made: Made) -> dict[str, Any]:
    """What the context is after the step has done its work on it."""
    token, metadata = made.token, context["metadata"]
    deployed = {"sandbox_id": token, "sandbox_type": "vm"}
    return {
        **context,
        "results": {**context["results"], made.step.id: {"token": token}},
        "prompt_responses": [*context["prompt_responses"], token],
        "deployed_sandboxes": [*context["deployed_sandboxes"], deployed],
        "metadata": {
            **metadata,
            "shared": {**metadata.get("shared", {}), made.step.id: [token]},
            "last": token,
        },
    }


class World:
    """One run, driven by chance to its end, each step of it checked."""

    def __init__(self, task: Task, chance: random.Random, chances: Chances) -> None:
        self.task = task
        self.steps = {step.id: step for step in task.steps}
        self.dependents = functools.cache(self._dependents)
        self.chance = chance
        self.chances = chances
        self.now = 0.0
        self.run = self._new_run()
        self.seed = self.run.context
        self.flying: dict[str, Made] = {}
        self.ghosts: list[Made] = []
        """Attempts whose end was told: a word of them that comes late changes nothing."""
        self.life: dict[str, list[Made]] = {step.id: [] for step in task.steps}
        """By step, its attempts since it was last taken back."""
        self.done: list[Made] = []
        """The attempts that count, in the order of their ends."""
        self.ends = 0
        self.undoing: Compensation | None = None
        self.batch: list[tuple[int, int, str]] = []
        """What was undone since the last time that steps were stopped."""
        self.resetting: LeaseReset | None = None
        self.restarts = 0
        self.starts: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.due: dict[str, float] = {}
        """By step, when it may start again."""
        self.asked: list[SlotRequest] = []
        self.granted: set[str] = set()
        """Ids of the requests that hold a slot."""
        self.told = 0
        """Events heard."""
        self.original: str | None = None
        self.retried: set[str] = set()
        """Errors of failed attempts that were taken back."""
        self.errors: set[str] = set()

    def _new_run(self) -> TaskRun:
        environments = [SHOP, MAIL]
        return TaskRun(
            self.task,
            REF,
            now=0.0,
            pool=PoolUse(),
            environments=environments,
            timeout_seconds=1e9,
            limits={"gpu": 2},
        )

    # --- Driving ----------------------------------------------------------------------------

    def live(self) -> None:
        """Drive the run to its end."""
        for _ in range(5_000):
            if self.run.over:
                break
            self.turn()
        assert self.run.over, "it goes on for ever"
        assert not self.flying
        assert self.undoing is None
        self.before_the_end()
        self.run.close(self.now)
        self._answer_the_pool()
        while self.asked or self.granted:
            self._answer_the_limit()
        self.check_the_end()

    def turn(self) -> None:
        """One workflow task: what may be done is done, then something happens."""
        self.now += 1
        self._answer_the_pool()
        self._answer_the_limit()
        self._carry_over()
        self._stop()
        for take in self.chance.sample([self._undo, self._start, self._answer_the_pool], 3):
            take()
        self._start()  # whatever the order, nothing is forgotten
        self._undo()
        self._answer_the_pool()
        self._meddle()
        self._happen()
        self.listen()

    def before_the_end(self) -> None:
        """What is to be done when the run is over, and before it is closed."""

    @property
    def is_quiet(self) -> bool:
        """Whether a workflow may continue as new."""
        return not self.flying and self.undoing is None

    def _carry_over(self) -> None:
        if self.is_quiet and self.chance.random() < self.chances.carry_over and not self.run.halted:
            state = json.loads(json.dumps(self.run.state()))
            fresh = self._new_run()
            fresh.take_lease_words()
            fresh.restore(state)
            self.run = fresh

    def _answer_the_pool(self) -> None:
        for word in self.run.take_lease_words():
            if isinstance(word, LeaseReset):
                self._may_reset(word)
                self.resetting = word
            elif isinstance(word, LeaseRequest):
                instances = [
                    GrantedInstance(n, name, name, f"p-{name}-{word.request_id[-1]}", {})
                    for n, name in enumerate(word.environments and ENVIRONMENTS)
                ]
                grant = Grant(word.request_id, word.holder, "h", instances, pool="default")
                assert self.run.lease_granted(grant, self.now)
            elif isinstance(word, LeaseRelease):
                self.may_give_back()

    def may_give_back(self) -> None:
        """The run gives its lease back: whether it may."""

    def _answer_the_limit(self) -> None:
        for release in self.run.take_releases():
            self.granted.discard(release.request_id)
        self.asked += self.run.take_asks()
        for request in [*self.asked]:
            if self.chance.random() < 0.3:  # late ones among them, of who waits no more
                self.asked.remove(request)
                self.granted.add(request.request_id)
                self.run.grant(SlotGrant(request.limit, request.request_id))
                for release in self.run.take_releases():
                    self.granted.discard(release.request_id)

    def _stop(self) -> None:
        for step_id in self.run.to_stop:
            if self.chance.random() < 0.7:
                self._end(self.flying[step_id], "cancelled")
        self.listen()

    def _start(self) -> None:
        for dispatch in self.run.take_ready(self.now):
            self.listen()
            self._may_start(dispatch)
            made = Made(dispatch, self.run.context)
            self.flying[dispatch.step.id] = made
            self.life[dispatch.step.id].append(made)
        self.listen()

    def _undo(self) -> None:
        compensation = self.run.take_compensation(self.now)
        if compensation is None:
            return
        assert self.undoing is None, "one after another"
        self.undoing = compensation
        self._may_undo(compensation)

    def _may_reset(self, word: LeaseReset) -> None:
        names = set(word.environments)
        assert names
        assert self.run.open_reset == word
        assert self.undoing is None
        assert self._undone_wholly(self._rollback()["span"]), "the world is undone first"
        using = {s for s in self.flying if set(self._step(s).uses or ()) & names}
        assert not using, "nobody uses what is reset"

    def _meddle(self) -> None:
        chance, run = self.chance, self.run
        if chance.random() < self.chances.cancel / 20:
            if chance.random() < 0.5:
                run.cancel("enough", self.now)
            else:
                run.time_out(60, self.now)
        if chance.random() < self.chances.lease_loss / 20 and run.lease_host:
            assert run.open_lease is None
            request_id = run.record()["lease"]["request_id"]
            holder = Holder(REF.workflow_id, REF.run_id)
            run.lease_lost(LoseLease(request_id, holder, ["shop"], "it died"), self.now)
        if self.ghosts and chance.random() < 0.2:
            self._whisper(chance.choice(self.ghosts))
        if self.flying and chance.random() < 0.3:
            self._ask_for_the_context(chance.choice(list(self.flying.values())))

    def _whisper(self, ghost: Made) -> None:
        before = (self.run.context, self.run.rev, len(self.run.events))
        outcome = StepOutcome("succeeded", diff(ghost.seen, work(ghost.seen, ghost)))
        self.run.finish(ghost.dispatch, outcome, self.now)
        self.run.lose(ghost.dispatch, None, self.now)
        assert before == (self.run.context, self.run.rev, len(self.run.events)), "T35"

    def _ask_for_the_context(self, made: Made) -> None:
        dispatch = made.dispatch
        answer = self.run.diffs(ContextRequest(dispatch.epoch, -1, dispatch.version))
        assert not answer.stale, "who runs may ask, whatever the epoch"

    def _happen(self) -> None:
        chance = self.chance
        choices: list[Any] = list(self.flying.values())
        choices += [self.undoing] if self.undoing else []
        choices += [self.resetting] if self.resetting else []
        if not choices:
            at = self.run.wake_at()
            self.now = max(self.now, at or 0.0)
            return
        for chosen in chance.sample(choices, chance.randint(1, min(3, len(choices)))):
            if isinstance(chosen, Made):
                self._end_somehow(chosen)
            elif isinstance(chosen, Compensation):
                self._end_undoing(chosen)
            else:
                self._end_reset(chosen)
            self.listen()

    def _end_somehow(self, made: Made) -> None:
        draw = self.chance.random()
        halting = self.run.cancelled is not None or self.run.is_parting
        if halting and draw < 0.8:
            self._end(made, "cancelled")
        elif draw < self.chances.loss:
            self._end(made, self.chance.choice(["lost", "interrupted"]))
        elif draw < self.chances.loss + self.chances.failure:
            self._end(made, "failed")
        else:
            self._end(made, "succeeded")

    def _end(self, made: Made, status: str) -> None:
        del self.flying[made.step.id]
        self.ghosts.append(made)
        self.ends += 1
        made.ended, made.status = self.ends, status
        if status == "succeeded" or self.chance.random() < 0.7:
            made.wrote = diff(made.seen, work(made.seen, made))
        dispatch, now = made.dispatch, self.now
        counted, known_events = self.run.completed, len(self.run.events)
        if status == "lost":
            known = StepOutcome("failed", made.wrote) if made.wrote else None
            self.run.lose(dispatch, known, now)
        elif status == "interrupted":
            made.wrote = []
            self.run.interrupt(dispatch, now)
        elif status == "failed":
            error = f"error of {made.token}"
            self.errors.add(error)
            self.run.finish(
                dispatch, StepOutcome("failed", made.wrote, failure=StepFailure(error)), now
            )
        else:
            self.run.finish(dispatch, StepOutcome(status, made.wrote), now)  # type: ignore[arg-type]
        told = [e["type"] for e in self.run.events[known_events:] if e.get("step") == made.step.id]
        if "step.failed" in told:
            made.status = "failed"  # lost too often, too
        if self.run.completed > counted:
            self.done.append(made)

    def _end_undoing(self, compensation: Compensation) -> None:
        failure = None
        if self.chance.random() < self.chances.undo_failure:
            failure = StepFailure("it cannot be undone")
            if not self.run.is_parting:
                self.original = self.original or self._rollback()["failed"][0]
        self.undoing, halted = None, self.run.halted
        self.end_undoing(compensation, failed=failure is not None)
        self.run.compensated(compensation, failure, self.now)
        if self.run.halted and not halted:
            assert self.run.failure
            assert self.run.failure.step == self.original

    def end_undoing(self, compensation: Compensation, *, failed: bool) -> None:
        """A compensation is about to be told to have ended."""

    def _end_reset(self, asked: LeaseReset) -> None:
        draw, self.resetting = self.chance.random(), None
        if draw < self.chances.reset_failure / 2:
            gone = asked.environments[:1]
            loss = LoseLease(asked.request_id, asked.holder, "it hangs", gone)
            self.run.lease_lost(loss, self.now)
            return
        was = {i.environment: i for i in self.run.instances}
        number = len(self.run.events) if draw < self.chances.reset_failure else 0
        instances = [
            GrantedInstance(number or was[name].number, name, name, f"p-{name}-{number}", {})
            for name in asked.environments
            if name in was
        ]
        renewal = Renew(asked.request_id, asked.holder, asked.number, instances)
        is_due = self.run.open_reset == asked
        assert self.run.lease_renewed(renewal, self.now) == is_due
        assert not self.run.lease_renewed(renewal, self.now), "told twice"
        now = {i.environment: i for i in self.run.instances}
        for granted in instances if is_due else ():
            assert now[granted.environment].project == granted.project

    # --- Judging ----------------------------------------------------------------------------

    def listen(self) -> None:
        """Take note of what the run tells."""
        events, self.told = self.run.events[self.told :], len(self.run.events)
        for event in events:
            if event["type"] in ("rollback.started", "rollback.widened"):
                self._check_the_span()
            if event["type"] == "rollback.started":
                self.batch = []
            elif event["type"] == "rollback.completed":
                self._take_back(event)
            elif event["type"] == "task.restarted":
                self._start_over()
        if any(event["type"] == "rollback.completed" for event in events):
            self.check_the_context()
            self.check_the_marks()

    def _may_start(self, dispatch: Dispatch) -> None:
        step = dispatch.step
        assert self.undoing is None
        assert self.run.open_reset is None
        assert step.id not in self.flying
        ended = {made.step.id for made in self.done}
        assert step.id not in ended, "nothing runs twice that was not taken back"
        assert self.parents(step.id) <= ended
        assert self.now >= self.due.get(step.id, 0)
        if step.limit:  # asked for under an earlier epoch, if a rollback passed it by
            slots = [slot for slot in self.granted if slot.startswith(f"{REF.run_id}:{step.id}#")]
            assert len(slots) == 1
        self.starts[step.id] = self.starts.get(step.id, 0) + 1
        assert dispatch.attempt == self.starts[step.id]
        left = []
        for made in reversed(self.life[step.id]):
            if made.status not in ("lost", "interrupted"):
                break
            left.append(made.dispatch.attempt)
        assert dispatch.lost_attempts == tuple(reversed(left))

    def _may_undo(self, compensation: Compensation) -> None:
        rollback = self._rollback()
        step_id = compensation.step.id
        assert step_id in rollback["span"]
        assert not set(rollback["span"]) & self.flying.keys(), "steps are stopped first"
        (made,) = (m for m in self.life[step_id] if m.dispatch.attempt == compensation.attempt)
        assert made.ended, "after what it undoes"
        assert compensation.kind not in made.undone, "once"
        assert compensation.epoch == made.dispatch.epoch
        assert compensation.status == made.status
        assert same(compensation.diff, made.wrote)
        assert compensation.is_written == (made in self.done)
        made.undone.append(compensation.kind)
        turn = (-made.ended, made.undoings.index(compensation.kind), made.token)
        assert not self.batch or self.batch[-1] < turn, "the newest first"
        self.batch.append(turn)

    def _check_the_span(self) -> None:
        """Against one that is found the slow way."""
        rollback = self._rollback()
        started = {step_id for step_id, life in self.life.items() if life}
        inside: set[str] = set()
        kept: set[str] = set()
        for failed in rollback["failed"]:
            config = self._step(failed).retry_config
            assert config
            chosen = inside if config.environments == "reset" else kept
            chosen |= self.dependents(config.retry_from_step_id) & started
        reset: set[str] = set()
        while True:
            for step_id in inside:
                reset.update(self._step(step_id).uses or ())
            users = {s for s in started if reset & set(self._step(s).uses or ())}
            grown = inside.union(*(self.dependents(s) & started for s in users | inside))
            if grown == inside:
                break
            inside = grown
        expected = inside | kept
        assert set(rollback["span"]) == expected
        assert set(rollback["environments"]) == reset
        assert rollback["span"] == [s.id for s in self.task.steps if s.id in expected]

    def _take_back(self, event: dict[str, Any]) -> None:
        span = set(event["steps"])
        rollback = next(r for r in self.run.record()["rollbacks"] if r["epoch"] == event["epoch"])
        assert self._undone_wholly(span), "nothing is undone zero times"
        assert self.undoing is None
        assert not span & self.flying.keys()
        before = sum(self.answered.values())
        for step_id in rollback["failed"]:
            self.answered[step_id] = self.answered.get(step_id, 0) + 1
        delays = [self._step(s).retry_config.delay for s in rollback["failed"]]  # type: ignore[union-attr]
        gone = {m.token for s in span for m in self.life[s] if m.wrote}
        resets = self.run.record()["retry_resets"][before : before + len(rollback["failed"])]
        assert [r["step_id"] for r in resets] == rollback["failed"]
        for reset in resets:
            told = reset["rolled_back_sandboxes"]["deployed_sandboxes"]
            assert {item["sandbox_id"] for item in told} == gone, "TD4"
            assert span <= set(reset["replayed"])
        for step_id in span:
            self.due[step_id] = event["at"] + max(delays)
            self.retried |= {e for e in self.errors if e.startswith(f"error of {step_id}.")}
            self.life[step_id] = []
        self.done = [made for made in self.done if made.step.id not in span]

    def _start_over(self) -> None:
        self.restarts += 1
        self.done = []
        self.life = {step.id: [] for step in self.task.steps}
        self.due = {}

    def check_the_context(self) -> None:
        """It is as if the attempts that count had been made one after another."""
        expected = self.seed
        for made in self.done:
            expected = self._rework(expected, made)
        assert same(_bare(expected), _bare(self.run.context))

    @staticmethod
    def _rework(context: dict[str, Any], made: Made) -> dict[str, Any]:
        return work(context, made) if made.wrote else context

    def check_the_marks(self) -> None:
        entries = self.run.context["metadata"].get("failed_steps", [])
        told = {entry["error"] for entry in entries if entry.get("retried")} & self.errors
        assert told == self.retried, "T31"
        resets = self.run.record()["retry_resets"]
        assert len(resets) == sum(self.answered.values())

    def check_the_end(self) -> None:
        run = self.run
        record = run.record()
        statuses = {s["status"] for s in record["steps"]}
        assert not statuses & {"pending", "running", "waiting"}
        assert not run.is_rolling_back
        assert len(record["rollbacks"]) <= self.task.max_rollbacks
        for step in self.task.steps:
            limit = step.retry_config.max_retries if step.retry_config else 0
            assert self.answered.get(step.id, 0) <= limit
        if run.status == "succeeded":
            assert {m.step.id for m in self.done} == {s.id for s in self.task.steps}
            self.check_the_context()
            self.check_the_marks()
            if not self.restarts:
                assert record["compensation_failures"] == []
        for rollback in record["rollbacks"]:
            begun = [undo for undo in rollback["compensations"] if undo["started_at"] is not None]
            assert begun == rollback["compensations"], "what was planned is done"
            assert all(undo["ended_at"] is not None for undo in begun)
        assert not self.original or run.status != "succeeded"
        assert [e["seq"] for e in run.events] == list(range(1, len(run.events) + 1))

    # --- Of the task ------------------------------------------------------------------------

    def _step(self, step_id: str) -> Step:
        return self.steps[step_id]

    def parents(self, step_id: str) -> set[str]:
        ids = list(self.steps)
        known = self._step(step_id).depends_on
        return set(ids[: ids.index(step_id)] if known is None else known)

    def _dependents(self, step_id: str) -> frozenset[str]:
        """The step, and who waits for it, directly or not."""
        found = {step_id}
        for step in self.task.steps:
            if self.parents(step.id) & found:
                found.add(step.id)
        return frozenset(found)

    def _rollback(self) -> dict[str, Any]:
        """The newest one, as the record has it; to have all of that made would be dear."""
        return self.run._rollbacks.all[-1].recorded()

    def _undone_wholly(self, span: Iterable[str]) -> bool:
        return all(
            sorted(made.undone) == sorted(made.undoings)
            for step_id in span
            for made in self.life[step_id]
        )


def _bare(context: dict[str, Any]) -> dict[str, Any]:
    """The context without the run's own marks."""
    marks = ("failed_steps", "retry_resets", "leases_lost")
    kept = {key: value for key, value in context["metadata"].items() if key not in marks}
    return {**context, "metadata": kept}
