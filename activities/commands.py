"""Commands of the host's own: run with a time limit, their output drained, killed whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_STDOUT_BYTES = 16 * 1024 * 1024
_STDERR_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_DRAIN_SECONDS = 1.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Finished:
    """A command that has ended by itself."""

    code: int
    out: str
    """Of its standard output, the first 16 MB."""
    err: str
    """Of its standard error, the last 64 KB."""

    @property
    def lines(self) -> list[str]:
        """All that it said, errors last."""
        return [*self.out.splitlines(), *self.err.splitlines()]


async def run_command(
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout_seconds: float,
    *,
    cwd: Path | None = None,
    stdin: bytes | None = None,
) -> Finished:
    """Run a command to its end. It and all in its process group end when this does.

    Raises TimeoutError at the limit, OSError if it cannot be run. A cancel ends it, too.
    """
    creating = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            env=dict(env),
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(creating)
    except asyncio.CancelledError:
        # It may run already; asyncio would kill it alone, and not what it has started.
        with contextlib.suppress(OSError):
            await _end(await creating, argv)
        raise
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Head(_STDOUT_BYTES), _Tail(_STDERR_BYTES)
    draining = [
        asyncio.create_task(_drain(process.stdout, out)),
        asyncio.create_task(_drain(process.stderr, err)),
    ]
    try:
        async with asyncio.timeout(timeout_seconds):
            if stdin is not None and process.stdin:
                process.stdin.write(stdin)
                process.stdin.close()
            code = await _exited(process)
    except TimeoutError:
        shown = " ".join([os.path.basename(argv[0]), *argv[1:]])[:200]
        raise TimeoutError(f"`{shown}` took longer than {timeout_seconds:g} s") from None
    finally:
        await _end(process, argv)
        # A grandchild in a session of its own may hold the pipes for ever.
        await asyncio.wait(draining, timeout=_DRAIN_SECONDS)
        for task in draining:
            task.cancel()
    return Finished(code, out.text, err.text)


async def _end(process: asyncio.subprocess.Process, argv: Sequence[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # it is root's, by sudo
        with contextlib.suppress(OSError):
            killer = await asyncio.create_subprocess_exec(
                *(argv[0], "-n", "kill", "-KILL", "--", f"-{process.pid}"),
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            await killer.wait()
    await _exited(process)


async def _exited(process: asyncio.subprocess.Process) -> int:
    """Its exit code. `wait` alone would wait for the ends of its pipes, too."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=_LOOK_SECONDS)
    finally:
        waiting.cancel()
    return process.returncode


class _Head:
    """The first bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit, self._pieces, self._size = limit, list[bytes](), 0

    def add(self, piece: bytes) -> None:
        if piece := piece[: self._limit - self._size]:
            self._pieces.append(piece)
            self._size += len(piece)

    @property
    def text(self) -> str:
        return b"".join(self._pieces).decode(errors="replace")


class _Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit, self._kept = limit, b""

    def add(self, piece: bytes) -> None:
        self._kept = (self._kept + piece)[-self._limit :]

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")


async def _drain(stream: asyncio.StreamReader, into: _Head | _Tail) -> None:
    while piece := await stream.read(_PIECE_BYTES):
        into.add(piece)
