"""Attempts that are undone: each kind, the tries after one another, and what steps leave in the
way."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.compensate import Compensations
from activities.contexts import Contexts
from activities.places import RunPlace
from activities.secrets import SecretFile, WorkerEnvironment
from activities.supervise import Supervisor
from activities.threads import StepThreads
from perdure.core.context import new_context
from perdure.messages import CompensateStep, CompensationOutcome, RunRef
from perdure.names import WORKER_SHUTDOWN
from perdure.steps import StepFailed, step
from tests.kit import processes_with
from tests.waiting import until, written

CANARY = "t0ken-CANARY-7c"


def take_back(step: dict[str, Any], context: Any, host: Any) -> None:
    note = {
        "keys": sorted(step),
        "diff": host.diff,
        "attempt": host.attempt,
        "status": host.status,
        "results": context.results,
    }
    with (host.workdir / "taken-back").open("a") as file:
        file.write(json.dumps(note) + "\n")
    if step.get("sad"):
        raise StepFailed(f"cannot, says {CANARY}", type="Sad")


@step("kit-undoable", keys={"sad"}, undo=take_back)
def do(step: dict[str, Any], context: Any, host: Any) -> None:
    pass


@step("kit-final")
def do_for_good(step: dict[str, Any], context: Any, host: Any) -> None:
    pass


@dataclass
class Undoer:
    """Undoes attempts of one run, try by try."""

    folder: Path
    activities: Compensations
    run: RunRef = field(default_factory=lambda: RunRef("task/s/t/1", "run-1", "s", "t", 1))

    @property
    def place(self) -> RunPlace:
        return RunPlace.of(self.folder / "runs", self.run)

    @property
    def work(self) -> Path:
        self.place.work.mkdir(parents=True, exist_ok=True)
        return self.place.work

    def asked(self, kind: str = "declared", **more: Any) -> CompensateStep:
        document = {"id": "a", "type": "command", "command": "x", **more.pop("step", {})}
        settings: dict[str, Any] = {"context": new_context(), "status": "succeeded"}
        return CompensateStep(self.run, document, 1, kind, attempt=1, epoch=0, **settings | more)

    def environment(self, tries: int = 1) -> ActivityEnvironment:
        made = ActivityEnvironment()
        made.info = replace(made.info, attempt=tries)
        return made

    async def undo(self, asked: CompensateStep, tries: int = 1) -> CompensationOutcome:
        done: CompensationOutcome = await self.environment(tries).run(
            self.activities.compensate_step, asked
        )
        return done

    async def declared(self, tries: int = 1, **compensate: Any) -> CompensationOutcome:
        compensate = {"type": "command", **compensate}
        return await self.undo(self.asked(step={"compensate": compensate}), tries)

    async def fail(self, asked: CompensateStep, tries: int = 1) -> ApplicationError:
        with pytest.raises(ApplicationError) as caught:
            await self.undo(asked, tries)
        return caught.value


@pytest.fixture
async def undoer(tmp_path: Path, steps_supervisor: Supervisor) -> AsyncIterator[Undoer]:
    variables = {"PATH": os.environ["PATH"], "TOKEN": CANARY}
    threads = StepThreads(4)
    nobody: Client = None  # type: ignore[assignment]  # every context comes with its question
    yield Undoer(
        tmp_path,
        Compensations(
            "here",
            tmp_path / "runs",
            WorkerEnvironment(variables),
            steps_supervisor,
            threads,
            Contexts(nobody),
        ),
    )
    threads.close()


async def test_what_is_declared_runs_with_the_steps_context_and_variables(undoer: Undoer) -> None:
    context = {**new_context(), "results": {"a": {"order": 7}}}
    asked = undoer.asked(
        step={
            "compensate": {
                "type": "command",
                "command": "cp $PERDURE_CONTEXT context; env > variables; echo $KEY",
                "env": {"MODE": "undo", "KEY": {"from_env": "TOKEN"}},
            }
        },
        context=context,
    )
    done = await undoer.undo(asked)
    assert done == CompensationOutcome("here", done.duration_seconds)
    variables = dict(
        line.split("=", 1) for line in (undoer.work / "variables").read_text().splitlines()
    )
    assert variables["PERDURE_COMPENSATES"] == variables["PERDURE_STEP_ID"] == "a"
    assert (variables["PERDURE_ATTEMPT"], variables["MODE"]) == ("1", "undo")
    assert variables["KEY"] == CANARY
    seen = json.loads((undoer.work / "context").read_text())
    assert seen["results"] == {"a": {"order": 7}}
    own = undoer.place.undo("a", 1, "declared")
    assert (own / "stdout.log").read_text() == "***\n"
    assert not list(own.glob("context.json"))


async def test_what_a_failed_attempt_wrote_is_seen_by_what_undoes_it(undoer: Undoer) -> None:
    ops = [{"op": "set", "path": ["results", "x"], "value": 9}]
    compensate = {
        "type": "python",
        "code": "def run(input):\n    open('seen', 'w').write(str(input['results']['x']))",
    }
    for is_written, context in (
        (False, new_context()),
        (True, {**new_context(), "results": {"x": 8}}),
    ):
        asked = undoer.asked(
            step={"id": f"w{is_written}", "compensate": compensate},
            status="failed",
            diff=ops,
            is_written=is_written,
            context=context,
        )
        await undoer.undo(asked)
        assert (undoer.work / "seen").read_text() == ("8" if is_written else "9")


async def test_an_outcome_on_disk_is_adopted_by_the_next_try(undoer: Undoer) -> None:
    await undoer.declared(command="echo once >>done")
    again = await undoer.declared(2, command="echo once >>done")
    assert again.adopted
    assert (undoer.work / "done").read_text() == "once\n"


async def test_a_failure_is_tried_again_and_the_last_one_says_so(undoer: Undoer) -> None:
    compensate = {
        "type": "command",
        "command": "test -e go",
        "retry": {"max_attempts": 3, "non_retryable_errors": ["Never"]},
    }
    asked = undoer.asked(step={"compensate": compensate})
    # Tries 2 and 4 were lost with their workers, and are no failures.
    failures = [await undoer.fail(asked, tries) for tries in (1, 3, 5)]
    assert [failure.non_retryable for failure in failures] == [False, False, True]
    assert failures[0].type == "ExitCode"
    (undoer.work / "go").touch()
    assert not (await undoer.undo(asked, 6)).adopted


async def test_a_failure_tells_no_secret(undoer: Undoer) -> None:
    SecretFile(undoer.place.secrets).merge({"a.1.remote_tokens": {"shop": CANARY}})
    error = await undoer.fail(undoer.asked("type", step={"type": "kit-undoable", "sad": True}))
    assert error.type == "Sad"
    assert CANARY not in str(error) + json.dumps(error.details, default=str)
    assert "cannot, says ***" in str(error)


async def test_a_type_undoes_its_own_steps(undoer: Undoer) -> None:
    ops = [{"op": "set", "path": ["results", "a"], "value": {"order": 3}}]
    asked = undoer.asked(
        "type", step={"type": "kit-undoable", "timeout": 0.01}, status="cancelled", diff=ops
    )
    await undoer.undo(asked)
    note = json.loads((undoer.work / "taken-back").read_text())
    assert note == {
        "keys": ["command", "id", "timeout", "type"],
        "diff": ops,
        "attempt": 1,
        "status": "cancelled",
        "results": {"a": {"order": 3}},
    }


async def test_a_type_that_says_nothing_of_undoing_has_nothing_to_undo(undoer: Undoer) -> None:
    await undoer.undo(undoer.asked("type", step={"type": "kit-final"}))
    error = await undoer.fail(undoer.asked("type", step={"id": "b", "type": "kit-unknown"}))
    assert error.type == "UnknownStepType"
    assert error.non_retryable


async def test_created_files_and_trees_are_removed(undoer: Undoer) -> None:
    (undoer.work / "out" / "deep").mkdir(parents=True)
    (undoer.work / "out" / "deep" / "file").touch()
    (undoer.work / "out" / "deep").chmod(0o500)
    (undoer.work / "report.json").touch()
    (undoer.work / "kept").touch()
    done = await undoer.undo(undoer.asked("creates", creates=["./report.json", "out/", "never"]))
    assert done.removed == ["./report.json", "out/"]
    assert [path.name for path in undoer.work.iterdir()] == ["kept"]
    await undoer.undo(undoer.asked("creates", creates=["report.json"], step={"id": "again"}))


async def test_no_link_leads_a_removal_elsewhere(undoer: Undoer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").touch()
    (undoer.work / "tree").mkdir()
    (undoer.work / "tree" / "link").symlink_to(outside)
    (undoer.work / "link").symlink_to(outside)
    (undoer.work / "inner").symlink_to("tree")
    await undoer.undo(undoer.asked("creates", creates=["inner/link", "tree", "link"]))
    assert (outside / "deep" / "file").exists()
    assert [path.name for path in undoer.work.iterdir()] == ["inner"]
    (undoer.work / "out").symlink_to(outside)
    hostile = ["out/deep", "../../outside", "/etc/hostname", "a/../..", ".."]
    for number, name in enumerate(hostile):
        error = await undoer.fail(
            undoer.asked("creates", creates=[name], step={"id": f"h{number}"})
        )
        assert (error.type, error.non_retryable) == ("BadPath", True), name
    assert (outside / "deep" / "file").exists()
    undoer.work.rename(tmp_path / "moved")
    undoer.place.work.symlink_to(outside)
    error = await undoer.fail(undoer.asked("creates", creates=["deep"], step={"id": "moved"}))
    assert error.type == "BadPath"
    assert (outside / "deep" / "file").exists()


async def test_a_run_that_never_had_a_directory_has_nothing_to_be_removed(undoer: Undoer) -> None:
    assert (await undoer.undo(undoer.asked("creates", creates=["x/y"]))).removed == []


async def test_what_an_earlier_try_still_runs_is_killed(undoer: Undoer) -> None:
    asked = undoer.asked(
        step={"compensate": {"type": "command", "command": "echo $$ >>pids; sleep 987654"}}
    )
    first = undoer.environment()
    trying = asyncio.create_task(first.run(undoer.activities.compensate_step, asked))
    await written(undoer.work / "pids")
    assert len(processes_with("987654")) >= 1
    quick = undoer.asked(
        step={"compensate": {"type": "command", "command": "pgrep -f 'sleep 98765[4]' || true"}}
    )
    done = await undoer.undo(quick, 2)
    assert not done.adopted
    assert processes_with("987654") == []
    assert (undoer.place.undo("a", 1, "declared") / "stdout.log").read_text() == ""
    with pytest.raises(asyncio.CancelledError):
        await trying


async def test_a_cancel_waits_for_what_is_half_undone(undoer: Undoer) -> None:
    command = "touch begun; until [ -e go ]; do sleep 0.02; done; touch undone"
    asked = undoer.asked(step={"compensate": {"type": "command", "command": command}})
    environment = undoer.environment()
    undoing = asyncio.create_task(environment.run(undoer.activities.compensate_step, asked))
    await until((undoer.work / "begun").exists)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    (undoer.work / "go").touch()
    assert not (await undoing).adopted
    assert (undoer.work / "undone").exists()


async def test_a_worker_that_stops_hands_a_compensation_back(undoer: Undoer) -> None:
    command = "touch begun; sleep 765432"
    asked = undoer.asked(step={"compensate": {"type": "command", "command": command}})
    environment = undoer.environment()
    undoing = asyncio.create_task(environment.run(undoer.activities.compensate_step, asked))
    await until((undoer.work / "begun").exists)
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(ApplicationError) as caught:
        await undoing
    assert (caught.value.type, caught.value.non_retryable) == (WORKER_SHUTDOWN, False)
    assert processes_with("765432") == []


async def test_a_compensation_ends_at_its_own_limit(undoer: Undoer) -> None:
    asked = undoer.asked(
        step={
            "timeout": 0.001,
            "compensate": {"type": "command", "command": "sleep 876543", "timeout": 0.3},
        }
    )
    error = await undoer.fail(asked)
    assert error.type == "Timeout"
    await until(lambda: not processes_with("876543"))


async def test_a_step_whose_name_is_no_part_of_a_path_is_refused(undoer: Undoer) -> None:
    error = await undoer.fail(undoer.asked("creates", step={"id": "../../x"}, creates=["y"]))
    assert error.type == "BadInput"
    assert error.non_retryable
