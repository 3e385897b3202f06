"""The examples are what they say they are: valid tasks, the same each time they are made."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shlex
import subprocess
import sys
import textwrap
from collections import Counter
from math import comb
from operator import mul
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from perdure.cli.times import span
from perdure.core.task import parse_task
from perdure.environment_files import read_environments
from tests.cli.support import CommandLine, finish

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MAKE_TASKS = EXAMPLES / "humaneval" / "make_tasks.py"


def make_tasks(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(MAKE_TASKS), *arguments], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("make_tasks", MAKE_TASKS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks for itself there
    spec.loader.exec_module(module)
    return module


def run_like_a_step(document: dict[str, Any], folder: Path, *, limit_seconds: float) -> str:
    """Do what the steps `write` and `test` of a document say, without perdure.

    Answers `passed`, `failed` or `timeout`.
    """
    write, test, _ = document["steps"]
    subprocess.run(
        ["/bin/sh", "-c", write["command"]], input=write["stdin"].encode(), cwd=folder, check=True
    )
    try:
        done = subprocess.run(
            test["command"],
            input=test["stdin"].encode(),
            cwd=folder,
            capture_output=True,
            timeout=limit_seconds,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    return "passed" if done.returncode == 0 and b"all tests passed" in done.stdout else "failed"


def test_humaneval_becomes_164_valid_tasks_with_ids_of_their_own(tmp_path: Path) -> None:
    made = make_tasks("--out", str(tmp_path))

    assert made.returncode == 0, made.stderr
    paths = list(tmp_path.iterdir())
    tasks = [parse_task(yaml.safe_load(path.read_text("utf-8"))) for path in paths]
    assert len({task.id for task in tasks}) == 164
    assert {task.id for task in tasks} == {path.stem for path in paths}
    assert {tuple(step.id for step in task.steps) for task in tasks} == {
        ("write", "test", "verify")
    }


def test_the_same_tasks_are_made_twice_byte_for_byte(tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        make_tasks("--out", str(folder))
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})

    assert made[0]
    assert made[0] == made[1]


def test_every_solution_goes_through_its_document_unchanged(maker: ModuleType) -> None:
    for problem in maker.read_problems():
        document = maker.task_document(problem)
        assert document["steps"][0]["stdin"] == problem["prompt"] + problem["canonical_solution"]
        assert yaml.safe_load(maker.to_yaml(document)) == document


def test_a_reference_solution_passes_and_each_kind_of_broken_one_does_not(
    maker: ModuleType, tmp_path: Path
) -> None:
    problem = maker.read_problems()[0]
    outcomes = []
    for number, broken_by in enumerate([None, *maker.WRONG_SOLUTIONS]):
        folder = tmp_path / str(number)
        folder.mkdir()
        document = maker.task_document(problem, broken_by=broken_by)
        # The endless one is the second of the broken ones; the others get time on a busy machine.
        limit_seconds = 2.0 if number == 2 else 60.0
        outcomes.append(run_like_a_step(document, folder, limit_seconds=limit_seconds))

    assert outcomes == ["passed", "failed", "timeout", "failed"]


def test_as_many_tasks_are_broken_as_asked_for(tmp_path: Path) -> None:
    make_tasks("--out", str(tmp_path / "right"))
    make_tasks("--out", str(tmp_path / "broken"), "--break", "5")

    changed = Counter(
        path.read_bytes() != (tmp_path / "broken" / path.name).read_bytes()
        for path in (tmp_path / "right").iterdir()
    )
    assert changed == {True: 5, False: 159}


def standard_deviation(probability: float, trials: int, k: int) -> float:
    """Of one task's estimate of pass@k, when each of its trials is right with a probability."""
    chance = [
        comb(trials, right) * probability**right * (1 - probability) ** (trials - right)
        for right in range(trials + 1)
    ]
    estimates = [1 - comb(trials - right, k) / comb(trials, k) for right in range(trials + 1)]
    mean = sum(map(mul, chance, estimates))
    return math.sqrt(sum(c * (e - mean) ** 2 for c, e in zip(chance, estimates, strict=True)))


def within_bounds(pass_at_k: dict[str, float], probability: float, tasks: int) -> bool:
    """Whether estimates for k = 1, 2, ... lie within 4 standard deviations of what they estimate.

    Those of independent trials do so in 9,999 of 10,000 suites.
    """
    return all(
        abs(estimate - (1 - (1 - probability) ** int(k)))
        <= 4 * standard_deviation(probability, len(pass_at_k), int(k)) / math.sqrt(tasks)
        for k, estimate in pass_at_k.items()
    )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("probability", [0.05, 0.6])
def test_the_draws_for_164_problems_give_pass_at_k_within_the_binomial_bounds(
    maker: ModuleType, probability: float, seed: int
) -> None:
    draws = maker.Draws(probability, seed)
    right = [
        sum(draws.is_right(problem["task_id"], trial) for trial in (1, 2, 3))
        for problem in maker.read_problems()
    ]

    pass_at_k = {
        str(k): sum(1 - comb(3 - n, k) / comb(3, k) for n in right) / len(right) for k in (1, 2, 3)
    }
    assert within_bounds(pass_at_k, probability, 164), pass_at_k
    assert not within_bounds(pass_at_k, probability + 0.2, 164), "the bounds are narrow enough"


def test_a_probability_of_none_or_all_leaves_nothing_to_chance(maker: ModuleType) -> None:
    for probability, right in ((0.0, False), (1.0, True)):
        draws = maker.Draws(probability)
        assert {draws.is_right(f"HumanEval/{n}", 1) for n in range(164)} == {right}


def test_trials_of_a_solver_by_chance_end_as_drawn_and_pass_at_k_lies_within_the_bounds(
    maker: ModuleType, tmp_path: Path
) -> None:
    make_tasks("--out", str(tmp_path / "tasks"), "--probability", "0.6")
    problems = [problem["task_id"] for problem in maker.read_problems()][:8]
    paths = [tmp_path / "tasks" / f"{problem.replace('/', '-')}.yaml" for problem in problems]

    ran = CommandLine(tmp_path / "state", tmp_path, within=True)(
        "run", *paths, "--suite", "draws", "--repeats", "3", "--json"
    )

    assert ran.returncode == 1, ran.stderr
    outcome = json.loads(ran.stdout)
    ended = {
        (task["id"], trial["trial"]): trial["status"]
        for task in outcome["tasks"]
        for trial in task["trials"]
    }
    draws = maker.Draws(0.6)
    assert ended == {
        (problem.replace("/", "-"), trial): (
            "succeeded" if draws.is_right(problem, trial) else "failed"
        )
        for problem in problems
        for trial in (1, 2, 3)
    }
    assert set(outcome["pass_at_k"]) == {"1", "2", "3"}
    assert within_bounds(outcome["pass_at_k"], 0.6, 8), outcome["pass_at_k"]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--break", "-1"], ["--break", "165"], ["--break", "many"]),
        *(["--probability", "1.1"], ["--probability", "nan"], ["--probability", "likely"]),
        *(["--probability", "0.5", "--break", "1"], ["--seed", "2"]),
    ],
)
def test_a_senseless_wish_is_refused_in_words(tmp_path: Path, arguments: list[str]) -> None:
    made = make_tasks("--out", str(tmp_path / "tasks"), *arguments)

    assert made.returncode == 2
    assert arguments[0] in made.stderr
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "tasks").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    made = make_tasks("--out", str(tmp_path / "file" / "tasks"))

    assert made.returncode == 1
    assert str(tmp_path / "file") in made.stderr
    assert "Traceback" not in made.stderr


@pytest.mark.parametrize(
    "path",
    sorted(set(EXAMPLES.rglob("*.yaml")) - set(EXAMPLES.rglob("env.yaml"))),
    ids=lambda path: str(path.relative_to(EXAMPLES)),
)
def test_every_document_among_the_examples_is_a_valid_task(path: Path) -> None:
    task = parse_task(yaml.safe_load(path.read_text()))

    assert task.id == (path.parent.name if path.stem == "task" else path.stem)


def test_the_page_on_failures_names_each_of_its_tasks() -> None:
    page = (EXAMPLES / "failures" / "README.md").read_text()
    tasks = {path.stem for path in (EXAMPLES / "failures").glob("*.yaml")}

    assert {task for task in tasks if f"`{task}`" not in page} == set()


def shown_tasks() -> dict[str, str]:
    """The whole tasks that the documentation writes, by page and line.

    They stand between fences or in here-documents.
    """
    root = EXAMPLES.parent
    fenced = re.compile(r"^(?:```yaml|cat > .*<<'END')\n(.*?)^(?:```|END)$", re.M | re.S)
    return {
        f"{page.relative_to(root)}:{text.count(chr(10), 0, block.start()) + 1}": block[1]
        for page in [root / "README.md", *sorted(root.glob("docs/*.md"))]
        for text in [page.read_text()]
        for block in fenced.finditer(text)
        if "\nsteps:\n" in block[1]
    }


SHOWN_TASKS = shown_tasks()


def test_every_env_yaml_among_the_examples_describes_what_its_tasks_name() -> None:
    for file in sorted(EXAMPLES.rglob("env.yaml")):
        checked = read_environments(file)
        assert (checked.problems, checked.warnings) == ([], [])
        tasks = [
            parse_task(yaml.safe_load(path.read_text()))
            for path in (file.parent / "tasks").glob("*.yaml")
        ]
        assert tasks, f"{file} has no tasks beside it"
        named = {name for task in tasks for name in task.environments}
        assert named == checked.value.environments.keys(), file


@pytest.mark.parametrize("page", ["environments", "rollback"])
def test_a_page_shows_what_its_example_says(page: str) -> None:
    text = (EXAMPLES.parent / "docs" / f"{page}.md").read_text()
    blocks = re.findall(r"^```yaml\n# (examples/\S+)\n(.*?)^```", text, re.M | re.S)

    assert blocks
    for name, shown in blocks:
        assert shown.strip() in (EXAMPLES.parent / name).read_text(), name


PAGES_ON_ROLLBACK = [EXAMPLES / "rollback" / "README.md", EXAMPLES.parent / "docs" / "rollback.md"]


def shown_commands(*pages: Path) -> list[str]:
    """The arguments of every `perdure` that the pages call, each once."""
    blocks = (re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S) for page in pages)
    lines = (line for found in blocks for block in found for line in block.splitlines())
    return list(dict.fromkeys(line.removeprefix("perdure ") for line in lines))


def shown_after(page: Path, command: str) -> str:
    """What a page says that a command prints."""
    found = re.search(
        rf"^perdure {re.escape(command)}\n```\n+```\n(.*?)^```", page.read_text(), re.M | re.S
    )
    assert found, f"{page.name} shows nothing after {command!r}"
    return found[1]


def without_times(text: str) -> list[str]:
    """The lines of an output, without what differs from run to run."""
    varying = r"\d+(\.\d+)? s\b|\d{4}-\d\d-\d\d|\b(\d+:)?\d+:\d\d\b|[0-9a-f]{8}\b[0-9a-f-]*"
    varying += r"|(?<=DESK_PORT=)\d+|(?<= on )[\w.-]+|^files .*"
    return [" ".join(re.sub(varying, "*", line).split()) for line in text.splitlines()]


def one_story(record: dict[str, Any], events: list[dict[str, Any]], shown: str) -> None:
    """The record, the events and `perdure show` agree on what the only rollback of a run did."""
    (rollback,) = record["rollbacks"]
    undos = [(undo["step_id"], undo["attempt"]) for undo in rollback["compensations"]]
    by_type: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_type.setdefault(event["type"], []).append(event)

    (started,), (completed,) = by_type["rollback.started"], by_type["rollback.completed"]
    assert started["cause"] == rollback["failed"]
    assert started["steps"] == completed["steps"] == rollback["span"]
    assert completed["epoch"] == rollback["epoch"] == record["attempt_epoch"] == 1
    for end in ("started", "completed"):
        ends = by_type[f"compensation.{end}"]
        assert [(event["step"], event["attempt"]) for event in ends] == undos
        times = [undo["started_at" if end == "started" else "ended_at"]
                 for undo in rollback["compensations"]]  # fmt: skip
        assert [event["at"] for event in ends] == times
    (reset,) = by_type["environments.reset"]
    assert reset["environments"] == rollback["environments"]
    again = [(e["step"], e["attempt"]) for e in by_type["step.started"] if e["attempt"] == 2]
    assert again == [(step_id, 2) for step_id in rollback["span"]]

    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert f"taken back {', '.join(rollback['span'])}" in lines
    assert [line.partition(", by")[0] for line in lines if line.startswith("undone ")] == [
        f"undone {step_id}, attempt {attempt}" for step_id, attempt in undos
    ]
    assert f"reset {', '.join(rollback['environments'])}" in lines
    took = rollback["ended_at"] - rollback["started_at"]
    assert f"again from order after {span(took)}, as epoch 1" in lines


def test_the_pages_on_rollback_show_what_their_commands_print(tmp_path: Path) -> None:
    perdure = CommandLine(tmp_path / "state", EXAMPLES.parent, within=True)
    told = {}
    with perdure.served():
        for command in shown_commands(*PAGES_ON_ROLLBACK):
            ran = perdure(*shlex.split(command))
            assert ran.returncode == 0, f"{command}: {ran.stderr}"
            told[command] = ran
        record = json.loads(perdure("show", "desk/kettle", "--json").stdout)
        listed = perdure("events", "desk/kettle", "--json").stdout.splitlines()

    page, rules = PAGES_ON_ROLLBACK
    for shown_on, command in (
        (page, "show desk/kettle"),
        *((rules, command) for command in told if command.startswith(("validate", "events"))),
    ):
        shown = shown_after(shown_on, command)
        assert without_times(shown) == without_times(told[command].stdout), command
    run = next(command for command in told if command.startswith("run"))
    # What is told before depends on how fast the environment and the task were.
    ended = without_times(told[run].stderr + told[run].stdout)[-2:]
    assert without_times(shown_after(page, run))[-2:] == ended
    one_story(record, [json.loads(line) for line in listed], told["show desk/kettle"].stdout)
    log = re.search(r"^```json\n(.*?)^```", page.read_text(), re.M | re.S)
    assert log
    assert record["context"]["results"]["log"]["json"]["log"] == json.loads(log[1])


def test_the_step_type_on_the_page_says_how_it_is_undone(tmp_path: Path) -> None:
    block = re.search(r"^   ```python\n(.*?)^   ```", PAGES_ON_ROLLBACK[1].read_text(), re.M | re.S)
    assert block
    (tmp_path / "reserving.py").write_text(textwrap.dedent(block[1]))
    perdure = CommandLine(tmp_path / "state", tmp_path, within=True)
    perdure.write(
        "task.yaml",
        "steps:\n"
        "  - {id: take, type: reserve, item: kettle}\n"
        "  - id: fail\n"
        "    type: command\n"
        "    command: 'test -e once && test -e kettle.reserved && exit; touch once; exit 1'\n"
        "    retry_config: {retry_from_step_id: take}\n",
    )

    where = f"{tmp_path}:{EXAMPLES.parent}"
    status, _, told = finish(
        perdure.start("run", "task.yaml", "--steps", "reserving", PYTHONPATH=where)
    )

    assert status == 0, told


@pytest.mark.parametrize("place", SHOWN_TASKS)
def test_every_task_that_the_documentation_shows_is_valid(place: str) -> None:
    assert parse_task(yaml.safe_load(SHOWN_TASKS[place])).steps


def test_the_readme_and_the_first_page_of_the_documentation_show_a_task() -> None:
    pages = {place.partition(":")[0] for place in SHOWN_TASKS}

    assert {"README.md", "docs/getting-started.md"} <= pages


def test_the_nightly_suite_stops_at_its_first_failure_as_the_documents_say(
    tmp_path: Path,
) -> None:
    perdure = CommandLine(tmp_path / "state", EXAMPLES.parent, within=True)
    call = ("run", "examples/nightly", "--suite", "nightly", "--limit", "model=12")

    ran = perdure(*call, "--max-failures", "1", "--max-parallel", "6")

    assert ran.returncode == 1, ran.stderr
    assert "stopped: 1 failure (max_failures: 1); run the rest with: perdure retry nightly" in (
        ran.stdout
    )
    assert re.search(r"^t3/2 +failed +task +ask +exit code 1$", ran.stdout, re.M)
