"""What the embedded server sees of the environment of whoever starts it."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from perdure.config import Settings
from perdure.server import embedded_server, status, stop


async def test_what_bounds_its_memory_and_cores_reaches_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = {"GOGC": "150", "GOMEMLIMIT": "900MiB", "GOMAXPROCS": "1"}
    for name, value in bounds.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_env({"PERDURE_STATE_DIR": str(tmp_path / "s"), "HOME": str(tmp_path)})
    try:
        async with embedded_server(settings):
            pid = status(settings.state).pid
            assert pid
            seen = psutil.Process(pid).environ()
    finally:
        await stop(settings.state)
    assert {name: seen.get(name) for name in bounds} == bounds
