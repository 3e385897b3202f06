"""The task store: versions without gaps, whoever writes, and files that are never made worse."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.config import Settings
from perdure.core.fields import nearest_id
from perdure.document_problems import InvalidDocuments
from perdure.documents import load
from perdure.state import StateDir
from perdure.stored_tasks import StoredTasks, store_tasks
from perdure.suite_input import stem_of
from perdure.task_store import TaskStore, TaskStoreError, UnknownStoredTask, parse_stored_name
from tests.cli.support import ROOT
from tests.core.strategies import JSON
from tests.dtap_kit import Project
from tests.test_state import another_user, open_tmp  # noqa: F401  (a fixture)

WRITER = """
import sys
from pathlib import Path
from perdure.task_store import TaskStore

store, count = TaskStore(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(count):
    task, = store.put({"id": "shared", "steps": [], "by": sys.argv[3]})
    print(task.version, flush=True)
"""


def document(id: str = "a", **more: Any) -> dict[str, Any]:
    return {"id": id, "steps": [{"id": "s", "type": "command", "command": "true"}], **more}


def writer(store: TaskStore, count: int, name: str) -> subprocess.Popen[str]:
    """A process that waits for a line, and then stores `count` versions of one task."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(store.path), str(count), name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def store(tmp_path: Path) -> TaskStore:
    return TaskStore(StateDir(tmp_path / "state").tasks)


# --- Versions -----------------------------------------------------------------------------------


def test_put_gives_the_next_version_and_get_the_latest_or_the_asked_one(store: TaskStore) -> None:
    """T56."""
    for command in ("one", "two", "two"):
        store.put({"id": "a", "steps": [command]})
    store.put({"id": "b", "steps": ["other"]})

    assert store.get("a").document == {"id": "a", "version": 3, "steps": ["two"]}
    assert [store.get("a", number).document["steps"] for number in (1, 2, 3)] == [
        ["one"], ["two"], ["two"],
    ]  # fmt: skip
    assert store.get("b").name == "store:b@1"


def test_the_version_that_a_document_brings_is_replaced(store: TaskStore) -> None:
    (stored,) = store.put(document(version=7))

    assert (stored.version, stored.document["version"]) == (1, 1)
    assert store.get("a").document == stored.document


@settings(max_examples=25)  # each put waits for the disk
@given(
    puts=st.lists(
        st.tuples(
            st.sampled_from(["a", "A", "a-", "0"]),
            st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON, max_size=3),
        ),
        max_size=12,
    )
)
def test_every_version_stays_what_was_put(
    puts: list[tuple[str, dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = TaskStore(tmp_path_factory.mktemp("store") / "tasks.sqlite")
    kept: dict[str, list[dict[str, Any]]] = {}
    for id, body in puts:
        versions = kept.setdefault(id, [])
        (stored,) = store.put({**body, "id": id})
        versions.append({**body, "id": id, "version": len(versions) + 1})
        assert stored.document == versions[-1]

    for id, versions in kept.items():
        assert [store.get(id, n).document for n in range(1, len(versions) + 1)] == versions
        assert store.get(id).document == versions[-1]
        with pytest.raises(UnknownStoredTask):
            store.get(id, len(versions) + 1)
    assert [task.document for task in store.query()] == [kept[id][-1] for id in sorted(kept)]


def test_one_document_of_several_that_cannot_be_stored_keeps_all_of_them_out(
    store: TaskStore,
) -> None:
    store.put(document("a"))

    with pytest.raises(ValueError, match="float"):
        store.put(document("a"), document("b", metadata={"x": float("nan")}))

    assert [(task.id, task.version) for task in store.query()] == [("a", 1)]


def test_what_fits_is_found_by_pattern_type_project_and_metadata(store: TaskStore) -> None:
    """T56."""
    store.put(
        document("shop-a", metadata={"type": "benign", "n": 1}, project_id="p"),
        document("shop-b", metadata={"type": "direct", "n": 1}),
        document("mail", metadata={"type": "benign"}),
        document("mail", metadata={"type": "direct"}),
    )

    def ids(**asked: Any) -> list[str]:
        return [task.id for task in store.query(**asked)]

    assert ids() == ["mail", "shop-a", "shop-b"]
    assert ids(id="shop-*") == ["shop-a", "shop-b"]
    assert ids(id="shop-[!a]") == ["shop-b"]
    assert ids(id="SHOP-*") == []
    assert ids(type="benign") == ["shop-a"], "mail is of another type by now"
    assert ids(type="task") == ids()
    assert ids(project_id="p") == ["shop-a"]
    assert ids(metadata={"n": 1, "type": "direct"}) == ["shop-b"]
    assert ids(metadata={"absent": None}) == []


# --- Several processes --------------------------------------------------------------------------


def test_versions_of_processes_that_write_at_once_are_distinct_and_dense(store: TaskStore) -> None:
    writers = [writer(store, 40, str(number)) for number in range(3)]
    for process in writers:  # none has made the file: that, too, is done by all of them at once
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n")[0] for process in writers]

    versions = [int(line) for lines in told for line in lines.split()]
    assert [process.returncode for process in writers] == [0, 0, 0]
    assert sorted(versions) == list(range(1, 121))
    for number, lines in enumerate(told):
        for version in map(int, lines.split()):
            assert store.get("shared", version).document["by"] == str(number)
    assert {path.name for path in store.path.parent.iterdir()} == {"tasks.sqlite"}


@pytest.mark.parametrize("after", [1, 7])
def test_a_writer_that_is_killed_takes_nothing_with_it(store: TaskStore, after: int) -> None:
    process = writer(store, 10_000, "killed")
    assert process.stdin
    assert process.stdout
    process.stdin.write("go\n")
    process.stdin.flush()
    told = [process.stdout.readline() for _ in range(after + 1)][1:]
    process.send_signal(signal.SIGKILL)
    told += process.communicate()[0].splitlines()

    (stored,) = store.put({"id": "shared", "steps": []})

    versions = [int(line) for line in told if line.strip().isdigit()]
    assert versions == list(range(1, len(versions) + 1))
    assert stored.version in (len(versions) + 1, len(versions) + 2), "at most one was not told"
    assert all(store.get("shared", n).document["by"] == "killed" for n in versions)


def test_who_waits_too_long_for_another_process_is_told(
    store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(document())
    monkeypatch.setattr("perdure.store_file.BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        assert store.get("a").version == 1, "readers do not wait"
        with pytest.raises(TaskStoreError, match=r"another process has held .*try again"):
            store.put(document())


# --- The file -----------------------------------------------------------------------------------


def test_the_store_is_its_owners_alone(store: TaskStore) -> None:
    usual = os.umask(0)
    try:
        store.put(document())
    finally:
        os.umask(usual)

    assert store.path.stat().st_mode & 0o777 == 0o600
    assert store.path.parent.stat().st_mode & 0o777 == 0o700


def test_reading_a_store_that_is_not_there_makes_none(store: TaskStore) -> None:
    assert store.query() == []
    with pytest.raises(UnknownStoredTask, match="`perdure tasks put FILE` stores one"):
        store.get("a")

    assert not store.path.parent.exists()


def no_database(path: Path) -> None:
    path.write_text("notes of mine\n" * 500)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE tasks (id TEXT, version INTEGER, document TEXT)")


def newer(path: Path) -> None:
    TaskStore(path).put(document())
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")


def cut_off(path: Path) -> None:
    TaskStore(path).put(*(document(str(n), x="y" * 500) for n in range(200)))
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    TaskStore(path).put(*(document(str(n), x="y" * 500) for n in range(200)))
    with path.open("rb+") as file:
        file.seek(4096)
        file.write(b"\x5a" * (path.stat().st_size - 4096))


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("x")


def a_dead_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_database, "is damaged (file is not a database); restore a copy, or move it away"),
        (empty, "not one of stored tasks; move it away"),
        (foreign, "not one of stored tasks; move it away"),
        (newer, "was written by a newer perdure (layout 2); update perdure"),
        (cut_off, "is damaged"),
        (overwritten, "is damaged"),
        (a_folder, "is not a file; move it away"),
        (a_dead_link, "is not a file; move it away"),
    ],
)
def test_a_file_that_is_no_store_is_refused_and_left_as_it_was(
    store: TaskStore, spoil: Callable[[Path], None], said: str
) -> None:
    store.path.parent.mkdir()
    spoil(store.path)
    before = store.path.read_bytes() if store.path.is_file() else None

    for use in (lambda: store.put(document()), store.query, lambda: store.get("7")):
        with pytest.raises(TaskStoreError) as refused:
            use()
        assert said in str(refused.value)
        assert str(store.path) in str(refused.value)
    if before is not None:
        assert store.path.read_bytes() == before


def test_a_text_that_a_disk_changed_is_not_run(store: TaskStore) -> None:
    store.put(document(), document("b"))
    with closing(sqlite3.connect(store.path)) as database:
        database.execute("UPDATE tasks SET document = replace(document, 'true', 'tsue')")
        database.execute("UPDATE tasks SET document = x'ff' WHERE id = 'b'")
        database.commit()

    with pytest.raises(TaskStoreError, match=r"damaged \(store:a@1: its checksum"):
        store.get("a")
    with pytest.raises(TaskStoreError, match=r"damaged \(store:b@1"):
        store.get("b")


@pytest.mark.parametrize(
    "text", ["[1]", "[" * 100_000, "null", '{"id": "b", "version": 1}', '{"id": "a"}', '"a"']
)
def test_a_row_that_is_no_task_of_that_name_is_damage(store: TaskStore, text: str) -> None:
    store.put(document())
    digest = hashlib.sha256(f"a@1 {text}".encode()).hexdigest()
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("UPDATE tasks SET document = ?, digest = ?", (text, digest))
    for read in (lambda: store.get("a"), store.query):
        with pytest.raises(TaskStoreError, match="is damaged"):
            read()


def test_a_view_in_place_of_the_table_is_not_computed(store: TaskStore) -> None:
    store.put(document())
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute("DROP TABLE tasks")
        database.execute(
            "CREATE VIEW tasks AS WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 "
            "FROM more) SELECT 'a' AS id, n AS version, 1.0 AS stored_at, '' AS digest, "
            "'' AS document FROM more"
        )
    for read in (lambda: store.get("a"), store.query, lambda: store.put(document())):
        with pytest.raises(TaskStoreError, match="it has no table of tasks"):
            read()


def test_a_disk_that_takes_no_more_is_told_and_what_was_stored_stays(store: TaskStore) -> None:
    store.put(document())
    full = """
import resource, sys
from pathlib import Path
from perdure.errors import PerdureError
from perdure.task_store import TaskStore

size = Path(sys.argv[1]).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, size + 20_000))
try:
    TaskStore(Path(sys.argv[1])).put({"id": "a", "x": "y" * 100_000, "steps": []})
except PerdureError as error:
    print(error)
"""
    told = subprocess.run(
        [sys.executable, "-c", full, str(store.path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert str(store.path) in told.stdout, told.stderr
    assert "PERDURE_STATE_DIR" in told.stdout or "make room" in told.stdout
    assert store.get("a").version == 1
    assert store.put(document())[0].version == 2


def test_a_store_of_somebody_else_is_refused_in_words(open_tmp: Path) -> None:  # noqa: F811
    (open_tmp / "mine").mkdir(mode=0o755)
    store = TaskStore(open_tmp / "mine" / "tasks.sqlite")
    store.put(document())

    with another_user():
        with pytest.raises(TaskStoreError, match=r"cannot be opened and written by this user"):
            store.get("a")
        with pytest.raises(TaskStoreError, match=r"PERDURE_STATE_DIR"):
            store.put(document())


# --- Names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("store:a", ("a", None)),
        ("a", ("a", None)),
        ("store:a.b-c_1@12", ("a.b-c_1", 12)),
        (str(Path("store:a@3")), ("a", 3)),
    ],
)
def test_names_are_read(name: str, parsed: tuple[str, int | None]) -> None:
    assert parse_stored_name(name) == parsed


@pytest.mark.parametrize(
    "name",
    [
        *("store:", "store:@1", "store:../etc", "store:a@0", "store:a@-1", "store:a@1.5"),
        *("store:a@01", "store:a@²", "store:a@99999999999999999999", "store:a@1@2", "store:a@"),
        *("store:a b", "store:\0", "store:\ud800", "store:a\n", f"store:{'a' * 200}", "store:ä"),
    ],
)
def test_what_cannot_be_a_name_is_refused_on_one_printable_line(name: str) -> None:
    with pytest.raises(TaskStoreError) as refused:
        parse_stored_name(name)

    assert str(refused.value).isprintable()


@given(st.text())
def test_no_text_is_taken_for_another_name(text: str) -> None:
    try:
        id, version = parse_stored_name(text)
    except TaskStoreError:
        return
    assert nearest_id(id) == id or set(id) <= set("-.")
    assert text.removeprefix("store:") == (id if version is None else f"{id}@{version}")


@pytest.mark.parametrize("version", [0, -1, True, 2**70, 1.0, "1"])
def test_versions_of_callers_are_checked(store: TaskStore, version: Any) -> None:
    store.put(document())

    with pytest.raises(TaskStoreError, match="is not a version"):
        store.get("a", version)


@pytest.mark.parametrize("id", [None, 3, "", "..", "a/b", "a@1"])
def test_ids_of_callers_are_checked(store: TaskStore, id: Any) -> None:
    with pytest.raises(TaskStoreError, match="the id of a stored task"):
        store.put({"id": id, "steps": []})
    with pytest.raises(TaskStoreError, match="the id of a stored task"):
        store.get(id)


def test_an_unknown_task_is_answered_by_the_nearest_and_the_versions_there_are(
    store: TaskStore,
) -> None:
    store.put(document("refund"))
    with pytest.raises(UnknownStoredTask, match=r"no task 'refnd'; did you mean 'refund'\?"):
        store.get("refnd")
    with pytest.raises(UnknownStoredTask, match=r"no version 2; there is version 1 alone"):
        store.get("refund", 2)
    store.put(document("refund"))
    with pytest.raises(UnknownStoredTask, match=r"no version 3; its versions are 1 to 2"):
        store.get("refund", 3)


# --- Documents ----------------------------------------------------------------------------------


async def test_a_document_is_checked_as_a_file_is_with_all_problems(store: TaskStore) -> None:
    tasks = StoredTasks(store)

    with pytest.raises(InvalidDocuments) as refused:
        await tasks.put({"id": "a b", "steps": [{"id": "s", "type": "comand"}], "sed": {}})

    said = str(refused.value)
    assert len(refused.value.problems) == 3, said
    assert all(f"the document: {part}" in said for part in ("id:", "step 's': type:", "sed:"))
    with pytest.raises(InvalidDocuments, match="the task has no id"):
        await tasks.put([{"id": "s", "type": "command", "command": "true"}])
    with pytest.raises(InvalidDocuments, match=r"nowhere.yaml: cannot be read"):
        await tasks.put(Path("nowhere.yaml"))
    assert await tasks.query() == []


async def test_the_caller_keeps_its_document_and_the_store_keeps_what_was_put(
    store: TaskStore,
) -> None:
    tasks, mine = StoredTasks(store), document(metadata={"tags": ["x"]})

    stored = await tasks.put(mine)
    mine["metadata"]["tags"].append("y")
    stored.document["metadata"]["tags"].append("z")

    assert (await tasks.get("a")).document["metadata"] == {"tags": ["x"]}
    assert "version" not in mine


def test_scripts_are_stored_with_their_task_and_a_seed_is_not_filled_in(
    store: TaskStore, tmp_path: Path
) -> None:
    script = 'def run(given):\n    return "<who>"\n'
    (tmp_path / "score.py").write_text(script)
    (tmp_path / "task.yaml").write_text(
        "id: a\n"
        "seed: {who: you}\n"
        "steps:\n"
        "  - {id: say, type: command, command: echo <who>}\n"
        "  - id: score\n"
        "    type: python\n"
        "    file: score.py\n"
        "    compensate: {type: python, file: score.py}\n"
    )
    file = load([tmp_path / "task.yaml"], seed={"who": "me"}).checked()[0]
    store_tasks(store, load([tmp_path / "task.yaml"]))
    (tmp_path / "score.py").unlink()

    (loaded,) = load(["store:a@1"], seed={"who": "me"}, store=store).checked()

    assert loaded.source == "store:a@1"
    assert loaded.task.version == 1
    assert loaded.task.steps == file.task.steps, "just as if the file had been loaded"
    say, score = (step.body for step in loaded.task.steps)
    assert say["command"] == "echo me"
    assert (score["code"], score["file_name"]) == (script, "score.py")
    assert score["compensate"]["code"] == script
    assert store.get("a").document["seed"] == {"who": "you"}
    assert store.get("a").document["steps"][0]["command"] == "echo <who>"


def test_a_script_that_depends_on_the_seed_cannot_be_stored(
    store: TaskStore, tmp_path: Path
) -> None:
    (tmp_path / "en.py").write_text("def run(given): pass\n")
    (tmp_path / "task.yaml").write_text(
        "id: a\nseed: {lang: en}\nsteps:\n  - {id: s, type: python, file: <lang>.py}\n"
    )

    with pytest.raises(InvalidDocuments, match=r"task.yaml:4: step 's': file: '<lang>.py' depends"):
        store_tasks(store, load([tmp_path / "task.yaml"]))

    assert store.query() == []


async def test_a_task_that_is_a_whole_directory_cannot_be_stored(
    store: TaskStore, tmp_path: Path
) -> None:
    directory = Project(tmp_path / "project").task("crm/benign/1")

    with pytest.raises(InvalidDocuments, match=r"whole directory.*run it from there"):
        await StoredTasks(store).put(directory)

    assert store.query() == []


def test_a_file_with_a_secret_is_found_from_wherever_the_stored_task_runs(
    store: TaskStore, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "task.yaml").write_text(
        "id: a\n"
        "steps:\n"
        "  - {id: s, type: command, command: 'true',"
        " env: {KEY: {from_file: key.txt}, OTHER: {from_env: OTHER}, TOP: {from_file: /key}}}\n"
    )

    (stored,) = store_tasks(store, load([folder / "task.yaml"]))

    assert stored.document["steps"][0]["env"] == {
        "KEY": {"from_file": str(folder / "key.txt")},
        "OTHER": {"from_env": "OTHER"},
        "TOP": {"from_file": "/key"},
    }


def test_every_problem_with_names_of_stored_tasks_is_told_at_once(store: TaskStore) -> None:
    store.put(document("a"), document("a"), {"id": "old", "steps": [{"id": "s", "type": "gone"}]})

    found = load(
        ["store:a@9", "store:b", "store:a/b", "store:old", "store:a", "store:a@2"], store=store
    )

    assert [str(problem).partition(";")[0] for problem in found.problems] == [
        "store:a@9: the stored task 'a' has no version 9",
        "store:b: the store has no task 'b'",
        "store:a/b: the id of a stored task: 'a/b' is not an id: ids are made of ASCII letters, "
        "digits, . _ -",
        "store:old@1: step 's': type: there is no step type 'gone'",
    ]
    assert [task.source for task in found.tasks] == ["store:a@2"]
    assert [str(warning) for warning in found.warnings] == [
        "store:a@2: is named twice; it is taken once"
    ]


def test_the_store_of_the_settings_is_used_where_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STATE_DIR", str(tmp_path))
    TaskStore(Settings.from_env().state.tasks).put(document())

    assert [task.source for task in load(["store:a"]).checked()] == ["store:a@1"]


def test_a_suite_of_a_stored_task_is_called_after_the_task() -> None:
    assert stem_of("store:a.b@3") == "a.b"
    assert stem_of(Path("store:a")) == "a"


def test_a_file_by_the_name_of_a_stored_task_is_named_by_its_whole_path(
    store: TaskStore, tmp_path: Path
) -> None:
    (tmp_path / "store:a.json").write_text(json.dumps(document("from-file")))

    (loaded,) = load([tmp_path / "store:a.json"], store=store).checked()

    assert loaded.task.id == "from-file"
