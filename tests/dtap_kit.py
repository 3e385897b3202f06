"""A project of the DTap layout, for tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from perdure.documents import Documents, ListOptions, load

DATA = Path(__file__).resolve().parent / "data" / "dtap"
COMMAND = "python3 run.py --task-dir {task_dir}"
GMAIL = "Agent: {mcp_servers: [{name: gmail}]}\n"


class Project:
    """A folder with `dt_arena/config` and `dataset`."""

    def __init__(self, root: Path, version: str | None = "0.2.12") -> None:
        self.root = root
        self.config = root / "dt_arena" / "config"
        self.config.mkdir(parents=True)
        if version is not None:
            for name in ("env.yaml", "mcp.yaml"):
                shutil.copy(DATA / version / name, self.config / name)

    def task(self, path: str, config: str = GMAIL) -> Path:
        """A task's directory at a path below dataset."""
        directory = self.root / "dataset" / path
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(config)
        return directory

    def list(self, *lines: Any, name: str = "benchmark/list.jsonl") -> Path:
        """A list; lines that are text stand as they are."""
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        file.write_text("".join(f"{text}\n" for text in texts))
        return file


def benign(id: Any, domain: Any = "crm", **more: Any) -> dict[str, Any]:
    return {"domain": domain, "type": "benign", "task_id": id, **more}


def malicious(id: Any, threat: Any, risk: Any, domain: Any = "crm") -> dict[str, Any]:
    fields = {"domain": domain, "type": "malicious", "task_id": id}
    return {**fields, "threat_model": threat, "risk_category": risk}


def load_dtap(*paths: Path | str, only: tuple[str, ...] = (), **options: Any) -> Documents:
    """Load with a task command, unless another is given."""
    return load(paths, only=only, lists=ListOptions(**{"task_command": COMMAND, **options}))


def ids(documents: Documents) -> list[str]:
    assert [str(problem) for problem in documents.problems] == []
    return [loaded.task.id for loaded in documents.tasks]
