"""Text <-> token ids, over the `tokenizers` library.

Ids of control tokens come from prompt templates only. Text typed by a user never becomes one: the
library is told to encode the *spelling* of a special token, and what slips through is refused.

All Moondream tokenizers are byte-level: every token is a run of bytes, whatever stands around it. So
decoding is concatenation, and a stream of tokens is a stream of bytes (see `photon/detokenize.py`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from photon.errors import CheckpointError, InvalidRequestError

_SAMPLE = "two cats, «naïve»\n日本語 🙂"


class Tokenizer:
    """One tokenizer.json. Thread-safe: nothing changes after construction."""

    def __init__(self, path: str | Path) -> None:
        """Read the file; CheckpointError if it is missing, damaged or not byte-level."""
        self._inner = _read(Path(path))
        self._inner.encode_special_tokens = True
        added = self._inner.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._byte_of = _byte_alphabet()
        self._bytes: dict[int, bytes] = {}
        self._check_byte_level(Path(path).name)

    @property
    def vocab_size(self) -> int:
        """Highest id + 1; the model's embedding table may be larger, never smaller."""
        return max(self._inner.get_vocab().values()) + 1

    def has_token(self, token: str) -> bool:
        """Whether this exact string is one token."""
        return self._inner.token_to_id(token) is not None

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as plain text: no token is added, no control token can result.

        Raises:
            InvalidRequestError: the text has lone surrogates, or a part that only a control token spells.
        """
        ids = self._inner.encode(_checked(text), add_special_tokens=False).ids
        if not self._special.isdisjoint(ids):
            raise InvalidRequestError(
                "The prompt contains the spelling of a control token; remove the text between '<|' and '|>'."
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; control tokens and unknown ids are skipped, invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; empty for control tokens and ids the tokenizer does not have."""
        known = self._bytes.get(token_id)
        return self._spell(token_id) if known is None else known

    def _spell(self, token_id: int) -> bytes:
        """`token_bytes` of an id that is asked for the first time: once in a process, not once a token."""
        spelled = self._bytes[token_id] = b"" if token_id in self._special else self._bytes_of(token_id)
        return spelled

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._inner.id_to_token(token_id) or ""
        try:
            return bytes([self._byte_of[char] for char in token])
        except KeyError:  # an added token is kept as it is written, outside the byte alphabet
            return token.encode()

    def _check_byte_level(self, name: str) -> None:
        ids = self._inner.encode(_SAMPLE, add_special_tokens=False).ids
        if self.decode(ids) != _SAMPLE or self._inner.decode(ids) != _SAMPLE:
            raise CheckpointError(
                f"{name} is not a byte-level tokenizer, but Moondream's is; "
                "use the tokenizer.json that belongs to the model."
            )


def unknown_words(text: str, vocabulary: Iterable[str]) -> list[str]:
    """Words of `text` that the vocabulary lacks, as typed, in order, each once.

    For models that speak a small language. Case is ignored, punctuation separates words; an apostrophe
    inside a word belongs to it ("what's").
    """
    known = {word.casefold() for word in vocabulary}
    spaced = "".join(" " if _is_separator(char) else char for char in text)
    found: dict[str, str] = {}
    for word in (part.strip("'’") for part in spaced.split()):
        if word and word.casefold() not in known:
            found.setdefault(word.casefold(), word)
    return list(found.values())


def _is_separator(char: str) -> bool:
    return char not in "'’" and unicodedata.category(char).startswith(("P", "Z", "C"))


def _checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "The prompt contains half of a surrogate pair, which is no character; paste the text again."
        ) from None
    return text


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read as a tokenizer ({_reason(error)}); "
            "put the model's tokenizer.json beside its weights."
        ) from error
    if content.startswith("version https://git-lfs"):
        raise CheckpointError(
            f"{path.name} is a Git LFS pointer, not the tokenizer; run `git lfs pull` to get it."
        )
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path.name} is not a tokenizer file of the tokenizers library; download it again."
        ) from error


def _reason(error: Exception) -> str:
    return error.strerror or "unreadable" if isinstance(error, OSError) else "not UTF-8"


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted
