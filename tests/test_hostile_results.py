"""Directories of results from elsewhere: nothing in them hangs, misleads or breaks a reader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.cli import status_of
from perdure.cli.failures import failed_attempts
from perdure.results import ResultsError, suite_files
from perdure.stored_results import stored_suite, stored_suites

ESCAPE = "\x1b]0;title\x07"

END: dict[str, Any] = {
    "task": "t", "trial": 1, "run_id": "r", "status": "failed",
    "failure": {"kind": "task", "step": "a", "reason": "why"},
    "usage": {}, "started_at": 1.0, "duration": 1.0,
}  # fmt: skip
SUITE: dict[str, Any] = {
    "suite": "s", "run_id": "r", "status": "failed", "started_at": 1.0, "totals": {},
    "tasks": [{"id": "t", "digest": "d", "repeats": 1}], "trials": [END],
}  # fmt: skip
STEP: dict[str, Any] = {
    "id": "a", "type": "command", "status": "failed", "duration": 1.0,
    "attempts": [{"number": 1, "status": "failed", "failure": {"message": "why"}}],
}  # fmt: skip
UNDO: dict[str, Any] = {
    "step_id": "a", "attempt": 1, "kind": "declared", "started_at": 1.0, "ended_at": 2.0,
    "failure": {"message": "why not"},
}  # fmt: skip
ROLLBACK: dict[str, Any] = {
    "number": 1, "epoch": None, "span": ["a"], "cancelled": ["a"], "environments": ["shop"],
    "causes": [
        {"step_id": "a", "attempt": 1, "retry_from_step_id": "a", "retry": 1, "max_retries": 1}
    ],
    "compensations": [UNDO], "replaced": [], "started_at": 1.0, "ended_at": 2.0,
    "abandoned": "why",
}  # fmt: skip
RECORD: dict[str, Any] = {
    "suite": "s", "task_id": "t", "trial": 1, "run_id": "r", "status": "failed",
    "failure": {"kind": "task", "step": "a", "message": "why"}, "steps": [STEP],
    "attempt_epoch": 0, "rollbacks": [ROLLBACK],
    "compensation_failures": [{"step_id": "a", "attempt": 1, "error": "why not"}],
    "retry_resets": [], "instances": [], "usage": {}, "context": {},
    "started_at": 1.0, "duration": 1.0,
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return write(tmp_path / "results", SUITE, RECORD)


def write(results: Path, suite: Any, record: Any = None) -> Path:
    trial = results / "s" / "t" / "1"
    trial.mkdir(parents=True, exist_ok=True)
    (results / "s" / "suite.json").write_text(json.dumps(suite))
    (trial / "record.json").write_text(json.dumps(record or RECORD))
    return results


@pytest.mark.parametrize("name", ["suite.json", "results.jsonl", "t/1/record.json"])
@pytest.mark.parametrize("device", [None, "/dev/zero"])
def test_pipes_and_devices_in_place_of_files_are_not_read(
    results: Path, name: str, device: str | None
) -> None:
    path = results / "s" / name
    path.unlink(missing_ok=True)
    if device:
        path.symlink_to(device)
    else:
        os.mkfifo(path)
    files = suite_files(results, "s")
    reading: dict[str, Callable[[], object]] = {
        "suite.json": files.read_suite,
        "results.jsonl": files.lines,
        "t/1/record.json": lambda: files.read_record("t", 1),
    }
    with pytest.raises(ResultsError, match="is not a regular file"):
        reading[name]()
    assert status_of(["list", "--results", str(results)]) in (0, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": [{**END, "trial": "1"}]},
        {"trials": [{**END, "trial": True}]},
        {"trials": [{**END, "duration": "1"}]},
        {"tasks": [*SUITE["tasks"], *SUITE["tasks"]]},
        {"tasks": [{"id": "..", "digest": "d", "repeats": 1}]},
        {"tasks": [{"id": "t", "digest": "d", "repeats": "2"}]},
        {"started_at": 1e300},
        {"ended_at": "yesterday"},
    ],
)
def test_a_suite_of_another_shape_is_refused(results: Path, wrong: dict[str, Any]) -> None:
    write(results, {**SUITE, **wrong})
    with pytest.raises(ResultsError, match="is not what perdure writes there"):
        stored_suite(results, "s")


def test_a_record_leads_to_no_file_outside_of_its_trial(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside.1"
    outside.mkdir()
    (outside / "stderr.log").write_text("a secret\n")
    leading = {**STEP, "id": "../../../../../outside"}
    write(results, SUITE, {**RECORD, "steps": [leading]})
    assert status_of(["show", "s/t", "--results", str(results)]) == 2
    assert "a secret" not in capsys.readouterr().out

    trial = write(results, SUITE) / "s" / "t" / "1"
    for linked, target in (("steps", tmp_path), ("steps/a.1", outside)):
        (trial / linked).parent.mkdir(exist_ok=True)
        (trial / linked).symlink_to(target)
        (failed,) = failed_attempts(RECORD, trial)
        assert failed.lines == []
        (trial / linked).unlink()
    (trial / "steps" / "a.1").mkdir(parents=True)
    os.mkfifo(trial / "steps" / "a.1" / "stderr.log")
    (failed,) = failed_attempts(RECORD, trial)
    assert failed.lines == []


def test_what_a_record_says_cannot_steer_a_terminal(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = {"path": ESCAPE, "step": ESCAPE, "size_bytes": 1, "kept": True}
    step = {**STEP, "type": ESCAPE, "status": ESCAPE}
    told: dict[str, Any] = {
        "suite": ESCAPE,
        "task_id": ESCAPE,
        "run_id": ESCAPE,
        "cancelled": ESCAPE,
    }
    undo = {**UNDO, "step_id": ESCAPE, "kind": ESCAPE, "failure": {"message": ESCAPE}}
    names = {"span": [ESCAPE], "cancelled": [ESCAPE], "environments": [ESCAPE]}
    rollback = {**ROLLBACK, **names, "abandoned": ESCAPE, "compensations": [undo]}
    told["rollbacks"] = [rollback]
    write(
        results,
        {**SUITE, "run_id": ESCAPE, "stopped": ESCAPE},
        {**RECORD, **told, "steps": [step], "artifacts": [artifact], "usage": {ESCAPE: 1.0}},
    )
    for command in (["show", "s/t"], ["show", "s"], ["list"], ["list", "s"], ["suite", "s"]):
        assert status_of([*command, "--results", str(results)]) == 0
        out = capsys.readouterr().out
        assert out
        assert "\x1b" not in out


@pytest.mark.parametrize("command", ["list", "show s", "suite s"])
def test_a_name_that_no_file_system_takes_is_an_error_that_says_so(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of([*command.split(), "--results", "a" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def paths_of(value: Any) -> list[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    return [(), *((key, *rest) for key, inner in items for rest in paths_of(inner))]


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], by)
    return copy


@given(st.sampled_from(paths_of(SUITE)), st.sampled_from(paths_of(RECORD)), JSON, JSON)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_the_files_hold_is_read_or_refused(
    tmp_path: Path, in_suite: Any, in_record: Any, first: Any, second: Any
) -> None:
    results = tmp_path / "results"
    write(results, changed(SUITE, in_suite, first))
    (results / "s" / "t" / "1" / "record.json").write_text(
        json.dumps(changed(RECORD, in_record, second))
    )
    stored_suites(results, lambda line: None)
    for command in (["show", "s"], ["show", "s/t"], ["list", "s"], ["suite", "s"], ["list"]):
        assert status_of([*command, "--results", str(results)]) in (0, 2)
