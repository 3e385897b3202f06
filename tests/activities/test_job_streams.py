"""What a job has printed, as it is read from its files, whatever the job does to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.capture import TAIL_BYTES, Capture
from activities.job_streams import Stream
from perdure.core.job_output import CAP_CHARACTERS, Committed


@given(st.lists(st.text(alphabet="aé€\U0001f600\n", max_size=30), max_size=8), st.integers(4, 40))
def test_pieces_of_any_size_come_to_the_whole(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], limit_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "growing"
    path.write_bytes(b"")
    stream, committed, printed = Stream(path, 7), Committed(), "1234567"
    committed.take(0, printed)

    def hand_on() -> None:
        piece = stream.waiting(limit_bytes)
        committed.take(stream.handed_on, piece.text)
        stream.hand_on(piece)

    for text in texts:
        with path.open("ab") as file:
            file.write(text.encode())
        printed += text
        assert stream.look() == bool(text)
        hand_on()
        begins, newest = stream.newest()
        assert committed.text() + newest == printed
        assert begins == stream.handed_on
    while stream.waiting_bytes:
        hand_on()
    stream.close()
    assert committed.text() == printed


def test_a_character_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    euro = "€".encode()
    path.write_bytes(b"a" + euro[:2])
    stream = Stream(path, 0)
    assert stream.look()
    assert stream.newest() == (0, "a")
    with path.open("ab") as file:
        file.write(euro[2:])
    assert stream.look()
    assert stream.newest() == (0, "a€")
    stream.close()


def test_the_newest_is_at_most_16_kib_in_whole_characters(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("é" * 20_000 + "!")
    stream = Stream(tmp_path / "log", 100)
    stream.look()
    begins, text = stream.newest()
    assert text.endswith("é!")
    assert len(text.encode()) in (TAIL_BYTES - 1, TAIL_BYTES)
    assert begins == 100 + 20_001 - len(text)
    stream.close()


def test_beyond_the_cap_nothing_waits_any_more(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 100)
    stream = Stream(tmp_path / "log", CAP_CHARACTERS - 10)
    stream.look()
    assert stream.waiting_bytes == 100
    stream.hand_on(stream.waiting(50))
    assert stream.waiting_bytes == 0, "what was handed on makes the marker"
    stream.close()


def test_what_is_redrawn_is_seen_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    capture = Capture(str(path), 3, [], fold_redraws=True)
    capture.feed(b"one, two\nthree\n\r 1%\r 2%")
    capture.write_live()
    stream = Stream(path, 0)
    assert stream.look()
    assert (stream.live, stream.tail) == (" 2%", ", two\nthree\n")
    assert not stream.look()
    capture.finish()
    stream.close()


def test_c51_no_link_no_pipe_and_no_nonsense_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"live": "precious", "tail": ""}')
    for name in ("log", "log.live"):
        (tmp_path / name).symlink_to(tmp_path / "secret")
    stream = Stream(tmp_path / "log", 0)
    assert not stream.look()
    for name in ("log", "log.live"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    assert not stream.look()
    for content in (b"{", b"[]", b'{"live": 1}', b"\xff", b"[" * 100_000):
        (tmp_path / "log.live").unlink()
        (tmp_path / "log.live").write_bytes(content)
        stream.look()
        assert stream.live in ("", "1")
    stream.close()


def test_a_file_that_the_job_cuts_off_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("x" * 1000)
    stream = Stream(path, 0)
    stream.look()
    os.truncate(path, 0)
    piece = stream.waiting(100)
    assert piece.text == ""
    stream.hand_on(piece)
    assert stream.waiting_bytes == 0
    assert stream.newest() == (1000, "")
    stream.close()
