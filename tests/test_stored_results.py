"""What files of results alone tell of suites: open, over, killed, damaged, somebody else's."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import WorkflowEnvironment

from perdure.results import ResultsError, SuiteFiles, check_owner, suite_files
from perdure.safe_names import UnsafeName
from perdure.server_id import server_id
from perdure.stored_results import require_results, stored_suite, stored_suites
from tests.stored import STARTED_AT, Store, ended


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def totals(store: Store, suite: str = "s") -> dict[str, Any]:
    found = stored_suite(store.root, suite)
    assert found is not None
    return {key: value for key, value in found.document["totals"].items() if value}


async def test_a_suite_that_is_over_is_read_whole(store: Store) -> None:
    trials = [
        ended("a", usage={"cost": 0.5}),
        ended("a", "failed", 2, failure_kind="timeout", usage={"cost": 1.0}),
        ended("b", "cancelled"),
    ]
    for trial in trials:
        await store.end(trial)
    await store.suite("failed", trials, stopped="1 failure (max_failures: 1)", a=2, b=1, c=3)

    found = stored_suite(store.root, "s")
    assert found is not None
    assert found.document["totals"] == {
        "total": 6, "succeeded": 1, "failed": 1, "cancelled": 1, "not_run": 3,
        "failed_by_kind": {"timeout": 1}, "usage": {"cost": 1.5},
    }  # fmt: skip
    assert found.document["stopped"] == "1 failure (max_failures: 1)"
    assert found.document["pass_at_k"] == {"1": 0.5, "2": 1.0}
    assert [step["id"] for step in found.document["tasks"][0]["trials"][0]["steps"]] == ["ask"]
    assert found.ended_at is not None
    own = json.loads((store.root / "s" / "suite.json").read_text())
    assert (own["totals"], own["pass_at_k"]) == (
        found.document["totals"], found.document["pass_at_k"],
    )  # fmt: skip
    assert (own["status"], own["stopped"]) == ("failed", "1 failure (max_failures: 1)")
    assert [t["status"] for t in own["trials"]] == ["succeeded", "failed", "cancelled"]


async def test_of_a_suite_that_runs_or_was_killed_the_lines_tell(store: Store) -> None:
    await store.suite("running", a=2, b=1)
    await store.end(ended("a", "failed", failure_kind="infrastructure"))
    assert totals(store) == {
        "total": 3, "failed": 1, "failed_by_kind": {"infrastructure": 1}, "pending": 2,
    }  # fmt: skip
    found = stored_suite(store.root, "s")
    assert found is not None
    assert (found.document["status"], found.ended_at) == ("running", None)


async def test_what_an_earlier_run_of_the_suite_left_is_not_this_ones(store: Store) -> None:
    await store.suite("running", a=1, b=1, c=1)
    first = [ended("a"), ended("b", "failed"), ended("c", "failed")]
    for trial in first:
        await store.end(trial)
    await store.suite("failed", first, a=1, b=1, c=1)
    # It is typed again: `a` is taken over, `b` ends anew, `c` waits.
    await store.suite(
        "running", first[:1], run_id="second", started_at=STARTED_AT + 100, a=1, b=1, c=1
    )
    assert totals(store) == {"total": 3, "succeeded": 1, "pending": 2}
    again = ended("b", run_id="run-b-again", started_at=STARTED_AT + 101)
    await store.end(again)
    assert totals(store) == {"total": 3, "succeeded": 2, "pending": 1}
    await store.suite("cancelled", [first[0], again], run_id="second", a=1, b=1, c=1)
    assert totals(store) == {"total": 3, "succeeded": 2, "not_run": 1}
    found = stored_suite(store.root, "s")
    assert found is not None
    assert found.document["status"] == "cancelled"


async def test_a_trial_without_line_or_record_is_known_by_its_suite(store: Store) -> None:
    lost = ended("a", "failed", failure_kind="infrastructure", failure_reason="terminated")
    note = ended("b", note="its record could not be written", unwritten=True)
    await store.suite("failed", [lost, note], a=1, b=1)
    found = stored_suite(store.root, "s")
    assert found is not None
    a, b = (task["trials"][0] for task in found.document["tasks"])
    assert a["failure"] == {"kind": "infrastructure", "step": "ask", "reason": "terminated"}
    assert (b["unwritten"], b["note"], b["steps"]) == (True, "its record could not be written", [])


@pytest.mark.parametrize("status", ["running", "succeeded"])
async def test_a_line_that_was_cut_off_is_made_good_from_the_record(
    store: Store, status: Any
) -> None:
    trials = [ended("a"), ended("b")]
    await store.suite("running", a=1, b=1)
    for trial in trials:
        await store.end(trial)
    lines = store.root / "s" / "results.jsonl"
    os.truncate(lines, lines.stat().st_size - 40)
    if status != "running":
        await store.suite(status, trials, a=1, b=1)
    found = stored_suite(store.root, "s")
    assert found is not None
    assert found.document["totals"]["succeeded"] == 2
    assert [t["trials"][0]["steps"][0]["id"] for t in found.document["tasks"]] == ["ask", "ask"]


async def test_the_next_line_takes_out_one_that_a_crash_cut_off(store: Store) -> None:
    await store.end(ended("a"))
    lines = store.root / "s" / "results.jsonl"
    os.truncate(lines, lines.stat().st_size - 40)
    await store.end(ended("b"))
    await store.end(ended("a"))  # repeated: the half of it that was there has its run id as well
    parsed = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["task"] for line in parsed] == ["b", "a"]


async def test_a_line_that_lacks_its_end_alone_is_kept(store: Store) -> None:
    await store.end(ended("a"))
    lines = store.root / "s" / "results.jsonl"
    os.truncate(lines, lines.stat().st_size - 1)
    await store.end(ended("b"))
    assert [json.loads(line)["task"] for line in lines.read_text().splitlines()] == ["a", "b"]


async def test_a_trial_that_was_closed_from_outside_has_its_line_once_the_suite_is_over(
    store: Store,
) -> None:
    lost = ended("a", "failed", failure_kind="infrastructure", failure_reason="terminated")
    unwritten, never = ended("b", unwritten=True), ended("c", "cancelled", run_id="")
    trials = [lost, unwritten, never, ended("d")]
    await store.end(trials[-1])
    for _ in range(2):
        await store.suite("failed", trials, a=1, b=1, c=1, d=1)
    lines = suite_files(store.root, "s").lines()
    assert [(line["task"], line["suite"]) for line in lines] == [("d", "s"), ("a", "s")]
    assert lines[1]["failure"]["reason"] == "terminated"


async def test_a_server_keeps_its_id(temporal: WorkflowEnvironment) -> None:
    first = await server_id(temporal.client)
    assert first
    assert await server_id(temporal.client) == first


async def test_two_suites_in_one_directory_do_not_mix(store: Store) -> None:
    for suite, status in (("one", "succeeded"), ("two", "failed")):
        await store.end(ended("a", status), suite)
        await store.suite(status, [ended("a", status)], suite=suite, a=1)  # type: ignore[arg-type]
    assert totals(store, "one") == {"total": 1, "succeeded": 1}
    assert totals(store, "two") == {"total": 1, "failed": 1, "failed_by_kind": {"task": 1}}
    assert [found.suite for found in stored_suites(store.root, print)] == ["one", "two"]


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("suite.json", '{"suite": "s", "run', "is damaged"),
        ("suite.json", "", "is empty"),
        ("suite.json", b"\xff\xfe", "is damaged"),
        ("suite.json", "[1]", "is not what perdure writes there"),
        ("suite.json", "null", "is not what perdure writes there"),
        ("suite.json", '{"name": "package"}', "is not what perdure writes there (suite: "),
        ("suite.json", "[" * 100_000, "is damaged"),
        ("results.jsonl", '{"level": "info"}\n', "line 1 is not what perdure writes there (task: "),
        ("suite.json", None, "cannot be read (Is a directory)"),
        ("results.jsonl", None, "cannot be read (Is a directory)"),
    ],
)
async def test_what_is_damaged_or_foreign_is_named_and_the_rest_is_read(
    store: Store, file: str, content: str | bytes | None, problem: str
) -> None:
    await store.suite("succeeded", [ended("a")], a=1)
    await store.suite("succeeded", [ended("a")], suite="whole", a=1)
    path = store.root / "s" / file
    path.unlink(missing_ok=True)
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content)
    with pytest.raises(ResultsError) as raised:
        stored_suite(store.root, "s")
    assert str(raised.value).startswith(f"{path}: ")
    assert problem in str(raised.value)
    told: list[str] = []
    assert [found.suite for found in stored_suites(store.root, told.append)] == ["whole"]
    assert told == [str(raised.value)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tasks", [{"id": "../../outside", "digest": "", "repeats": 1}]),
        ("tasks", [{"id": "a", "digest": "", "repeats": 10**30}]),
        ("started_at", float("nan")),
        ("trials", [{"task": "a"}]),
        ("status", "exploded"),
    ],
)
async def test_a_suite_with_values_that_cannot_be_is_refused(
    store: Store, key: str, value: Any
) -> None:
    await store.suite("running", a=1)
    path = store.root / "s" / "suite.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ResultsError, match=f"is not what perdure writes there \\({key}"):
        stored_suite(store.root, "s")


async def test_a_record_that_is_none_is_refused(store: Store) -> None:
    await store.end(ended("a"))
    path = store.root / "s" / "a" / "1" / "record.json"
    path.write_text('{"steps": 7}')
    with pytest.raises(ResultsError, match="is not what perdure writes there"):
        suite_files(store.root, "s").read_record("a", 1)


async def test_events_come_back_line_by_line_whatever_they_hold(store: Store) -> None:
    await store.end(ended("a"))
    files = suite_files(store.root, "s")
    events = files.read_events("a", 1)
    assert events is not None
    assert [event["type"] for event in events] == ["run.started", "step.started"]
    path = files.trial("a", 1) / "events.jsonl"
    path.write_text(json.dumps({"type": "x", "at": 1, "error": "\u2028\x85"}, ensure_ascii=False))
    assert files.read_events("a", 1) == [{"type": "x", "at": 1, "error": "\u2028\x85"}]
    path.write_text('{"level": "info"}')
    with pytest.raises(ResultsError, match="event 1 is not what perdure writes there"):
        files.read_events("a", 1)
    assert files.read_events("b", 1) is None


async def test_a_directory_in_which_another_server_may_write_is_refused(store: Store) -> None:
    store.server = "one"
    await store.suite("running", a=1)
    for server in ("one", None):
        check_owner(store.root, "s", server)
    with pytest.raises(ResultsError, match="that another server runs, or left when it was killed"):
        check_owner(store.root, "s", "two")
    check_owner(store.root, "another", "two")
    await store.suite("succeeded", [ended("a")], a=1)
    check_owner(store.root, "s", "two")


@pytest.mark.parametrize("name", ["..", "a/b", "", "a\0", "x" * 300])
def test_ids_that_lead_elsewhere_are_no_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafeName):
        suite_files(tmp_path, name)
    with pytest.raises(UnsafeName):
        SuiteFiles(tmp_path).trial(name, 1)


async def test_a_directory_without_results_is_refused_and_the_right_one_named(
    store: Store, tmp_path: Path
) -> None:
    await store.suite("running", a=1)
    require_results(store.root)
    with pytest.raises(ResultsError, match=f"--results {store.root} s$"):
        require_results(store.root / "s")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultsError, match="holds no results of perdure"):
        require_results(tmp_path / "empty")
    with pytest.raises(ResultsError, match="there is no directory"):
        require_results(tmp_path / "nowhere")


async def test_an_append_that_finds_no_room_leaves_the_old_lines_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = suite_files(store.root, "s")
    await store.end(ended("a"))
    before = files.lines_file.read_bytes()
    line = {**files.lines()[0], "run_id": "x" * 100_000}
    with limited_to(len(before) + 5000), pytest.raises(OSError) as raised:
        files.append_line(line)
    assert raised.value.errno == errno.EFBIG
    assert files.lines_file.read_bytes() == before


class limited_to:
    """A limit on the size of files: a write is cut off at it as it is on a full disk."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __enter__(self) -> None:
        import resource
        import signal

        self._signal = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._limit[1]))

    def __exit__(self, *exc: object) -> None:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)
        signal.signal(signal.SIGXFSZ, self._signal)
