"""A suite's outcome as JUnit XML, which continuous integration systems show and count."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from perdure.errors import PerdureError
from perdure.names import trial_name

FAILURES = ("task", "timeout")
"""Kinds of failure that are the tested thing's own; the others are told as errors of the set-up."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnitError(PerdureError):
    """The JUnit file cannot be written."""


def write_junit(
    outcome: Mapping[str, Any], path: str | Path, *, results: Path | None = None
) -> None:
    """Write a suite's document as JUnit XML, whole or not at all.

    One `testcase` for each trial of each task: `failure` for a failure of the kinds `task` and
    `timeout`, `error` for the other kinds, `skipped` for what was cancelled or not run. `outcome`
    is what `perdure.outcome.outcome` gives; `results`: where its files of results are, to be named
    in the output of each test case. Folders on the way are made. Raises JUnitError, which says
    what to do.
    """
    document = junit(outcome, results=results)
    indent(document)
    text: bytes = tostring(document, encoding="utf-8", xml_declaration=True) + b"\n"
    with _explained(path):
        _write_whole(Path(path), text)


def check_junit(path: str | Path) -> None:
    """Find out before a long run whether its JUnit file could be written. Raises JUnitError."""
    with _explained(path):
        target = Path(os.path.realpath(path))
        if _is_plain(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = _draft_of(target)
            try:
                draft.touch()
            finally:
                draft.unlink(missing_ok=True)


def junit(outcome: Mapping[str, Any], *, results: Path | None = None) -> Element:
    """The XML's root element, `testsuites`, with one `testsuite`; see `write_junit`."""
    cases = [
        case for task in outcome["tasks"] for case in _cases(str(outcome["suite"]), task, results)
    ]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(1 for case in cases if case.find("failure") is not None)),
        "errors": str(sum(1 for case in cases if case.find("error") is not None)),
        "skipped": str(sum(1 for case in cases if case.find("skipped") is not None)),
        "time": _seconds(sum(float(case.get("time", 0)) for case in cases)),
    }
    root = Element("testsuites", {"name": "perdure", **counts})
    suite = SubElement(root, "testsuite", {"name": _clean(outcome["suite"]), **counts})
    starts = [trial["started_at"] for task in outcome["tasks"] for trial in task["trials"]]
    if known := [start for start in starts if start]:
        suite.set("timestamp", _moment(min(known)))
    properties = {"run_id": outcome["run_id"]}
    if outcome.get("stopped"):
        properties["stopped"] = outcome["stopped"]
    properties |= {f"pass@{k}": f"{share:.6g}" for k, share in outcome["pass_at_k"].items()}
    _add_properties(suite, properties | _usage(outcome["totals"]["usage"]))
    suite.extend(cases)
    return root


def _cases(suite: str, task: Mapping[str, Any], results: Path | None) -> Iterator[Element]:
    """A test case for each trial of a task, in order."""
    ended = {trial["trial"]: trial for trial in task["trials"]}
    last = max([task.get("repeats", 1), *ended])
    for number in range(1, last + 1):
        name = trial_name(task["id"], number, several=last > 1)
        case = Element("testcase", {"classname": _clean(suite), "name": _clean(name)})
        trial = ended.get(number)
        if trial is None:
            is_open = task["status"] in ("running", "pending")
            case.set("time", _seconds(0))
            SubElement(case, "skipped", {"message": "not finished" if is_open else "not run"})
        else:
            _fill(case, trial)
            folder = "/".join((suite, str(task["id"]), str(number)))
            SubElement(case, "system-out").text = _clean(_told(trial, folder, results))
        yield case


def _fill(case: Element, trial: Mapping[str, Any]) -> None:
    case.set("time", _seconds(trial["duration"] or 0))
    if trial["started_at"]:
        case.set("timestamp", _moment(trial["started_at"]))
    _add_properties(case, {"run_id": trial["run_id"], **_usage(trial["usage"])})
    if trial["status"] == "cancelled":
        SubElement(case, "skipped", {"message": "cancelled"})
    elif trial["status"] == "failed":
        failure = trial["failure"] or {"kind": "infrastructure", "step": None, "reason": ""}
        reason = str(failure["reason"] or "")
        step = f"step {failure['step']}: " if failure["step"] else ""
        first_line = (step + reason).strip().partition("\n")[0]
        element = "failure" if failure["kind"] in FAILURES else "error"
        told = {"type": _clean(failure["kind"]), "message": _clean(first_line)}
        SubElement(case, element, told).text = _clean(step + reason)


def _told(trial: Mapping[str, Any], folder: str, results: Path | None) -> str:
    """Steps with their attempts, and where the logs are."""
    lines = [
        f"{step['id']}: {step['status']}, {step['attempts']} "
        f"{'attempt' if step['attempts'] == 1 else 'attempts'}, {step['duration']:.2f} s"
        for step in trial["steps"]
    ]
    if trial.get("note"):
        lines.append(f"note: {trial['note']}")
    where = folder if results is None else str(results / folder)
    return "\n".join([*lines, f"logs: {where}/steps", ""])


def _usage(usage: Mapping[str, float]) -> dict[str, Any]:
    return {f"usage.{key}": f"{amount:.12g}" for key, amount in usage.items()}


def _add_properties(parent: Element, properties: Mapping[str, Any]) -> None:
    made = SubElement(parent, "properties")
    for name, value in properties.items():
        SubElement(made, "property", {"name": _clean(name), "value": _clean(value)})


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _moment(seconds: float) -> str:
    """ISO 8601 in UTC and without a zone, the one form that all readers of JUnit files take."""
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return "1970-01-01T00:00:00"


def _clean(value: object) -> str:
    """Text without terminals' escape sequences, and without what XML forbids even when escaped."""
    return _FORBIDDEN.sub("", _ESCAPES.sub("", str(value)))


# --- Writing ------------------------------------------------------------------------------------


def _write_whole(path: Path, text: bytes) -> None:
    target = Path(os.path.realpath(path))  # a link stays one
    if not _is_plain(target):
        target.write_bytes(text)  # a pipe or a terminal: nothing there to be moved into place
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(target)
    try:
        draft.write_bytes(text)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_plain(target: Path) -> bool:
    """Whether it is a file, or nothing yet. Raises OSError for a folder."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(0, "it is a folder")
    return stat.S_ISREG(mode)


def _draft_of(target: Path) -> Path:
    return target.with_name(f".perdure-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def _explained(path: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        raise JUnitError(
            f"{path}: the JUnit file cannot be written ({reason}); "
            f"{'make room, or ' if is_full else ''}name a file in a folder that you may write to"
        ) from error
