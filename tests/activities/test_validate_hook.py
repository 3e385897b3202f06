"""The hook `validate.py` has its say before a start, and cannot do more than that (P30)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from activities import validate_hook
from activities.validate_hook import refusal

ENVIRONMENT = {"PATH": os.environ["PATH"], "SHOP_PORT": "8123"}


async def said(folder: Path, hook: str | None) -> str | None:
    if hook is not None:
        (folder / "validate.py").write_text(hook)
    return await refusal(folder / "docker-compose.yml", ENVIRONMENT)


@pytest.mark.parametrize(
    "hook",
    [
        None,
        "def check(folder): return False, 'of another name'\n",
        "def validate(folder): return True, 'fine'\n",
        "def validate(folder): raise RuntimeError('broken')\n",
        "import nothing_of_this_name\n",
        "def validate(folder): return None\n",
        "import os\nos._exit(3)\n",
    ],
)
async def test_a_hook_that_is_not_there_or_breaks_refuses_nothing(
    tmp_path: Path, hook: str | None
) -> None:
    assert await said(tmp_path, hook) is None


async def test_a_refusal_is_told_with_its_message(tmp_path: Path) -> None:
    hook = "import helper\nprint('x' * 200000)\ndef validate(folder): return helper.say(folder)\n"
    (tmp_path / "helper.py").write_text(
        "import os\ndef say(folder): return False, f'{folder} {os.environ[\"SHOP_PORT\"]}'\n"
    )
    assert await said(tmp_path, hook) == f"validate.py refuses it: {tmp_path} 8123"


async def test_a_hook_without_an_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate_hook, "HOOK_SECONDS", 0.5)
    found = await said(tmp_path, "import time\ndef validate(folder): time.sleep(60)\n")
    assert found == "validate.py gave no answer within 0.5 s"
