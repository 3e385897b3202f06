"""Commands that run beside a server process: reset scripts, and what steps of type `exec` start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from secrets import token_hex

from activities import marker
from activities.process_server import Server
from perdure.core.redaction import mask
from perdure.errors import PerdureError

_INSIDE = Path(__file__).with_name("process_inside.py")
_OUTPUT_BYTES = 1 << 16
_PAUSE_SECONDS = 0.01


def inside_argv(
    server: int, directory: str, names: Iterable[str], argv: Sequence[str]
) -> list[str]:
    """The argv that runs `argv` with the variables of the process `server`.

    The variables that are named have the values of who runs it.
    """
    return [sys.executable, "-ISE", str(_INSIDE), str(server), directory, ",".join(names), *argv]


async def run_beside(server: Server, command: str, timeout_seconds: float) -> tuple[int, str]:
    """Run a shell's command line with a server's directory and variables.

    Returns its exit code and its last output, secrets masked; nothing of it runs any more then.
    Raises TimeoutError when it was ended at its limit, PerdureError when it cannot be started.
    """
    # Below the instance's own marker, so that the end of the instance is its end, too.
    key = f"{server.env[marker.MARKER]}/{token_hex(4)}"
    try:
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", command),
            cwd=server.cwd,
            env=server.env | {marker.MARKER: key},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise PerdureError(f"cannot run {command!r} in {server.cwd}: {error.strerror}") from None
    assert process.stdout is not None
    reading = asyncio.create_task(_last_bytes(process.stdout))
    try:
        async with asyncio.timeout(timeout_seconds):
            # `wait` would wait for all that hold the pipe, and it may have left some behind.
            while process.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        await asyncio.shield(_killed(process, key))
        output = await reading
    return process.returncode, mask(output.decode("utf-8", "replace"), server.secrets)


async def _killed(process: asyncio.subprocess.Process, key: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.to_thread(marker.sweep, key)


async def _last_bytes(stream: asyncio.StreamReader) -> bytes:
    """All of a stream is read, its end is kept."""
    kept = b""
    while piece := await stream.read(1 << 16):
        kept = (kept + piece)[-_OUTPUT_BYTES:]
    return kept
