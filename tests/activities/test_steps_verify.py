"""Step type `verify`: a verdict that the run keeps, and patterns that cannot hold the worker."""

from __future__ import annotations

import pytest

from activities.steps import verify as verify_step
from tests.activities.steps_kit import Kit

GOOD = {"path": "results.agent.exit_code", "equals": 0}
BAD = {"path": "results.agent.stdout", "contains": "refunded"}


@pytest.fixture(autouse=True)
def agent_result(kit: Kit) -> None:
    kit.context.results["agent"] = {"exit_code": 0, "stdout": "order 1001 paid\n" * 3}


async def test_passed_checks_give_a_verdict_that_stands_in_the_metadata(kit: Kit) -> None:
    held = kit.context.metadata["verifications"] = {"other": {}}
    result = await kit.run("verify", checks=[GOOD], verifier_id="v")
    assert result == {"verdict": "passed", "score": 1.0, "failed": []}
    assert kit.context.metadata["verifications"] == {"other": {}, "v": result}
    assert held == {"other": {}}


async def test_a_failed_verdict_fails_the_step_and_names_the_failed_checks(kit: Kit) -> None:
    failed = await kit.fail("verify", checks=[GOOD, BAD])
    assert (failed.type, failed.kind) == ("VerificationFailed", "task")
    assert str(failed) == ('1 of 2 checks failed: results.agent.stdout does not contain "refunded"')
    assert failed.result["score"] == 0.5
    assert failed.result["failed"][0]["check"] == BAD
    assert kit.context.metadata["verifications"]["s"] == failed.result


async def test_the_pass_score_may_be_lower(kit: Kit) -> None:
    result = await kit.run("verify", checks=[GOOD, BAD], pass_score=0.5)
    assert (result["verdict"], result["score"]) == ("passed", 0.5)
    assert len(result["failed"]) == 1


async def test_many_failed_checks_are_counted_not_listed(kit: Kit) -> None:
    failed = await kit.fail("verify", checks=[BAD] * 50)
    assert str(failed).endswith("; and 45 more")
    assert len(str(failed)) < 1000


async def test_patterns_are_searched_for_in_a_process_that_can_be_ended(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "results.agent.stdout"
    good = {"path": path, "matches": r"order \d+ paid"}
    plain = {"path": path, "matches": "^order"}
    bad = {"path": path, "matches": "(a+"}
    assert (await kit.run("verify", checks=[good, plain, good]))["verdict"] == "passed"
    failed = await kit.fail("verify", checks=[good, bad, plain])
    assert "is refused: missing )" in str(failed)
    monkeypatch.setattr(verify_step, "SEARCH_TIMEOUT_SECONDS", 4.0)
    kit.context.results["evil"] = "a" * 60 + "!"
    evil = {"path": "results.evil", "matches": "^(a|aa)+$"}
    later = {"path": path, "matches": "paid+"}
    failed = await kit.fail("verify", checks=[good, evil, later, good])
    assert "searched for longer than 4 s" in str(failed)
    assert len(failed.result["failed"]) == 2  # what comes after it was not searched for


async def test_schemas_are_checked(kit: Kit) -> None:
    check = {"path": "results.agent", "schema": {"properties": {"exit_code": {"const": 1}}}}
    assert "exit_code" in str(await kit.fail("verify", checks=[check]))
    both = [{"path": "results.agent", "schema": {"type": "object"}},
            {"path": "results.agent.stdout", "matches": "pa.d+"}]  # fmt: skip
    assert (await kit.run("verify", checks=both))["verdict"] == "passed"


async def test_answers_that_a_lost_attempt_left_are_not_taken_for_this_ones(kit: Kit) -> None:
    check = {"path": "results.agent.stdout", "matches": r"order \d+ paid"}
    left = kit.folder / "s.1"
    assert (await kit.run("verify", checks=[check]))["verdict"] == "passed"
    kit.context.results["agent"]["stdout"] = "nothing of the kind"
    document = {"id": "s", "type": "verify", "checks": [check]}
    host = kit.host(document, step_dir=left)
    assert (left / "exit.json").exists()
    assert "does not match" in str(await kit.fail("verify", host, checks=[check]))
