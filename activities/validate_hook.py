"""The hook `validate.py` beside a compose file: the project's own word on whether it can run (P30).

It is other people's code and may do anything, so it runs in a process of its own, with a time
limit.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from activities.commands import run_command

HOOK_SECONDS = 60.0

_MARK = "perdure-validate:"

# What the hook prints goes to standard error: the answer alone is on standard output.
_RUNNER = f"""
import importlib.util, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
path, folder = sys.argv[1:]
sys.path.insert(0, folder)
spec = importlib.util.spec_from_file_location("validate", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
validate = getattr(module, "validate", None)
if callable(validate):
    good, message = validate(folder)
    answer.write({_MARK!r} + json.dumps([bool(good), str(message)]) + "\\n")
else:
    answer.write({_MARK!r} + json.dumps([True, ""]) + "\\n")
answer.flush()
"""

_log = logging.getLogger("perdure.instances")


async def refusal(compose_file: Path, variables: Mapping[str, str]) -> str | None:
    """Why the hook refuses a start; None: it does not, or there is none.

    A hook that raises is warned about and counts as content (P30); one that gives no answer within
    HOOK_SECONDS refuses.
    """
    hook = compose_file.parent / "validate.py"
    if not hook.is_file():
        return None
    argv = [sys.executable, "-c", _RUNNER, str(hook), str(hook.parent)]
    try:
        done = await run_command(argv, variables, HOOK_SECONDS, cwd=hook.parent)
    except TimeoutError:
        return f"validate.py gave no answer within {HOOK_SECONDS:g} s"
    answer = done.out.strip().removeprefix(_MARK)
    try:
        good, message = json.loads(answer)
    except ValueError:
        said = done.err.strip().splitlines()
        reason = said[-1] if said else f"it exited with {done.code}"
        _log.warning("%s counts as content: it failed: %s", hook, reason)
        return None
    return None if good else f"validate.py refuses it: {message or 'without a reason'}"
