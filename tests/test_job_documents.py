"""Steps that launch jobs, in files: their scripts are embedded, their mistakes told by line."""

from __future__ import annotations

from pathlib import Path

from perdure.core.job_documents import spec_of
from perdure.documents import load
from perdure.job_messages import JobSpec
from perdure.loaded_tasks import unsupported

TEXT = """\
id: t
seed: {job: train, limit: 5m}
steps:
- id: launch
  type: background
  file: cells/train.py
  name: <job>
  time_limit: <limit>
- id: wait
  type: await
  job: <job>
"""


def written(folder: Path, text: str, code: str = "print('<job>')\n") -> Path:
    (folder / "cells").mkdir()
    (folder / "cells" / "train.py").write_text(code)
    file = folder / "t.yaml"
    file.write_text(text)
    return file


def test_a_cell_of_a_file_is_embedded_and_seeds_are_filled_in_around_it(tmp_path: Path) -> None:
    (loaded,) = load([written(tmp_path, TEXT)]).checked()
    (tmp_path / "cells" / "train.py").unlink()
    launch, wait = loaded.task.steps
    assert spec_of(launch.body) == JobSpec(
        code="print('<job>')\n", name="train", time_limit_seconds=300.0
    )
    assert launch.body["file_name"] == "cells/train.py"
    assert wait.body["job"] == "train"
    assert unsupported(loaded) == []


def test_mistakes_are_told_with_line_key_and_remedy(tmp_path: Path) -> None:
    text = TEXT.replace("job: <job>", "job: trian").replace("time_limit: <limit>", "restart: true")
    problems = load([written(tmp_path, text)]).problems
    assert [(p.line, p.step, p.key) for p in problems] == [
        (8, "launch", "restart"), (11, "wait", "job"),
    ]  # fmt: skip
    assert "did you mean 'restartable'?" in str(problems[0])
    assert "did you mean 'train'?" in str(problems[1])


def test_a_file_that_is_too_long_for_a_cell_is_refused_at_its_step(tmp_path: Path) -> None:
    (problem,) = load([written(tmp_path, TEXT, "#" * 200_001)]).problems
    assert (problem.step, problem.line) == ("launch", 4)
    assert "a cell has at most 200,000; keep the rest in files that it imports" in str(problem)


def test_a_file_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    file = written(tmp_path, TEXT)
    (tmp_path / "cells" / "train.py").unlink()
    (problem,) = load([file]).problems
    assert (problem.line, problem.key) == (6, "file")
