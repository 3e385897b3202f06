"""Step type `verify`: checks over the context, with a verdict."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path
from typing import Any

from activities.host import StepHost
from perdure.core.context import FIELDS
from perdure.core.step_types import BUILT_IN_TYPES
from perdure.core.verify import BadPattern, Search, Verification, search_text, verify
from perdure.messages import Json
from perdure.steps import Context, StepFailed, step

RUNNER = Path(__file__).parent.parent / "pattern_runner.py"
SEARCH_TIMEOUT_SECONDS = 30.0
"""For all patterns of a step together; a bad one would search for years."""

MESSAGE_CHECKS = 5

_LOOPS = frozenset("*+?{")
"""A pattern without these looks at each character once and can be searched for right here."""


@step("verify", keys=BUILT_IN_TYPES["verify"].keys, on_loop=True)
async def run_checks(document: dict[str, Any], context: Context, host: StepHost) -> Json:
    """Put the step's `checks` to the context; the result is `verdict`, `score`, `failed`.

    It stands at `metadata.verifications.<verifier_id>` too (default: the step's id). `failed`
    names each failed check with its reason and what was found; see `perdure.core.verify`.

    Raises StepFailed (type `VerificationFailed`), the result kept: the score is below
    `pass_score` (1.0).
    """
    found = await _verified(document, context, host)
    result: dict[str, Json] = {
        "verdict": found.verdict,
        "score": found.score,
        "failed": found.failed,
    }
    verifier = document.get("verifier_id") or document["id"]
    kept = context.metadata.get("verifications")
    kept = kept if isinstance(kept, dict) else {}
    context.metadata["verifications"] = {**kept, verifier: result}
    if found.verdict != "passed":
        raise StepFailed(_told(found, document), type="VerificationFailed", result=result)
    return result


async def _verified(document: dict[str, Any], context: Context, host: StepHost) -> Verification:
    view = {name: getattr(context, name) for name in FIELDS}
    checks: list[dict[str, Json]] = document["checks"]
    pass_score = float(document.get("pass_score", 1.0))
    # A schema may take its time over a large value; the worker's loop must not wait for it.
    apart = any("schema" in check for check in checks)

    async def verified(search: Search) -> Verification:
        work = functools.partial(verify, checks, view, pass_score=pass_score, search=search)
        return await asyncio.to_thread(work) if apart else work()

    questions: dict[tuple[str, str], None] = {}  # in order, each once

    def note(pattern: str, text: str) -> bool:
        if _LOOPS & set(pattern):
            questions[pattern, text] = None
            return True
        return search_text(pattern, text)

    found = await verified(note)
    if not questions:
        return found
    answers = dict(zip(questions, await _searched(list(questions), host), strict=True))

    def answer(pattern: str, text: str) -> bool:
        told = answers.get((pattern, text))
        if told in (None, "x"):
            return search_text(pattern, "" if told else text)  # a bad one says what is wrong
        if told == "?":
            raise BadPattern(f"it was searched for longer than {SEARCH_TIMEOUT_SECONDS:g} s")
        return told == "1"

    return await verified(answer)


async def _searched(questions: list[tuple[str, str]], host: StepHost) -> str:
    """An answer of the pattern runner for each question; `?` where it was ended before."""
    file = host.private_file("call.json", json.dumps(questions).encode())
    stdout = host.step_dir / "stdout.log"
    stdout.unlink(missing_ok=True)  # a lost attempt's answers may be to other questions
    try:
        async with asyncio.timeout(SEARCH_TIMEOUT_SECONDS):
            argv = [sys.executable, "-I", str(RUNNER), str(file)]
            ended = await host.run_process(argv, adopt=False)
            stdout = ended.stdout_path
    except TimeoutError:
        host.log.warning("a pattern was searched for longer than %g s", SEARCH_TIMEOUT_SECONDS)
    answers = stdout.read_text("utf-8", "replace") if stdout.exists() else ""
    return answers[: len(questions)].ljust(len(questions), "?")


def _told(found: Verification, document: dict[str, Any]) -> str:
    total = len(document["checks"])
    reasons = [failed["reason"] for failed in found.failed[:MESSAGE_CHECKS]]
    more = len(found.failed) - len(reasons)
    tail = f"; and {more} more" if more > 0 else ""
    return f"{len(found.failed)} of {total} checks failed: {'; '.join(reasons)}{tail}"
