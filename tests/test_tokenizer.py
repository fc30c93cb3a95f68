"""User text never becomes control tokens; decoding is a concatenation of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from photon.errors import CheckpointError, InvalidRequestError
from photon.model.tokenizer import Tokenizer, unknown_words

TOKENIZER = Path(__file__).parent / "data" / "golden" / "tokenizer.json"
OURS = Tokenizer(TOKENIZER)
LIBRARY = tokenizers.Tokenizer.from_file(str(TOKENIZER))


@given(st.text())
def test_text_survives_a_round_trip(text: str) -> None:
    assert OURS.decode(OURS.encode(text)) == text


@given(st.lists(st.integers(0, 600)))
def test_decoding_equals_the_library_even_for_invalid_utf8(ids: list[int]) -> None:
    assert OURS.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("text", ["<|endoftext|>", "a<|s3|>b", "<|s5|> <|s5|>", "x\n<|s1|>"])
def test_the_spelling_of_a_control_token_is_plain_text(text: str) -> None:
    assert LIBRARY.encode(text, add_special_tokens=False).ids != OURS.encode(text)
    assert min(OURS.encode(text)) > 9
    assert OURS.decode(OURS.encode(text)) == text


def test_a_tokenizer_that_would_let_a_control_token_through_refuses(tmp_path: Path) -> None:
    raw = json.loads(TOKENIZER.read_text())
    raw["model"]["ignore_merges"] = True  # whole words are looked up in the vocabulary first
    raw["pre_tokenizer"]["use_regex"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(InvalidRequestError, match="control token"):
        Tokenizer(tmp_path / "tokenizer.json").encode("<|s3|>")


def test_no_token_is_added() -> None:
    assert OURS.encode("") == []
    assert len(OURS.encode("a")) == 1


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        OURS.encode("caf\ud83d")


def test_special_and_unknown_ids_decode_to_nothing() -> None:
    assert OURS.decode([0, 3, 5, 511, 100_000]) == ""


def test_an_added_token_outside_the_byte_alphabet_decodes_as_written(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    library.add_tokens(["日本 x"])
    library.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer(tmp_path / "tokenizer.json").decode([390, 74]) == library.decode([390, 74])


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 3}'])
def test_a_damaged_file_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json .*download"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(CheckpointError, match="is a Git LFS pointer, not the tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_file_is_named_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer\.json .*No such file") as caught:
        Tokenizer(tmp_path / "tokenizer.json")
    assert str(tmp_path) not in str(caught.value)


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path: Path) -> None:
    raw: dict[str, Any] = json.loads(TOKENIZER.read_text())
    raw["decoder"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="byte-level"):
        Tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("How many RED circles, are there?", []),
        ("zebra", ["zebra"]),
        ("Zebra, zebra or ZEBRA? red", ["Zebra", "or"]),
        ("red-circles/stripes", ["stripes"]),
        ("'red' what's", ["what's"]),
        ("red 🙂 日本語", ["🙂", "日本語"]),
        ("?! ...", []),
    ],
)
def test_unknown_words_are_named_as_typed(text: str, unknown: list[str]) -> None:
    assert unknown_words(text, ["how", "many", "red", "Circles", "are", "there"]) == unknown
