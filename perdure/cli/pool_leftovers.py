"""What pools that nobody keeps have left on this machine: listed, and removed if agreed.

On its docker it is found by the labels that perdure puts on all that it makes; processes by their
marker. (These end by themselves, too, when no worker has come back to them for half an hour.)
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.cli.console import emit, emit_json, emit_table, is_terminal, printable, say
from perdure.cli.left_processes import LeftInstance, kill_instances, left_instances
from perdure.cli.reading import server_to_read
from perdure.cli.tables import table
from perdure.config import Settings
from perdure.docker_check import Docker, DockerMissing, engine_environment, find_docker
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from rich.table import Table

POOL_LABEL = "perdure.pool"
NAME_LABEL = "perdure.pool-name"
PROJECT_LABEL = "com.docker.compose.project"

LIST_SECONDS, REMOVE_SECONDS = 30.0, 300.0
AT_ONCE = 100
"""Things removed by one call."""

_KINDS = {
    "container": (("ps", "--all"), ("rm", "--force", "--volumes")),
    "network": (("network", "ls"), ("network", "rm")),
    "volume": (("volume", "ls"), ("volume", "rm", "--force")),
}
"""By what it is: how docker lists and how it removes it, in the order in which they can go."""

_ID_FIELDS = {"container": "ID", "network": "ID", "volume": "Name"}


@dataclass(frozen=True)
class Thing:
    """A container, a network or a volume."""

    kind: str
    id: str


@dataclass
class Leftover:
    """What is there of one compose project of one pool, or of one of its processes."""

    uuid: str
    """Of the pool."""
    pool: str
    project: str
    things: list[Thing] = field(default_factory=list)
    instance: LeftInstance | None = None
    """Of an environment that is a process."""

    def count(self, kind: str) -> int:
        """How many there are of a kind."""
        if kind == "process":
            return len(self.instance.processes) if self.instance else 0
        return sum(thing.kind == kind for thing in self.things)


async def sweep_foreign(*, agreed: bool, json: bool, of: Collection[str] = ()) -> int:
    """List what others left here and remove it, if that is agreed to; returns the exit status.

    `of`: only what is of these pools, by uuid; none: of all but our own. Raises PerdureError:
    docker refuses, or a process cannot be killed.
    """
    own = await _open_pools()
    docker = await asyncio.to_thread(_docker)
    found = await asyncio.to_thread(processes, own)
    if docker:
        found = [*await asyncio.to_thread(leftovers, docker, own), *found]
    found = [some for some in found if not of or some.uuid in of]
    if json:
        emit_json([_document(some) for some in found])
    elif not found:
        emit("no other pool has left anything on this machine")
    else:
        emit_table(_table(found))
    if not found or not (agreed or await asyncio.to_thread(_agrees, len(found), of)):
        return 0
    if docker:
        await asyncio.to_thread(remove, docker, found)
    if left := await asyncio.to_thread(kill_instances, filter(None, (s.instance for s in found))):
        raise PerdureError(f"processes {', '.join(map(str, left))} stay; end them by hand")
    say(f"removed: {len(found)} projects" if len(found) != 1 else "removed: 1 project")
    return 0


def _docker() -> Docker | None:
    """This machine's; None: there is none to ask, which is told."""
    try:
        return find_docker()
    except DockerMissing as error:
        say(f"note: only processes were looked for: {error}")
        return None


def processes(own: Collection[str]) -> list[Leftover]:
    """The instances that are processes of this machine, and of no pool of `own`, by uuid."""
    return [
        Leftover(some.uuid, "", some.project or f"instance {some.number}", instance=some)
        for some in left_instances()
        if some.uuid not in own
    ]


def leftovers(docker: Docker, own: Collection[str]) -> list[Leftover]:
    """What carries perdure's label and belongs to no pool of `own`, by uuid; sorted by project."""
    found: dict[tuple[str, str], Leftover] = {}
    for kind, (listing, _) in _KINDS.items():
        labels = [f'{{{{.Label "{label}"}}}}' for label in (POOL_LABEL, NAME_LABEL, PROJECT_LABEL)]
        form = "\t".join([f"{{{{.{_ID_FIELDS[kind]}}}}}", *labels])
        words = [*listing, "--filter", f"label={POOL_LABEL}", "--format", form]
        for line in _call(docker, words, LIST_SECONDS).splitlines():
            fields = line.split("\t")
            if len(fields) != 4 or not fields[0] or not fields[1] or fields[1] in own:
                continue
            id, uuid, pool, project = fields
            some = found.setdefault((uuid, project), Leftover(uuid, pool, project))
            some.things.append(Thing(kind, id))
    return sorted(found.values(), key=lambda some: (some.pool, some.uuid, some.project))


def remove(docker: Docker, found: Sequence[Leftover]) -> None:
    """Remove it all. Raises PerdureError for what docker refuses."""
    for kind, (_, removing) in _KINDS.items():
        ids = [thing.id for some in found for thing in some.things if thing.kind == kind]
        for start in range(0, len(ids), AT_ONCE):
            _call(docker, [*removing, *ids[start : start + AT_ONCE]], REMOVE_SECONDS)


async def _open_pools() -> set[str]:
    """The uuids of the pools that are open on this server: theirs is not foreign.

    Raises PerdureError if one of them does not say.
    """
    from perdure.names import POOL_WORKFLOW, pool_workflow_id

    query = f"WorkflowType = '{POOL_WORKFLOW}' AND ExecutionStatus = 'Running'"
    uuids: set[str] = set()
    async with server_to_read(Settings.from_env()) as perdure:
        if perdure is None:
            return uuids
        prefix = pool_workflow_id("")
        names = [run.id.removeprefix(prefix) async for run in perdure.client.list_workflows(query)]
        for name in names:
            if view := await perdure.pool(name).view():
                uuids.add(view["uuid"])
    return uuids


def _agrees(count: int, of: Collection[str]) -> bool:
    """Ask whether to remove so many; nobody to ask is no."""
    what = "it" if count == 1 else f"these {count}"
    if not is_terminal(sys.stdin):
        words = " ".join(["perdure pool sweep --foreign --yes", *(f"--of {uuid}" for uuid in of)])
        say(f"nothing was removed; to remove {what}: {printable(words)}")
        return False
    say(f"a pool of another server or user may still use {what}. Remove {what}? [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _call(docker: Docker, words: Sequence[str], timeout_seconds: float) -> str:
    try:
        done = subprocess.run(
            [*docker.docker, *words],
            env=engine_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
        )
    except subprocess.TimeoutExpired:
        raise PerdureError(
            f"`docker {words[0]}` does not end within {timeout_seconds:.0f} s; try again when the "
            "engine has less to do"
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise PerdureError(f"`docker {words[0]}` failed: {printable(said[-1], 300)}; try again")
    return done.stdout


def _table(found: Sequence[Leftover]) -> Table:
    counted = [*((kind, f"{kind.upper()}S") for kind in _KINDS), ("process", "PROCESSES")]
    made = table("POOL", "UUID", "PROJECT", *((name, "right") for _, name in counted))
    for some in found:
        made.add_row(
            *map(printable, (some.pool, some.uuid, some.project)),
            *(str(some.count(kind)) for kind, _ in counted),
        )
    return made


def _document(some: Leftover) -> dict[str, object]:
    counts = {f"{kind}s": some.count(kind) for kind in _KINDS}
    counts["processes"] = some.count("process")
    return {"pool": some.pool, "uuid": some.uuid, "project": some.project, **counts}
