"""Suites as their files of results tell of them: no server, no worker, any machine.

The suite's own file is written when it starts and when it is over. Between the two, and for good
if it was killed, the lines and records of its trials tell more than that file does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.errors import PerdureError
from perdure.messages import SuiteTask
from perdure.outcome import Trials, outcome
from perdure.results import ResultsError, SuiteFiles, suite_files
from perdure.safe_names import UnsafeName, safe_part

_Key = tuple[str, int]


@dataclass(frozen=True)
class StoredSuite:
    """A suite on disk."""

    suite: str
    """The name of its directory."""
    document: dict[str, Any]
    """As `perdure run --json` prints it."""
    started_at: float
    """Seconds since 1970."""
    ended_at: float | None
    """None: it runs, or was killed."""


def stored_suites(results: Path, say: Callable[[str], None]) -> list[StoredSuite]:
    """The suites below a directory of results, newest first.

    `say` is told, in one line each, of those that cannot be read. Raises ResultsError if the
    directory itself cannot be.
    """
    found = []
    try:
        names = sorted(path.name for path in results.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ResultsError(f"{results}: cannot be read ({error.strerror or error})") from error
    for name in names:
        try:
            suite = stored_suite(results, name)
        except UnsafeName:
            continue  # not ours
        except ResultsError as error:
            say(str(error))
            continue
        if suite:
            found.append(suite)
    return sorted(found, key=lambda suite: suite.started_at, reverse=True)


def stored_suite(results: Path, suite: str) -> StoredSuite | None:
    """One suite below a directory of results; None if there is none.

    Raises ResultsError for files that are not what perdure writes, and UnsafeName.
    """
    files = suite_files(results, suite)
    known = files.read_suite()
    if known is None:
        return None
    tasks = [SuiteTask({"id": t["id"]}, t["digest"], repeats=t["repeats"]) for t in known["tasks"]]
    document = outcome(
        suite,
        known["run_id"],
        tasks,
        Trials(
            ended=list(_ends(files, known).values()),
            is_open=known["status"] == "running",
            stopped=known.get("stopped"),
            cancelled=known["status"] == "cancelled",
        ),
    )
    return StoredSuite(suite, document, known["started_at"], known.get("ended_at"))


def require_results(results: Path) -> None:
    """Refuse a directory that is none, or holds no results.

    Raises ResultsError, which says what to name instead.
    """
    try:
        # os.path answers no where Path would raise, for one folder that may not be entered.
        if any(os.path.isfile(child / "suite.json") for child in results.iterdir()):
            return
    except NotADirectoryError:
        raise ResultsError(f"{results} is not a directory; name one with results") from None
    except FileNotFoundError:
        raise ResultsError(f"there is no directory {results}; check the path") from None
    except OSError as error:
        raise ResultsError(f"{results}: cannot be read ({error.strerror or error})") from error
    if os.path.isfile(results / "suite.json"):
        raise ResultsError(
            f"{results} is the directory of one suite; name the one above it, and the suite: "
            f"--results {results.parent} {results.name}"
        )
    raise ResultsError(
        f"{results} holds no results of perdure (no <suite>/suite.json below it); check the path"
    )


def _ends(files: SuiteFiles, suite: Mapping[str, Any]) -> dict[_Key, dict[str, Any]]:
    """The last end of each of the suite's trials, as full a line as there is.

    What earlier runs of the suite have left in its directory is not this one's.
    """
    lines = {(line["task"], line["trial"]): line for line in files.lines()}
    told = suite.get("trials")
    if told is None:  # written before that file told of trials
        return lines
    ends = {(end["task"], end["trial"]): _filled(files, end, lines) for end in told}
    if suite["status"] != "running":
        return ends | _gone_on(files, suite, ends)
    for key in [*lines, *_recorded(files, suite)]:
        line = lines.get(key) or files.line_of_record(*key)
        if line and (line["started_at"] or 0.0) >= suite["started_at"]:
            ends[key] = line
    return ends


def _gone_on(
    files: SuiteFiles, suite: Mapping[str, Any], ends: Mapping[_Key, Mapping[str, Any]]
) -> dict[_Key, dict[str, Any]]:
    """The ends of those trials that went on from one of their steps when the suite was over."""
    found = {}
    for line in files.lines():
        key = line["task"], line["trial"]
        known = ends.get(key)
        if known and line["run_id"] != known["run_id"] and _began_after(line, suite):
            with contextlib.suppress(PerdureError):  # the suite's own word stands
                record = files.read_record(*key) or {}
                if record.get("resumed_from") and record["run_id"] == line["run_id"]:
                    found[key] = line
    return found


def _began_after(line: Mapping[str, Any], suite: Mapping[str, Any]) -> bool:
    return (line["started_at"] or 0.0) >= (suite.get("ended_at") or 0.0)


def _recorded(files: SuiteFiles, suite: Mapping[str, Any]) -> Iterator[_Key]:
    """The trials that have a directory, by task and number."""
    for task in suite["tasks"]:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(files.root / safe_part(task["id"]))):
                if name.isascii() and name.isdigit() and len(name) < 7:
                    yield task["id"], int(name)


def _filled(
    files: SuiteFiles, end: Mapping[str, Any], lines: Mapping[_Key, dict[str, Any]]
) -> dict[str, Any]:
    """What the suite tells of a trial, with the steps that its line or its record knows."""
    key = (end["task"], end["trial"])
    line = lines.get(key)
    if line is None or line["run_id"] != end["run_id"]:
        line = files.line_of_record(*key)
    if line is None or line["run_id"] != end["run_id"]:
        line = {"steps": [], "retry_resets": [], "instances": []}
    return {**line, **end}
