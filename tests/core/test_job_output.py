"""What a job printed, however it comes: kept once, to the cap, and given in whole characters."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.job_output import (
    CAP_CHARACTERS,
    CAP_MARKER,
    COMMIT_BYTES,
    MAX_COMMITS,
    TAIL_BYTES,
    CommitRule,
    Committed,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
seeds = st.integers(0, 2**32)


def cut(text: str, chance: random.Random) -> list[tuple[int, str]]:
    """The text in pieces, each with where it begins; some of them overlap what came before."""
    pieces, at = [], 0
    while at < len(text):
        size = chance.randint(1, 1 + len(text) // 3)
        begins = max(0, at - chance.choice([0, 0, 3]))
        pieces.append((begins, text[begins : at + size]))
        at += size
    return pieces


def pages(output: Committed, limit: int, begin: int = 0) -> list[str]:
    """All pages from an offset on."""
    found, at = [], begin
    while True:
        text, following = output.page(at, limit)
        if not text:
            assert following == at
            return found
        assert len(text.encode()) <= limit
        assert following == at + len(text)
        found.append(text)
        at = following


@given(texts, seeds, st.integers(4, 90))
def test_any_cut_of_a_text_is_kept_as_the_text_and_paged_without_splitting_a_character(
    text: str, seed: int, limit: int
) -> None:
    chance, output = random.Random(seed), Committed()
    for begins, piece in cut(text, chance):
        output.take(begins, piece)
        if chance.random() < 0.3:
            output.take(begins, piece)  # a signal that is told twice
    assert output.text() == text
    assert output.end == output.size == len(text)
    assert "".join(pages(output, limit)) == text
    begin = chance.randint(0, len(text))
    assert "".join(pages(output, limit, begin)) == text[begin:]


@pytest.mark.parametrize("letter", ["a", "é", "漢", "😀"])
def test_b6_the_first_million_characters_are_kept_and_one_marker(letter: str) -> None:
    output = Committed()
    piece = letter * 300_000
    for number in range(5):
        output.take(number * len(piece), piece)
    text = output.text()
    assert text == letter * CAP_CHARACTERS + CAP_MARKER
    assert text.endswith("\n...(truncated at 1000000 characters)")
    assert output.is_full
    assert output.end == 1_500_000
    assert len(text.encode()) <= 4_000_000 + len(CAP_MARKER)
    assert "".join(pages(output, 65_536)) == text


def test_what_is_exactly_as_long_as_the_cap_has_no_marker() -> None:
    output = Committed()
    output.take(0, "x" * CAP_CHARACTERS)
    assert not output.is_full
    output.take(CAP_CHARACTERS, "y")
    assert output.text() == "x" * CAP_CHARACTERS + CAP_MARKER
    output.begin_again("[again]")
    assert output.size == CAP_CHARACTERS + len(CAP_MARKER)


def test_an_offset_beyond_the_end_is_answered_with_nothing_and_as_it_is() -> None:
    output = Committed()
    output.take(0, "abc")
    assert output.page(7, 100) == ("", 7)
    assert output.page(-5, 100) == ("abc", 3)
    assert output.page(0, 0) == ("", 0)
    assert output.page(1, 1) == ("b", 2)


def test_what_was_lost_on_the_way_is_told_in_a_line() -> None:
    output = Committed()
    output.take(0, "begun")
    output.take(1_000, "last words")
    assert output.text() == "begun\n[perdure: 995 characters were lost with the worker]\nlast words"
    output.begin_again("[again]")
    assert output.end == output.size
    output.take(output.end, "more")
    assert output.text().endswith("last words\n[again]\nmore")


def test_a_line_of_ours_stands_by_itself() -> None:
    output = Committed()
    output.begin_again("[again]")
    output.take(output.end, "half")
    output.begin_again("[again]")
    assert output.text() == "[again]\nhalf\n[again]\n"


# --- When a worker hands on -------------------------------------------------------------------


def hand_on(seconds: float, every: float, bytes_each: int) -> int:
    """How often a job hands on that prints so much so often, its end included."""
    rule, commits, pending, last, at = CommitRule(), 0, 0, 0.0, 0.0
    while at < seconds:
        at += every
        pending += bytes_each
        if rule.due(
            age_seconds=at, since_last_seconds=at - last, pending_bytes=pending, commits=commits
        ):
            commits, pending, last = commits + 1, 0, at
    return commits + 1


def test_ten_prints_a_second_for_a_day_stay_under_eight_thousand_events() -> None:
    commits = hand_on(86_400, 0.1, 12)
    assert commits < MAX_COMMITS
    assert 4 * commits < 8_000


def test_a_megabyte_at_once_costs_few_events() -> None:
    assert 4 * hand_on(10, 0.01, 1_000_000 // 1_000) <= 4 * (1_000_000 // TAIL_BYTES + 100)
    assert hand_on(0.1, 0.01, COMMIT_BYTES) == 12  # as often as there is so much


@settings(max_examples=50)
@given(st.floats(0, 1e6), st.floats(0, 1e4), st.integers(0, 10**7), st.integers(0, 2_000))
def test_nothing_is_handed_on_twice_at_once_or_beyond_the_limit(
    age: float, since: float, pending: int, commits: int
) -> None:
    def due(*, in_flight: bool) -> bool:
        return CommitRule().due(
            age_seconds=age, since_last_seconds=since, pending_bytes=pending, commits=commits,
            in_flight=in_flight,
        )  # fmt: skip

    assert not due(in_flight=True)
    if not pending or commits >= MAX_COMMITS:
        assert not due(in_flight=False)
    elif pending >= COMMIT_BYTES:
        assert due(in_flight=False)
    elif since < 0.2:
        assert not due(in_flight=False)


def test_a_young_job_hands_on_five_times_a_second() -> None:
    rule = CommitRule()
    first = rule.due(age_seconds=0.2, since_last_seconds=0.2, pending_bytes=1, commits=0)
    assert first
    assert not rule.due(age_seconds=60, since_last_seconds=0.5, pending_bytes=1, commits=9)
    assert rule.due(age_seconds=60, since_last_seconds=0.6, pending_bytes=1, commits=9)
    big = TAIL_BYTES + 1
    assert rule.due(age_seconds=9e5, since_last_seconds=0.2, pending_bytes=big, commits=9)
