"""What steps leave in files: output, artifacts, created paths, hostile ones too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from activities.leftovers import Artifacts, created, merge_output, read_output
from perdure.core.context import new_context
from perdure.messages import Artifact
from perdure.steps import Context, StepFailed
from tests.activities.steps_kit import Kit


def fresh() -> Context:
    context = Context(**new_context(metadata={"seed": {}, "nest": {"a": 1, "l": [1]}}))
    context.prompt_responses = ["first"]
    return context


async def test_output_goes_into_the_context_and_usage_apart(kit: Kit) -> None:
    output = {
        "prompt_responses": ["second"],
        "agent_harness": "h",
        "score": 5,
        "metadata": {"nest": {"b": 2, "l": [2]}, "new": {}},
        "usage": {"cost": 0.25, "tokens": 10},
    }
    host = kit.host({"id": "s", "type": "command"})
    await host.run_process(
        ["/bin/sh", "-c", 'printf %s "$0" > "$PERDURE_OUTPUT"', json.dumps(output)]
    )
    context = fresh()
    old = context.metadata, context.prompt_responses
    assert host.collect_output(context) == {"cost": 0.25, "tokens": 10.0}
    assert context.prompt_responses == ["first", "second"]
    assert context.agent_harness == "h"
    assert context.metadata == {
        "seed": {}, "nest": {"a": 1, "l": [2], "b": 2}, "new": {}, "score": 5,
    }  # fmt: skip
    assert old == ({"seed": {}, "nest": {"a": 1, "l": [1]}}, ["first"])
    assert kit.host({"id": "other", "type": "command"}).collect_output(context) == {}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"results": {}}, "'results' is reserved"),
        ({"instance_id": "x"}, "'instance_id' is reserved"),
        ({"seed": {}}, "'seed' is reserved"),
        ({"metadata": {"failed_steps": []}}, "'metadata.failed_steps' is reserved"),
        ({"metadata": {"ok": 1, "retry_resets": []}}, "'metadata.retry_resets' is reserved"),
        ({"metadata": []}, "'metadata' is a list"),
        ({"score": 1, "metadata": {"score": 2}}, "stands twice"),
        ({"prompt_responses": "x"}, "'prompt_responses' is a text, not a list"),
        ({"agent_model": 5}, "'agent_model' is a number, not a text"),
        ({"usage": 5}, "'usage' is a number"),
        ({"usage": {"cost": "5"}}, "'usage.cost' is a text"),
        ({"usage": {"cost": True}}, "'usage.cost' is true"),
        ({"usage": {"cost": -3}}, "'usage.cost' is -3"),
        ({"usage": {"cost": 10**400}}, "'usage.cost'"),
    ],
)
def test_output_that_may_not_be_changes_nothing(output: dict[str, Any], words: str) -> None:
    context = fresh()
    with pytest.raises(StepFailed, match="PERDURE_OUTPUT") as caught:
        merge_output(output | {"deployed_envs": [1], "zeta": 1}, context)
    assert caught.value.type == "BadOutput"
    assert words in str(caught.value)
    assert context == fresh()


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"5", b"\xff\xfe", b'{"a": NaN}', b'{"a": "\\ud800"}', b"[" * 5000, b'{"a": 1} x',
     b'{"a": ' + b"9" * 6000 + b"}"],
)  # fmt: skip
def test_output_that_is_no_json_object_fails_with_the_reason(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "o").write_bytes(content)
    with pytest.raises(StepFailed, match=r"^PERDURE_OUTPUT: ") as caught:
        read_output(tmp_path / "o")
    assert caught.value.type == "BadOutput"


def test_links_pipes_and_directories_in_the_place_of_the_output_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "link").symlink_to("real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(StepFailed, match=r"^PERDURE_OUTPUT: "):
            read_output(tmp_path / name)
    assert read_output(tmp_path / "missing") is None
    (tmp_path / "empty").touch()
    assert read_output(tmp_path / "empty") is None


async def test_artifacts_are_listed_by_path(kit: Kit) -> None:
    host = kit.host({"id": "s", "type": "command"})
    script = 'cd "$PERDURE_ARTIFACTS" && mkdir -p a/b && echo 12 > a/b/x && echo 1 > z && : > "é e"'
    await host.run_process(["/bin/sh", "-c", script])
    assert host.collect_artifacts() == [
        Artifact("a/b/x", 3), Artifact("z", 2), Artifact("é e", 0),
    ]  # fmt: skip


def test_c51_links_and_special_files_are_listed_not_kept_nor_followed(tmp_path: Path) -> None:
    outside, directory = tmp_path / "outside", tmp_path / "artifacts"
    outside.mkdir()
    (outside / "secret").write_text("x" * 100)
    directory.mkdir()
    (directory / "file").symlink_to(outside / "secret")
    (directory / "folder").symlink_to(outside)
    (directory / "loop").symlink_to(".")
    os.mkfifo(directory / "pipe")
    (Path(os.fsdecode(os.fsencode(directory) + b"/bad\xff"))).write_text("1234")
    assert Artifacts().of(directory) == [
        Artifact("bad�", 4, kept=False),
        Artifact("file", 0, kept=False),
        Artifact("folder", 0, kept=False),
        Artifact("loop", 0, kept=False),
        Artifact("pipe", 0, kept=False),
    ]
    (tmp_path / "swapped").symlink_to(outside)
    assert Artifacts().of(tmp_path / "swapped") == []
    assert Artifacts().of(tmp_path / "missing") == []


def test_artifacts_have_limits_each_and_in_all(tmp_path: Path) -> None:
    for name, size in (("a", 60), ("b", 101), ("c", 60), ("d", 40)):
        (tmp_path / name).write_bytes(b"x" * size)
    listed = Artifacts(100, 110).of(tmp_path)
    assert [(a.path, a.size_bytes, a.kept) for a in listed] == [
        ("a", 60, True), ("b", 101, False), ("c", 60, False), ("d", 40, True),
    ]  # fmt: skip
    assert len(Artifacts(limit_count=2).of(tmp_path)) == 2


async def test_created_paths_are_those_that_exist(kit: Kit) -> None:
    document = {"id": "s", "type": "command", "creates": ["out/r.json", "none", "dir", "link"]}
    host = kit.host(document)
    script = "mkdir -p out dir && echo > out/r.json && ln -s /nowhere link"
    await host.run_process(["/bin/sh", "-c", script])
    assert host.collect_creates() == ["out/r.json", "dir", "link"]


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "up/x", "up/..", "a/../../x", "a\0b", ".."]
)
def test_c51_created_paths_do_not_lead_out_of_the_working_directory(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "x").touch()
    (tmp_path / "work" / "up").symlink_to(tmp_path)
    with pytest.raises(StepFailed) as caught:
        created(tmp_path / "work", name)
    assert (caught.value.type, caught.value.retryable) == ("BadPath", False)
