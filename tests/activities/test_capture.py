"""How a stream's bytes become the text that is kept."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.capture import MASKED, Capture, Mask

SMALL = st.text(alphabet="abX", max_size=30)


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(SMALL, st.lists(st.text(alphabet="abX", min_size=1, max_size=5)), st.lists(st.integers(0)))
def test_masking_does_not_depend_on_where_the_text_is_cut(
    text: str, secrets: list[str], cuts: list[int]
) -> None:
    mask = Mask(secrets)
    masked = "".join(map(mask.feed, in_pieces(text, cuts))) + mask.finish()
    longest_first = sorted(secrets, key=len, reverse=True)
    expected = re.sub("|".join(map(re.escape, longest_first)), MASKED, text) if secrets else text
    assert masked == expected


@given(st.text(alphabet="abcdX", max_size=40), st.lists(st.integers(0)))
def test_no_secret_is_left_in_the_masked_text(text: str, cuts: list[int]) -> None:
    mask = Mask(["aXb", "Xbc", "dd"])
    masked = "".join(map(mask.feed, in_pieces(text, cuts))) + mask.finish()
    assert not any(secret in masked for secret in ("aXb", "Xbc", "dd"))


def test_what_cannot_become_a_secret_is_not_held_back() -> None:
    mask = Mask(["password"])
    assert mask.feed("progress: 10 %\n") == "progress: 10 %\n"
    assert mask.feed("my pass") == "my "
    assert mask.feed("port\n") == "passport\n"


@given(st.binary(max_size=60), st.lists(st.integers(0)), st.integers(0, 20))
def test_a_file_holds_the_first_characters_and_one_marker(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cuts: list[int], limit: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "stream"
    capture = Capture(str(path), limit, [])
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    for start, end in itertools.pairwise(places):
        capture.feed(data[start:end])
    capture.finish()

    text = data.decode("utf-8", "replace")
    kept = path.read_bytes().decode("utf-8")
    assert capture.chars == len(text)
    if len(text) <= limit:
        assert kept == text
    else:
        assert kept == text[:limit] + f"\n...(truncated at {limit} characters)"


def test_a_full_disk_costs_text_but_raises_nothing(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    capture = Capture(str(tmp_path / "log"), 100, [])
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), capture._file)
    capture.feed(b"lost\n")
    capture.finish()
    assert capture.error == "No space left on device"
    assert capture.chars == 5


def test_c51_a_link_in_the_files_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "keep"
    outside.write_text("precious")
    log = tmp_path / "stdout.log"
    log.symlink_to(outside)
    capture = Capture(str(log), 100, [])
    capture.feed(b"printed")
    capture.finish()
    assert outside.read_text() == "precious"
    assert not log.is_symlink()
    assert log.read_text() == "printed"


def test_c51_a_link_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "stdout.log").write_text("precious")
    (tmp_path / "b.1").symlink_to(outside)
    with pytest.raises(OSError, match=r"stdout\.log"):
        Capture(str(tmp_path / "b.1" / "stdout.log"), 100, [])
    assert (outside / "stdout.log").read_text() == "precious"
