"""Finding the DTap tasks that have been judged already (P55).

A task's judgement is `judge_result.json` below the results' root, in
`benchmark` or `direct_prompt`, then the agent, the model, and the task's path in the dataset.

The root is `EVAL_RESULTS_ROOT`; without it `results` here, and in the project's folder, where the
tasks run. The agent is `--agent-artifact-id`, else the task command's own `--agent-type`; the
model is `--agent-model`, else its `--model`. Where neither is named, judgements of one agent and
one model count, and those of several are a problem: the tasks of the one are not done for the
other. A task command with `--direct-prompt` means `direct_prompt`, one that names an agent or a
model without it `benchmark`; of any other, both are looked at.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from perdure.core.problems import listed, shown
from perdure.document_problems import DocumentProblem
from perdure.lists import ListOptions, SkippedTask
from perdure.loaded_tasks import LoadedTask

RESULTS_VARIABLE = "EVAL_RESULTS_ROOT"

_JUDGEMENT = "judge_result.json"
_BENCHMARK, _DIRECT = "benchmark", "direct_prompt"
_AGENT_FLAG, _MODEL_FLAG, _DIRECT_FLAG = "--agent-type", "--model", "--direct-prompt"


@dataclass(frozen=True)
class _Looked:
    """Whose judgements are looked for."""

    kinds: tuple[str, ...]
    agent: str | None
    model: str | None


def results_root(environ: Mapping[str, str]) -> str | None:
    """`EVAL_RESULTS_ROOT`, absolute; None: it is not set."""
    value = environ.get(RESULTS_VARIABLE)
    return os.path.abspath(value) if value else None


def without_judged(
    tasks: Sequence[LoadedTask],
    lists: ListOptions,
    commands: Mapping[Path, str],
    environ: Mapping[str, str],
) -> tuple[list[LoadedTask], list[SkippedTask], list[DocumentProblem]]:
    """The tasks that are to be run, those that are left out, and what is wrong with the options.

    `commands` are the projects' task commands by their folder.
    """
    kept: list[LoadedTask] = []
    skipped: list[SkippedTask] = []
    whose: set[str] = set()
    places: dict[Path, list[tuple[str, Path]]] = {}
    """By project: where judgements of its tasks may be, and whose."""
    for loaded in tasks:
        found: list[tuple[str, str]] = []
        if loaded.dtap and (below := loaded.dtap.dataset_path):
            root = loaded.dtap.root
            if root not in places:
                looked = _looked_for(lists, commands.get(root, ""))
                places[root] = list(_places(root, looked, environ))
            found = list(_judgements(places[root], str(below)))
        if not found:
            kept.append(loaded)
            continue
        skipped.append(SkippedTask(loaded.task.id, loaded.source, found[0][1]))
        whose.update(name for name, _ in found)
    if len(whose) > 1:
        problem = DocumentProblem(
            "--skip-existing",
            *(None, None, None),
            f"there are judged tasks of several agents and models: {listed(sorted(whose))}",
            "name yours by --agent-artifact-id and --agent-model",
        )
        return list(tasks), [], [problem]
    return kept, skipped, []


def _looked_for(lists: ListOptions, command: str) -> _Looked:
    flags = _flags(command)
    agent, model = flags.get(_AGENT_FLAG), flags.get(_MODEL_FLAG)
    if _DIRECT_FLAG in flags:
        kinds: tuple[str, ...] = (_DIRECT,)
    else:
        kinds = (_BENCHMARK, _DIRECT) if agent is None and model is None else (_BENCHMARK,)
    return _Looked(kinds, lists.agent_artifact_id or agent, lists.agent_model or model)


def _flags(command: str) -> dict[str, str]:
    """The options of a command that say which agent and model it tries."""
    try:
        words = shlex.split(command)
    except ValueError:
        return {}  # not a line that can be taken apart; the shell will say what it thinks of it
    found: dict[str, str] = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name == _DIRECT_FLAG or (name in (_AGENT_FLAG, _MODEL_FLAG) and "$" not in value):
            found[name] = value  # what the shell will put for a variable is not known here
    return found


def _places(
    project: Path, looked: _Looked, environ: Mapping[str, str]
) -> Iterator[tuple[str, Path]]:
    """Whose judgements there may be, as AGENT/MODEL, and the folders that would hold them."""
    for root in _roots(project, environ):
        for kind in looked.kinds:
            for agent in _folders(root / kind, looked.agent):
                for model in _folders(agent, looked.model):
                    yield f"{agent.name}/{model.name}", model


def _judgements(places: Sequence[tuple[str, Path]], below: str) -> Iterator[tuple[str, str]]:
    """Whose judgements of a task there are, and the files."""
    for whose, folder in places:
        for inner in (below, os.path.join("dataset", below)):
            file = os.path.join(folder, inner, _JUDGEMENT)
            if os.path.exists(file):
                yield whose, file


def _roots(project: Path, environ: Mapping[str, str]) -> list[Path]:
    if named := results_root(environ):
        return [Path(named)]
    return list(dict.fromkeys([Path.cwd() / "results", project / "results"]))


def _folders(parent: Path, name: str | None) -> list[Path]:
    """The folder of an agent or a model; of every one, if none is named."""
    if name is not None:
        return [parent / _as_folder(name)]
    try:
        return sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        return []


def _as_folder(name: str) -> str:
    """A name as the field writes it in paths: `openai/gpt:4` is `openai_gpt_4`."""
    folder = name.replace("/", "_").replace(":", "_")
    # In quotes it is the name of no folder.
    return shown(folder) if folder in ("", ".", "..") or "\0" in folder else folder
