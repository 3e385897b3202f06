"""Secrets leave no trace: references in what is recorded, masks in what is printed."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core.context import apply, diff, same
from perdure.core.redaction import mask, mask_ops, redact, restore, texts_of
from perdure.core.secret_references import BUILT_IN_REDACTED
from tests.core.strategies import JSON, OBJECTS

SECRET = 's3cr3t/CANARY "9f"é'


def test_values_under_redacted_keys_become_references_at_every_depth() -> None:
    value = {
        "metadata": {"litellm_api_key": SECRET, "n": 1},
        "deployed_envs": [{"remote_tokens": {"a": SECRET}, "id": 1}],
        "results": {"s": {"session_key": 7}},
    }
    kept = copy.deepcopy(value)
    safe, secrets = redact(value, {"session_key"}, prefix="agent.1")
    assert safe == {
        "metadata": {"litellm_api_key": {"$secret": "agent.1:metadata.litellm_api_key"}, "n": 1},
        "deployed_envs": [
            {"remote_tokens": {"$secret": "agent.1:deployed_envs.0.remote_tokens"}, "id": 1}
        ],
        "results": {"s": {"session_key": {"$secret": "agent.1:results.s.session_key"}}},
    }
    assert "CANARY" not in json.dumps(safe)
    assert restore(safe, secrets) == value == kept
    assert texts_of(list(secrets.values())) == [SECRET, SECRET]


@given(OBJECTS, st.sets(st.sampled_from(["a", "b", "", "a.b"])))
def test_what_was_redacted_is_restored_exactly(value: Any, keys: set[str]) -> None:
    safe, secrets = redact(value, keys, prefix="p")
    assert same(restore(safe, secrets), value)


@given(OBJECTS, OBJECTS)
def test_what_did_not_change_keeps_its_reference(before: Any, written: Any) -> None:
    safe, secrets = redact(before, {"a", "b"}, prefix="one.1")
    seen = restore(safe, secrets)
    again, new = redact(seen, {"a", "b"}, known=secrets, prefix="two.1")
    assert new == {}
    assert same(again, safe) or len(secrets) > 1  # equal secrets may trade their names
    later, new = redact(seen | written, {"a", "b"}, known=secrets, prefix="two.1")
    assert same(restore(later, secrets | new), seen | written)
    assert not secrets.keys() & new.keys()


def test_a_secret_written_anew_gets_a_new_name_so_that_a_rollback_finds_the_old_one() -> None:
    safe, secrets = redact({"remote_tokens": "old-token"}, prefix="a.1")
    later, new = redact({"remote_tokens": "new-token"}, known=secrets, prefix="b.1")
    assert diff(safe, later) != []
    assert restore(safe, secrets | new) == {"remote_tokens": "old-token"}
    assert restore(later, secrets | new) == {"remote_tokens": "new-token"}


def test_places_that_look_alike_get_names_of_their_own() -> None:
    value = {"a.b": {"usersim_api_key": "1111"}, "a": {"b": {"usersim_api_key": "2222"}}}
    safe, secrets = redact(value)
    assert len(secrets) == 2
    assert restore(safe, secrets) == value


@pytest.mark.parametrize(
    "value", [None, "", {"from_env": "X"}, {"from_file": "x"}, {"$secret": "n"}]
)
def test_nothing_and_references_stay_as_they_are(value: Any) -> None:
    assert redact({"litellm_api_key": value}) == ({"litellm_api_key": value}, {})


def test_the_built_in_keys_are_redacted_without_being_asked() -> None:
    safe, secrets = redact(dict.fromkeys(BUILT_IN_REDACTED, "value"))
    assert len(secrets) == 5
    assert "value" not in json.dumps(list(safe.values()))


def test_an_unknown_reference_stays() -> None:
    assert restore({"a": [{"$secret": "gone"}]}, {}) == {"a": [{"$secret": "gone"}]}


@pytest.mark.parametrize(
    "text",
    [
        f"key={SECRET}.",
        json.dumps({"k": SECRET}),
        json.dumps({"k": SECRET}, ensure_ascii=False),
        f"https://x/?k={quote(SECRET, safe='')}&v=1",
        f"https://x/{quote(SECRET)}",
        "Basic " + base64.b64encode(SECRET.encode()).decode(),
        "Basic " + base64.b64encode(b"u:" + SECRET.encode() + b"!").decode(),
        "Basic " + base64.urlsafe_b64encode(b"u:x" + SECRET.encode() + b"tail").decode(),
    ],
)
def test_a_secret_is_masked_however_it_is_spelt(text: str) -> None:
    masked = mask(text, [SECRET])
    assert "***" in masked
    assert "CANARY" not in masked
    assert base64.b64encode(SECRET.encode()).decode()[:12] not in masked


def test_the_longest_secret_is_masked_first() -> None:
    assert mask("x abcdef y abcd", ["abcd", "abcdef"]) == "x *** y ***"


def test_a_secret_of_three_characters_is_not_masked() -> None:
    assert mask("a cat", ["cat", ""]) == "a cat"
    assert mask("cats", ["cats"]) == "***"


def masked_value(value: Any, secrets: list[str]) -> Any:
    """The value as a diff writes it, masked."""
    [op] = mask_ops([{"op": "set", "path": ["metadata"], "value": value}], secrets)
    return op["value"]


def test_keys_are_masked_too_and_none_is_lost() -> None:
    value = {"hunter2": {"x": ["hunter2", 1]}, "***": 2, "hunter2hunter2": 3}
    masked = masked_value(value, ["hunter2"])
    assert masked == {"***": {"x": ["***", 1]}, "***2": 2, "******": 3}


@given(JSON, st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=8))
def test_nothing_masked_holds_the_secret(value: Any, secret: str) -> None:
    assume("*" not in secret)
    assert secret not in "\0".join(texts_of(masked_value([value, secret], [secret])))


@given(JSON)
def test_without_secrets_nothing_changes(value: Any) -> None:
    assert same(masked_value(value, []), value)


@pytest.mark.parametrize("word", ["edit", "path", "append", "metadata"])
def test_a_secret_spelt_like_a_part_of_a_diff_does_not_break_it(word: str) -> None:
    before = {"metadata": {"log": [word, "x"], word: 1, "old": 2}}
    after = {"metadata": {"log": ["x", f"key {word}"], "new": {"k": word}}}
    ops = mask_ops(diff(before, after), [word])
    assert apply({"metadata": before["metadata"]}, ops).get("metadata", {}).get("log") != []
    shown = json.dumps([op.get("append") or op.get("value") for op in ops])
    assert word not in shown
    assert word == "metadata" or apply(before, ops)["metadata"]["log"] == ["x", "key ***"]


def test_a_secret_spelt_like_a_place_that_is_there_does_not_move_what_is_written() -> None:
    before = {"metadata": {"shop": {"n": 1}}, "results": {}}
    after = {"metadata": {"shop": {"n": 2, "shop": 3}}, "results": {"shop": "the shop"}}
    ops = mask_ops(diff(before, after), ["shop"])
    assert apply(before, ops) == {
        "metadata": {"shop": {"n": 2, "***": 3}},
        "results": {"shop": "the ***"},
    }
