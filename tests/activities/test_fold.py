"""Redrawn lines, folded to their last state in what is kept (C29)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.capture import LIVE_SUFFIX, MASKED, TAIL_BYTES, Capture
from activities.fold import HELD_CHARS, Fold

LINES = st.text(alphabet="ab\r\n\x1b[é", max_size=40)


T = TypeVar("T", str, bytes)


def in_pieces(whole: T, cuts: list[int]) -> list[T]:
    places = sorted({cut % (len(whole) + 1) for cut in cuts} | {0, len(whole)})
    return [whole[a:b] for a, b in itertools.pairwise(places)]


def folded(text: str, cuts: list[int] | None = None) -> str:
    fold = Fold()
    return "".join(map(fold.feed, in_pieces(text, cuts or []))) + fold.finish()


def kept(path: Path, data: bytes, cuts: list[int] | None = None, limit: int = 10**6) -> str:
    """What a job's file holds in the end."""
    capture = Capture(str(path), limit, ["s3cret"], fold_redraws=True)
    for piece in in_pieces(data, cuts or []):
        capture.feed(piece)
    capture.finish()
    return path.read_bytes().decode("utf-8")


def as_seen(text: str) -> str:
    """The same by its definition, a line at a time."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        before, *states = line.split("\r")
        last = next((state for state in reversed(states) if state), "")
        lines.append(f"{before}\r{last}" if before and last else before + last)
    return "\n".join(lines)


@given(LINES, st.lists(st.integers(0)))
def test_a_line_is_kept_in_its_last_state_however_it_is_cut(text: str, cuts: list[int]) -> None:
    assert folded(text, cuts).replace("\r\n", "\n") == as_seen(text)


@given(LINES, st.lists(st.integers(0)))
def test_how_it_is_cut_makes_no_difference(text: str, cuts: list[int]) -> None:
    assert folded(text, cuts) == folded(text)


@given(st.binary(max_size=60), st.lists(st.integers(0)), st.integers(0, 30))
def test_any_bytes_give_the_same_file_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int], limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "stream"
    data = data.replace(b"\x00", b"\r").replace(b"\x01", b"\n")
    assert kept(path, data, cuts, limit) == kept(path, data, limit=limit)


@given(st.text(alphabet="abc\r\n", max_size=60).filter(lambda text: "\r" not in text))
def test_text_without_redraws_passes_at_once(text: str) -> None:
    fold = Fold()
    assert fold.feed(text) == text
    assert fold.finish() == ""


def test_a_question_without_a_lines_end_passes_at_once() -> None:
    fold = Fold()
    assert fold.feed("name? ") == "name? "
    assert fold.live == ""


def test_the_state_of_a_redrawn_line_can_be_seen() -> None:
    fold = Fold()
    assert fold.feed("\r 10%\r 20%") == ""
    assert fold.live == " 20%"
    assert fold.feed("\r") == ""
    assert fold.live == " 20%", "the next state has not come"
    assert fold.feed(" 30") == ""
    assert fold.live == " 30"
    assert fold.feed("%\ndone\n") == " 30%\ndone\n"
    assert fold.live == ""


def test_cr_and_lf_in_two_reads_are_one_lines_end() -> None:
    fold = Fold()
    assert fold.feed("a\r") == "a"
    assert fold.feed("\nb\r\n") == "\r\nb\r\n"


def test_a_bar_that_ends_with_its_return_keeps_its_last_state() -> None:
    assert folded("50%\r100%\r\ndone\n") == "50%\r100%\r\ndone\n"
    assert folded("1%\r2%\r3%\r") == "1%\r3%"


def test_colours_are_kept() -> None:
    assert folded("\r\x1b[31m 1%\r\x1b[32m100%\x1b[0m\n") == "\x1b[32m100%\x1b[0m\n"


@given(st.lists(st.integers(0, 3 * HELD_CHARS), max_size=6))
def test_a_line_too_long_for_a_bar_is_let_through(cuts: list[int]) -> None:
    text = "x\r" + "y" * (HELD_CHARS + 10) + "\rz" + "w" * HELD_CHARS + "\r1\r2\n"
    assert folded(text, cuts) == folded(text)
    assert len(folded(text)) == len(text) - 2  # of which `1` and its return are gone
    fold = Fold()
    for piece in in_pieces(text, cuts):
        fold.feed(piece)
        assert len(fold.live) <= HELD_CHARS


def test_c29_twenty_thousand_redraws_leave_the_last_one(tmp_path: Path) -> None:
    redraws = "".join(f"\r{n * 100 // 19_999:3}% [{'#' * (n % 60):60}]" for n in range(20_000))
    data = f"\x1b[1mtraining\x1b[0m\r\nready\r\n{redraws}\ndone\n".encode()
    text = kept(tmp_path / "stderr.log", data, list(range(0, len(data), 997)))
    assert len(text) < 2_000
    assert "100%" in text
    assert text.endswith("\ndone\n")
    assert text.startswith("\x1b[1mtraining\x1b[0m\r\nready\r\n"), "two lines stay two lines"


def test_many_bare_returns_cost_no_more_than_other_bytes(tmp_path: Path) -> None:
    capture = Capture(str(tmp_path / "log"), 10**6, [], fold_redraws=True)
    for _ in range(100):
        capture.feed(b"\r" * 65_536)
    capture.finish()
    assert (tmp_path / "log").read_bytes() == b""


def test_c49_secrets_are_masked_in_redrawn_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "log"
    capture = Capture(str(path), 10**6, ["s3cret"], fold_redraws=True)
    for piece in (b"\rkey=s3", b"cret 1%", b"\rkey=s3cret 2%"):
        capture.feed(piece)
    capture.write_live()
    assert json.loads(Path(f"{path}{LIVE_SUFFIX}").read_text())["live"] == f"key={MASKED} 2%"
    capture.feed(b"\n")
    capture.finish()
    assert path.read_text() == f"key={MASKED} 2%\n"


def test_b6_a_million_characters_are_at_most_four_megabytes(tmp_path: Path) -> None:
    text = kept(tmp_path / "log", ("\U0001f600" * 1_000_100).encode())
    assert text == "\U0001f600" * 1_000_000 + "\n...(truncated at 1000000 characters)"
    assert len(text.encode()) < 4_000_100


def test_b6_one_huge_line_is_cut_at_the_cap_with_one_marker(tmp_path: Path) -> None:
    path = tmp_path / "log"
    capture = Capture(str(path), 100, [], fold_redraws=True)
    for n in range(300):
        capture.feed(f"{n:05}".encode())
    capture.write_live()
    assert json.loads(Path(f"{path}{LIVE_SUFFIX}").read_text())["tail"].endswith("0029800299")
    capture.finish()
    assert path.read_text().count("truncated") == 1


def test_the_tail_beyond_the_cap_is_the_last_16_kib_in_whole_characters(tmp_path: Path) -> None:
    capture = Capture(str(tmp_path / "log"), 1, [], fold_redraws=True)
    capture.feed(("é" * 50_000 + "!").encode())
    assert capture.tail.endswith("éé!")
    assert len(capture.tail.encode()) in (TAIL_BYTES - 1, TAIL_BYTES)
    capture.finish()


def test_binary_output_is_never_fatal(tmp_path: Path) -> None:
    data = bytes(range(256)) * 50
    text = kept(tmp_path / "log", data, [100, 3_333])
    assert "�" in text
    assert text == kept(tmp_path / "log", data)
