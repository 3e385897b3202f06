"""How much memory a host has (P29)."""

from __future__ import annotations

from pathlib import Path

import psutil

from activities.memory import GIB, memory


def test_memory_is_that_of_the_machine_where_no_limit_is_set(tmp_path: Path) -> None:
    now = memory(tmp_path)
    assert now.total_gb == round(psutil.virtual_memory().total / GIB, 3)
    assert 0 < now.free_gb <= now.total_gb


def test_the_limit_of_a_control_group_counts_and_its_cache_gives_way(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{3 << 18}\n")
    (tmp_path / "memory.stat").write_text(f"anon {1 << 18}\ninactive_file {1 << 18}\n")
    now = memory(tmp_path)
    assert now.total_gb == round((1 << 20) / GIB, 3)
    assert now.free_gb == round((1 << 19) / GIB, 3)


def test_a_group_of_the_first_version_counts_too(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text(f"{1 << 24}")
    (tmp_path / "memory/memory.usage_in_bytes").write_text(f"{1 << 25}")
    now = memory(tmp_path)
    assert now.total_gb == round((1 << 24) / GIB, 3)
    assert now.free_gb == 0


def test_a_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("9223372036854771712")
    (tmp_path / "memory.current").write_text("0")
    assert memory(tmp_path).total_gb == round(psutil.virtual_memory().total / GIB, 3)
    (tmp_path / "memory.max").write_text("max")
    assert memory(tmp_path).total_gb == round(psutil.virtual_memory().total / GIB, 3)
