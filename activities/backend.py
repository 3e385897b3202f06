"""How an environment's instances are brought up, looked after and taken down on a host.

There are two ways: docker compose (`activities.compose`) and processes (`activities.process`).
Both can be asked for anything again at any time: what was done is not done twice, and what is
not there is not missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from activities.secrets import MissingSecret, WorkerEnvironment, resolve
from perdure.core.pool_definitions import Definition
from perdure.core.problems import one_line
from perdure.core.secret_references import is_reference
from perdure.messages import StepInstance
from perdure.pool_messages import InstanceCall, InstanceResult

Heartbeat = Callable[[str], None]
"""Takes a few words about where the work is. Calling it is cheap, and never needed to stay alive:
whoever calls a backend beats by itself."""

LOG_LINES = 20
LOG_CHARACTERS = 300
REASON_CHARACTERS = 2_000


@dataclass(frozen=True)
class InnerCommand:
    """A command that is to run inside of an instance."""

    argv: Sequence[str]
    service: str | None = None
    """None: the only one; of no meaning where an instance is one process."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What it sees beside the variables that are there."""
    user: str | None = None
    workdir: str | None = None


class Backend(Protocol):
    """One way to run instances.

    `folder` is the instance's own directory on the host (`Backends.folder`). It is there, with
    mode 0700, whenever a backend is called, and is removed by the caller after a `stop` that went
    well; so what a backend notes there is there for whoever comes after the death of the worker.

    A failure is a result with a reason for people, secrets masked (`failed`), never an exception;
    only cancellation comes through, and leaves whatever `start` or `stop` will find again.
    """

    async def prepare(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Have all that a start needs, once per host and digest: pull or build, check the files.

        At most `prepare_timeout_seconds`. `folder` is not that of an instance, but may be used.
        """

    async def start(
        self, call: InstanceCall, folder: Path, *, heartbeat: Heartbeat
    ) -> InstanceResult:
        """Bring it up with `call.ports` and wait until all of it is healthy.

        What an earlier attempt left is adopted if it is whole and has the same ports, else
        replaced. The limits are the definition's own. `taken_ports` with `at_start`: somebody else
        has these.
        """

    async def check(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Whether it is healthy now; an answer within 2 s."""

    async def watch(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Return when it is dead, as a failure that says how it died."""

    async def exec_argv(self, call: InstanceCall, folder: Path, command: InnerCommand) -> list[str]:
        """The argv that, run on the host, runs the command inside.

        Raises perdure.errors.PerdureError where that cannot be.
        """

    async def exec(
        self,
        call: InstanceCall,
        folder: Path,
        service: str | None,
        command: str,
        timeout_seconds: float,
    ) -> tuple[int, str]:
        """Run a shell's command line inside of the service: its exit code and last output.

        Nothing of it runs any more when this returns. Raises TimeoutError when it was ended at its
        limit, perdure.errors.PerdureError when it could not be started.
        """

    async def stop(self, call: InstanceCall, folder: Path) -> InstanceResult:
        """Take it down, so that nothing of it is left; nothing there is success."""

    async def sweep(self, pool_uuid: str, keep: Container[int], root: Path) -> list[str]:
        """Remove what a pool left on this host, but for these instances (`number in keep`).

        `root` holds the folders of the pool's instances, by number. Returns what was removed,
        a few words each.
        """


class Kept(Container[int]):
    """Those that a sweep leaves: these numbers, and all from some number on.

    The latter were started after the sweep was ordered.
    """

    def __init__(self, numbers: Iterable[int], before: int | None) -> None:
        self._numbers = frozenset(numbers)
        self._before = before

    def __contains__(self, number: object) -> bool:
        is_later = self._before is not None and isinstance(number, int) and number >= self._before
        return is_later or number in self._numbers


@dataclass(frozen=True)
class Backends:
    """The backends of a host, and where its instances have their folders."""

    compose: Backend
    process: Backend
    root: Path
    """`<state>/instances`."""
    environment: WorkerEnvironment = field(default_factory=WorkerEnvironment)
    """Where the references to secrets lead that definitions hold."""

    def of(self, definition: Definition) -> Backend:
        """The one that runs instances of this definition."""
        return self.process if definition.environment.process else self.compose

    def secrets_of(self, definition: Definition) -> list[str]:
        """The secrets that its instances know, to be masked in what these say."""
        values = []
        for reference in filter(is_reference, definition.environment.env.values()):
            with contextlib.suppress(MissingSecret):  # then they do not know it, either
                values.append(resolve(reference, self.environment, Path(definition.root)))
        return values

    @property
    def all(self) -> list[Backend]:
        """Each once."""
        return [self.compose, self.process]

    def pool_root(self, pool_uuid: str) -> Path:
        """Where the instances of a pool have their folders."""
        if not _is_plain(pool_uuid):  # it comes from outside, and is a part of a path
            raise ValueError(f"not the uuid of a pool: {pool_uuid!r}")
        return self.root / pool_uuid

    def folder(self, pool_uuid: str, number: int) -> Path:
        """Where an instance has its folder; it may not be there."""
        return self.pool_root(pool_uuid) / str(int(number))

    def made_folder(self, pool_uuid: str, number: int) -> Path:
        """The same, made if it was not there, for its owner only."""
        folder = self.folder(pool_uuid, number)
        for path in (self.root, folder.parent, folder):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


def definition_of(call: InstanceCall) -> Definition:
    """What the call's instance is made of."""
    return Definition.from_json(call.definition)


def call_of(instance: StepInstance) -> InstanceCall:
    """The same instance, as backends know it. Raises ValueError if a step knows too little."""
    if instance.definition is None:
        raise ValueError(f"the definition of {instance.environment} was not sent")
    return InstanceCall(
        pool=instance.pool,
        pool_uuid=instance.pool_uuid,
        number=instance.number,
        environment=instance.environment,
        project=instance.project,
        definition=instance.definition,
        ports=instance.ports,
    )


def failed(
    call: InstanceCall,
    reason: str,
    *,
    service: str | None = None,
    log: Sequence[str] = (),
    is_final: bool = False,
    is_crowded: bool = False,
    taken_ports: Sequence[int] = (),
    at_start: bool = False,
) -> InstanceResult:
    """A failure that names the environment, and the service where there is one.

    The reason and the last lines of `log` are clipped to what a message may hold.
    """
    where = f"environment {call.environment}" + (f", service {service}" if service else "")
    return InstanceResult(
        ok=False,
        reason=f"{where}: {reason}"[:REASON_CHARACTERS],
        log=last_lines(log),
        is_final=is_final,
        is_crowded=is_crowded,
        taken_ports=sorted(set(taken_ports)),
        at_start=at_start,
    )


def last_lines(lines: Sequence[str]) -> list[str]:
    """The last lines that are not empty, without control characters, each clipped."""
    tail: list[str] = []
    for line in reversed(lines):
        if len(tail) == LOG_LINES:
            break
        if shown := one_line(line).rstrip()[:LOG_CHARACTERS]:
            tail.append(shown)
    return tail[::-1]


def _is_plain(name: str) -> bool:
    return bool(name) and all(letter.isalnum() or letter == "-" for letter in name)
