"""Scripts of python steps: their text becomes part of the document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure.core.problems import Place, shown
from perdure.reading import Unreadable, read_text

MAX_SCRIPT_BYTES = 1024 * 1024


def keep_script(step: Any, written: Any) -> None:
    """Take the seed out of a script that was embedded before: one of a file has none filled in."""
    if not isinstance(step, dict):
        return
    keep_script(step.get("compensate"), written.get("compensate"))
    if "file_name" in written and "code" in written:
        step["code"] = written["code"]


def embed_script(step: Any, base: Path, at: Place) -> None:
    """Put a script's text in the place of its `file`, in the step and in its compensation."""
    if not isinstance(step, dict):
        return
    embed_script(step.get("compensate"), base, at / "compensate")
    file = step.get("file")
    if step.get("type") not in ("python", "background") or "code" in step:
        return
    if not isinstance(file, str) or not file:
        return  # the check of the step says what is wrong
    try:
        code = read_text(base / file, MAX_SCRIPT_BYTES)
    except Unreadable as error:
        finding = error.finding
        line = f" on line {finding.line}" if finding.line else ""
        (at / "file").refuse(f"{shown(file)} {finding.message}{line}", finding.remedy)
        return
    del step["file"]
    step |= {"code": code, "file_name": file}
