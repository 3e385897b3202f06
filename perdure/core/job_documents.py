"""Background jobs in documents: what a `background` step launches, which job an `await` means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from perdure.core.graph import Graph
from perdure.core.job_checks import check_spec, is_exec_id
from perdure.core.problems import Place, listed, nearest, shown
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.job_messages import JobSpec

AWAIT_KILL_SECONDS = 5.0
"""How long after its interrupt a job is killed that somebody waits for, unless they say."""

ENDED = ("done", "failed", "interrupted", "killed", "lost")
"""How a job can have ended."""

ACCEPTED = ("done", "interrupted")
"""The ends of a job with which an `await` succeeds, unless its document says."""

_WRITTEN_AS = {"time_limit_seconds": "time_limit", "kill_after_seconds": "kill_after"}
"""The key of a document by the field of a job, where they differ."""

_LAUNCH_THEMSELVES = ("command", "python")
"""Types whose processes may launch jobs too, by PERDURE_JOBS; nobody knows their names before."""

_PLACEHOLDER = re.compile("<[^<>]+>")
"""A seed that this task was not given."""


def spec_of(document: Mapping[str, Any]) -> JobSpec:
    """The job that a step of type `background` launches; trusts the step's document."""
    command = document.get("command")
    return JobSpec(
        code=document.get("code"),
        argv=["/bin/sh", "-c", command] if isinstance(command, str) else command,
        entrypoint=document.get("entrypoint"),
        args=document.get("args"),
        cwd=document.get("cwd"),
        env=document.get("env", {}),
        stdin=document.get("stdin"),
        ok_exit_codes=document.get("ok_exit_codes", [0]),
        environment=document.get("environment"),
        service=document.get("service"),
        user=document.get("user"),
        workdir=document.get("workdir"),
        name=document.get("name"),
        restartable=document.get("restartable", False),
        max_worker_losses=document.get("max_worker_losses", 3),
        time_limit_seconds=document.get("time_limit"),
        kill_after_seconds=document.get("kill_after", 5.0),
    )


def check_background(document: Mapping[str, Any], at: Place) -> None:
    """Report what a job cannot be; each key's value by itself has been found good."""
    given = {key for key, value in document.items() if value is not None}
    if "command" in given and (of_cells := sorted(given & {"args", "entrypoint"})):
        (at / of_cells[0]).refuse("belongs to a python cell", "leave it out, or give code or file")
        return
    if "code" in given and "ok_exit_codes" in given:
        (at / "ok_exit_codes").refuse(
            "a cell is done when it comes to its end", "leave it out, or give command"
        )
    if "environment" in given and "service" not in given:
        at.refuse("a job in an environment runs in one of its services", "add service: ...")
    if "environment" in given and "cwd" in given:
        (at / "cwd").refuse("is a directory of this host", "write workdir for one inside")
    if "file" in given:
        return  # its text is checked once it is embedded
    of_spec: Place = Place([])
    check_spec(vars(spec_of(document)), of_spec)
    for problem in of_spec.problems:
        field, *inner = problem.path or ("",)
        if field == "argv":
            # Of a line for the shell, the words are ours.
            inner = inner if isinstance(document.get("command"), list) else []
            field = "command"
        path = (_WRITTEN_AS.get(str(field), field), *inner) if field else ()
        Place(at.problems, (*at.path, *path)).refuse(problem.message, problem.remedy)


def check_awaited(steps: Sequence[dict[str, Any] | None], at: Place) -> None:
    """Report each `await` of a job that no step has launched by then.

    `steps` are those of a task whose order is right, in this order.
    """
    launches = _Launches(steps)
    for position, step in enumerate(steps):
        if step is None:
            continue
        if step.get("type") == "await" and isinstance(name := step.get("job"), str):
            launches.check(name, position, at / position / "job")
        launches.add(step, position)


class _Launches:
    """The jobs that a task's steps launch, up to one of them."""

    def __init__(self, steps: Sequence[dict[str, Any] | None]) -> None:
        self._steps = steps
        self._names: dict[str, list[int]] = {}
        """The positions of the steps that launch a job of this name."""
        self._ids: dict[str, str | None] = {}
        """By the id of a step that launches a job, the name of that."""
        self._others = False
        """Whether there was a step that may launch jobs whose names its document does not tell."""

    def add(self, step: Mapping[str, Any], position: int) -> None:
        """Go past a step."""
        type, name = step.get("type"), step.get("name")
        if type == "background":
            self._ids[str(step.get("id"))] = name
            if isinstance(name, str):
                self._names.setdefault(name, []).append(position)
        elif isinstance(type, str):
            self._others |= type in _LAUNCH_THEMSELVES or type not in BUILT_IN_TYPES

    def check(self, name: str, position: int, at: Place) -> None:
        """Report a job that is not there when the step at `position` starts."""
        if is_exec_id(name) or _PLACEHOLDER.search(name):
            return
        if launching := self._names.get(name):
            self._check_order(name, launching, position, at)
        elif name in self._ids:
            known = self._ids[name]
            at.refuse(
                f"{shown(name)} is a step, and not the name of a job",
                f"write {known}" if known else f"give that step name: {name}",
            )
        elif near := nearest(name, self._names):
            at.refuse(f"no earlier step launches a job {shown(name)}", f"did you mean {near!r}?")
        elif (later := self._later(name, position)) is not None:
            at.refuse(
                f"{shown(name)} is launched by {shown(later)}, which comes after this step",
                "change the order: a job is launched before it is awaited",
            )
        elif not self._others:
            at.refuse(
                f"no earlier step launches a job {shown(name)} "
                f"(launched before: {listed(map(shown, self._names)) or 'none'})",
                f"add a step of type background with name: {name}",
            )

    def _check_order(self, name: str, launching: list[int], position: int, at: Place) -> None:
        id = self._graph.ids[position]
        if not any(self._graph.needs(id, self._graph.ids[other]) for other in launching):
            other = self._graph.ids[launching[-1]]
            at.refuse(
                f"step {shown(id)} does not depend on {shown(other)}, which launches {shown(name)}",
                f"add {other} to its depends_on",
            )

    def _later(self, name: str, position: int) -> str | None:
        for step in self._steps[position:]:
            if step and step.get("type") == "background" and step.get("name") == name:
                return str(step.get("id"))
        return None

    @cached_property
    def _graph(self) -> Graph:
        # A step that has no id, or is no step at all, has been reported; nobody depends on it.
        ids = [str((step or {}).get("id", f"<{n}>")) for n, step in enumerate(self._steps)]
        index = {id: position for position, id in enumerate(ids)}
        wanted = [(step or {}).get("depends_on") for step in self._steps]
        return Graph(
            ids,
            [
                tuple(index[entry["task_step_id"]] for entry in names)
                if isinstance(names, list)
                else None
                for names in wanted
            ],
        )
