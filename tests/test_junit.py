"""JUnit files: what a CI system reads in them, whatever the tasks have printed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.junit import JUnitError, check_junit, junit, write_junit
from perdure.messages import SuiteTask, TrialSummary
from perdure.outcome import Trials, line_of_summary, outcome, with_marks

HOSTILE = "<b>&amp;]]> \x1b[31mred\x1b[0m \x00\x08\x0b\x7f\x85\ud800\uffff \"'\r\n\ttail \U0001f600"


def end(id: str, status: str = "succeeded", trial: int = 1, **more: Any) -> dict[str, Any]:
    summary = TrialSummary(
        id, trial, f"run-{id}-{trial}", status, started_at=1_700_000_000.0 + trial,
        duration_seconds=1.5, **more,
    )  # type: ignore[arg-type]  # fmt: skip
    return with_marks(line_of_summary(summary), summary)


def suite(*ended: dict[str, Any], name: str = "nightly", **repeats: int) -> dict[str, Any]:
    tasks = [SuiteTask({"id": id}, id, repeats=count) for id, count in repeats.items()]
    return outcome(name, "run-1", tasks, Trials(ended, stopped="1 failure (max_failures: 1)"))


def read(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_bytes())


def test_each_trial_is_a_test_case_and_the_counts_are_those_of_the_cases(tmp_path: Path) -> None:
    failed = {
        kind: end(kind, "failed", failure_kind=kind, failure_step="ask", failure_reason="late\nx")
        for kind in ("task", "timeout", "environment", "infrastructure", "bad_input")
    }
    document = suite(
        end("a", usage={"cost": 0.25, "tokens": 1234567}), end("b", "cancelled"),
        *failed.values(), end("k", trial=2), end("k", "failed", failure_kind="task"),
        a=1, b=1, k=3, idle=1, **dict.fromkeys(failed, 1),
    )  # fmt: skip
    write_junit(document, tmp_path / "out" / "j.xml", results=Path("kept"))

    root = read(tmp_path / "out" / "j.xml")
    (found,) = root
    assert (root.tag, found.tag, found.get("name")) == ("testsuites", "testsuite", "nightly")
    for element in (root, found):
        counts = {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")}
        assert counts == {"tests": "11", "failures": "3", "errors": "3", "skipped": "3"}
        assert element.get("time") == "13.500"
    assert found.get("timestamp") == "2023-11-14T22:13:21"
    cases = {case.get("name"): case for case in found.findall("testcase")}
    kinds = {
        name: [
            (child.tag, child.get("type")) for child in case if child.tag in ("failure", "error")
        ]
        for name, case in cases.items()
    }
    assert kinds["task"] == [("failure", "task")]
    assert kinds["timeout"] == [("failure", "timeout")]
    assert kinds["bad_input"] == [("error", "bad_input")]
    assert [kinds[n][0][0] for n in ("environment", "infrastructure")] == ["error", "error"]
    assert [kinds["k/1"], kinds["k/2"], kinds["a"]] == [[("failure", "task")], [], []]
    late = cases["timeout"].find("failure")
    assert late is not None
    assert (late.get("message"), late.text) == ("step ask: late", "step ask: late\nx")
    skipped = {n: c.find("skipped") for n, c in cases.items()}
    messages = {name: s.get("message") for name, s in skipped.items() if s is not None}
    assert messages == {"b": "cancelled", "k/3": "not run", "idle": "not run"}
    assert {case.get("classname") for case in cases.values()} == {"nightly"}
    properties = {p.get("name"): p.get("value") for p in cases["a"].iter("property")}
    assert properties == {"run_id": "run-a-1", "usage.cost": "0.25", "usage.tokens": "1234567"}
    assert "logs: kept/nightly/k/2/steps" in (cases["k/2"].findtext("system-out") or "")
    own = {p.get("name"): p.get("value") for p in found.findall("properties/property")}
    assert own["stopped"] == "1 failure (max_failures: 1)"
    assert "pass@1" in own


def test_steps_with_their_attempts_and_notes_stand_in_the_output() -> None:
    line = end("a", note="the record could not be written: disk full", unwritten=True)
    line["steps"] = [
        {"id": "ask", "status": "succeeded", "attempts": 3, "duration": 2.25},
        {"id": "check", "status": "failed", "attempts": 1, "duration": 0.5},
    ]
    told = junit(suite(line, a=1)).findtext(".//system-out")
    assert told is not None
    assert told.splitlines() == [
        "ask: succeeded, 3 attempts, 2.25 s",
        "check: failed, 1 attempt, 0.50 s",
        "note: the record could not be written: disk full",
        "logs: nightly/a/1/steps",
    ]


def test_hostile_texts_come_out_readable_and_nothing_of_them_is_markup(tmp_path: Path) -> None:
    line = end(
        "a", "failed", failure_kind="task", failure_step=HOSTILE, failure_reason=HOSTILE,
        note=HOSTILE, usage={HOSTILE: 1.0},
    )  # fmt: skip
    write_junit(suite(line, a=1, name=HOSTILE), tmp_path / "j.xml")
    failure = read(tmp_path / "j.xml").find(".//failure")
    assert failure is not None
    assert "<b>&amp;]]> red " in (failure.text or "")
    assert "\U0001f600" in (failure.text or "")
    assert "[31m" not in (failure.text or "")
    assert read(tmp_path / "j.xml").find(".//b") is None


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_makes_a_file_that_can_be_parsed(text: str) -> None:
    line = end("a", "failed", failure_kind="task", failure_reason=text, note=text)
    document = suite(line, a=1, name=text)
    parsed = ElementTree.fromstring(ElementTree.tostring(junit(document), encoding="utf-8"))
    assert parsed.find(".//failure") is not None


def test_a_suite_without_an_end_has_a_file_too(tmp_path: Path) -> None:
    write_junit(suite(a=2), tmp_path / "j.xml")
    assert len(read(tmp_path / "j.xml").findall(".//skipped")) == 2


def test_a_file_that_was_there_is_replaced_and_a_link_to_it_stays(tmp_path: Path) -> None:
    (tmp_path / "real.xml").write_text("old")
    (tmp_path / "link.xml").symlink_to("real.xml")
    write_junit(suite(end("a"), a=1), tmp_path / "link.xml")
    assert (tmp_path / "link.xml").is_symlink()
    assert read(tmp_path / "real.xml").tag == "testsuites"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.xml", "real.xml"]


def test_a_pipe_gets_the_document_and_stays_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    check_junit(tmp_path / "pipe")
    write_junit(suite(end("a"), a=1), tmp_path / "pipe")
    assert ElementTree.fromstring(reader.communicate(timeout=30)[0]).tag == "testsuites"
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("place", [".", "file/below.xml", "a\0b"])
def test_a_place_that_cannot_be_written_is_told_before_and_after(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    for act in (check_junit, lambda path: write_junit(suite(a=1), path)):
        with pytest.raises(
            JUnitError, match=r"the JUnit file cannot be written \(.+\); name a file"
        ):
            act(f"{tmp_path}/{place}")


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_junit(tmp_path / "new" / "j.xml")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_disk_that_fills_up_leaves_the_old_file_whole(tmp_path: Path) -> None:
    (tmp_path / "j.xml").write_text("old")
    script = (
        "import sys; from perdure.junit import *; from tests.test_junit import suite, end\n"
        "write_junit(suite(end('a'), a=1), sys.argv[1])"
    )
    # A limit on the size of files cuts a write off as a full disk does.
    done = subprocess.run(
        # -B: compiled modules would be cut off, too, and be found so by others.
        [sys.executable, "-B", "-c", script, tmp_path / "j.xml"],
        cwd=Path(__file__).resolve().parent.parent,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert "JUnitError" in done.stderr
    assert (tmp_path / "j.xml").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["j.xml"]
