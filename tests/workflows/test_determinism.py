"""What keeps workflows deterministic, beside the replays.

All of ours passes through the SDK's sandbox, which would be paid for at every start of a workflow;
so nothing that tells the time, draws, or touches the world may be used in it at all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = sorted([*ROOT.glob("workflows/*.py"), *ROOT.glob("perdure/core/*.py")])

# No urllib: of it the core uses `quote` alone, which is a pure function.
WORLDLY = frozenset(
    (
        *("glob", "http", "io", "multiprocessing", "os", "pathlib", "random", "secrets", "select"),
        *("shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time"),
        *("uuid",),
    )
)
CLOCKS = frozenset({"now", "utcnow", "today"})


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages that a module imports, at whatever depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_c23_a_workflow_has_no_way_to_the_clock_to_chance_or_to_the_world(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert not WORLDLY & set(imported(tree))
    called = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "workflow")
    }
    assert not CLOCKS & called


@pytest.mark.parametrize("path", sorted(ROOT.glob("workflows/*.py")), ids=lambda path: path.name)
def test_c23_workflows_share_no_variable(path: Path) -> None:
    """Neither a module nor a class holds what a workflow could change under another."""
    tree = ast.parse(path.read_text())
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    values = [
        node.value
        for scope in scopes
        for node in scope.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
    ]
    changeable = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
    assert not [ast.unparse(value) for value in values if isinstance(value, changeable)]
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)]
