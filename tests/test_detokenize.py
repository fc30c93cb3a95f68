"""Streamed pieces join to the final text, whatever the bytes, tokens and stop strings are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from photon.detokenize import Detokenizer
from photon.errors import InvalidRequestError
from photon.model.tokenizer import Tokenizer

TOKENIZER = Tokenizer(Path(__file__).parent / "data" / "golden" / "tokenizer.json")
BYTES = {TOKENIZER.token_bytes(i): i for i in range(390) if len(TOKENIZER.token_bytes(i)) == 1}

any_ids = st.lists(st.integers(0, 511), max_size=40)
high_bytes = st.sampled_from([BYTES[bytes([b])] for b in (*range(0x80, 0xC3), *range(0xE0, 0x100))])
broken_ids = st.lists(high_bytes | st.integers(0, 400), max_size=40)
text_ids = st.text(alphabet="ab\n é日😀\ufffd", max_size=20).map(
    lambda text: [BYTES[bytes([b])] for b in text.encode()]
)
ids_of_any_kind = any_ids | broken_ids | text_ids
stops = st.lists(st.text(alphabet="abqu é日😀\ufffd", min_size=1, max_size=4), max_size=3).map(tuple)


def stream(ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], Detokenizer]:
    """Pieces of every push and of finish; the engine stops pushing once stopped."""
    detokenizer = Detokenizer(TOKENIZER, stop)
    pieces = []
    for token_id in ids:
        pieces.append(detokenizer.push(token_id))
        if detokenizer.stopped:
            break
    return [*pieces, detokenizer.finish()], detokenizer


def cut_at_first_stop(text: str, stop: tuple[str, ...]) -> str:
    """By the definition: read character by character until some stop string is complete."""
    for end in range(1, len(text) + 1):
        found = [end - len(s) for s in stop if text[:end].endswith(s)]
        if found:
            return text[: min(found)]
    return text


def spelled(text: str) -> list[int]:
    return [BYTES[bytes([byte])] for byte in text.encode()]


@given(ids_of_any_kind, stops)
def test_pieces_join_to_the_text_cut_at_the_first_stop(ids: list[int], stop: tuple[str, ...]) -> None:
    pieces, detokenizer = stream(ids, stop)
    assert "".join(pieces) == detokenizer.text == cut_at_first_stop(TOKENIZER.decode(ids), stop)


@given(ids_of_any_kind, stops)
def test_stopped_says_whether_a_stop_string_was_completed(ids: list[int], stop: tuple[str, ...]) -> None:
    _, detokenizer = stream(ids, stop)
    assert detokenizer.stopped == any(s in TOKENIZER.decode(ids) for s in stop)


@given(ids_of_any_kind)
def test_every_partial_is_a_prefix_of_the_final_text(ids: list[int]) -> None:
    """user_reports 17."""
    pieces, detokenizer = stream(ids)
    shown = ["".join(pieces[:n]) for n in range(len(pieces) + 1)]
    assert all(TOKENIZER.decode(ids).startswith(partial) for partial in shown)
    assert detokenizer.text == TOKENIZER.decode(ids)


@given(ids_of_any_kind)
@example([179, 104])  # ED A1 begins no character, though Python's incremental decoder waits for more
def test_only_an_unfinished_character_is_withheld(ids: list[int]) -> None:
    """user_reports 17."""
    detokenizer = Detokenizer(TOKENIZER)
    for count, token_id in enumerate(ids, 1):
        detokenizer.push(token_id)
        whole = TOKENIZER.decode(ids[:count])
        assert detokenizer.text in (whole, whole.removesuffix("\ufffd"))


@given(ids_of_any_kind, st.integers(0, 40))
def test_a_text_cut_at_any_length_streams_as_it_decodes(ids: list[int], limit: int) -> None:
    assert "".join(stream(ids[:limit])[0]) == TOKENIZER.decode(ids[:limit])


def test_an_emoji_split_over_tokens_appears_whole() -> None:
    pieces, _ = stream(spelled("a😀b中c"))
    assert [piece for piece in pieces if piece] == ["a", "😀", "b", "中", "c"]


def test_a_possible_stop_string_is_withheld_until_decided() -> None:
    """pipeline_bugs 5."""
    stopped, _ = stream(spelled("DEFGHIJ"), ("DEFGHIJ",))
    assert "".join(stopped) == ""
    passed, _ = stream(spelled("DEFGHIX"), ("DEFGHIJ",))
    assert passed == ["", "", "", "", "", "", "DEFGHIX", ""]


def test_a_withheld_start_is_released_at_the_end() -> None:
    pieces, detokenizer = stream(spelled("abDEF"), ("DEFGHIJ",))
    assert pieces[-1] == "DEF"
    assert not detokenizer.stopped


def test_overlapping_starts_of_a_stop_string_are_found() -> None:
    pieces, detokenizer = stream(spelled("aaab!"), ("aab",))
    assert "".join(pieces) == "a"
    assert detokenizer.stopped


def test_nothing_follows_a_stop() -> None:
    detokenizer = Detokenizer(TOKENIZER, ("b",))
    assert [detokenizer.push(token_id) for token_id in spelled("abc")] == ["a", "", ""]
    assert detokenizer.finish() == ""
    assert detokenizer.text == "a"


def test_finish_may_be_called_again() -> None:
    detokenizer = Detokenizer(TOKENIZER)
    detokenizer.push(spelled("é")[0])
    assert [detokenizer.finish(), detokenizer.finish()] == ["\ufffd", ""]


def test_an_unfinished_character_at_the_end_may_complete_a_stop_string() -> None:
    pieces, detokenizer = stream(spelled("a😀")[:-1], ("\ufffd",))
    assert "".join(pieces) == "a"
    assert detokenizer.stopped


def test_control_tokens_show_nothing() -> None:
    pieces, _ = stream([0, *spelled("é")[:1], 5, *spelled("é")[1:], 3])
    assert "".join(pieces) == "é"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="stop string is empty"):
        Detokenizer(TOKENIZER, ("end", ""))
