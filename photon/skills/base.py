"""Skills: what a request asks for, as a grammar over typed tokens.

A skill builds the prompt, says before each token which ids are allowed, consumes each committed token
exactly once and in order, and turns the tokens into a result. It lives on the host, belongs to one
request, knows nothing of batches or steps, and may raise: only its own request fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from photon.model.config import TokenizerConfig


class Token(NamedTuple):
    """A token id, with its value when it is a coordinate (x) or a size (x = width, y = height)."""

    id: int
    x: float = 0.0
    y: float = 0.0


class Mask(IntEnum):
    """Index of a row in the device's mask table. The table is built once; a step uploads only indices."""

    ANY = 0
    TEXT = 1
    """Text: no coordinate or size, and not answer_id, which would start the answer a second time."""
    OBJECT_OR_END = 2
    COORD = 3
    SIZE = 4
    REASONING = 5
    """All but the end and sizes: reasoning ends with answer_id."""
    ANSWER = 6
    """Exactly answer_id."""
    FIRST_TEXT = 7
    """No coordinate or size: a step of text rows runs no region heads, so such a token would be embedded
    as a value beside a spatial row and as text without one (I12)."""
    UNENDING = 8
    """Text that cannot end: for rows of a fixed length."""
    END = 9
    """Exactly eos_id."""


@dataclass(frozen=True)
class TokenMask:
    """Allowed ids: a whitelist, or everything but a blacklist."""

    allowed: tuple[int, ...] | None = None
    suppressed: tuple[int, ...] = ()


def token_masks(ids: TokenizerConfig) -> tuple[TokenMask, ...]:
    """The mask table's rows in the order of `Mask`."""
    rows = {
        Mask.ANY: TokenMask(),
        Mask.TEXT: TokenMask(suppressed=(ids.answer_id, ids.coord_id, ids.size_id)),
        Mask.OBJECT_OR_END: TokenMask(allowed=(ids.coord_id, ids.eos_id)),
        Mask.COORD: TokenMask(allowed=(ids.coord_id,)),
        Mask.SIZE: TokenMask(allowed=(ids.size_id,)),
        Mask.REASONING: TokenMask(suppressed=(ids.eos_id, ids.size_id)),
        Mask.ANSWER: TokenMask(allowed=(ids.answer_id,)),
        Mask.FIRST_TEXT: TokenMask(suppressed=(ids.coord_id, ids.size_id)),
        Mask.UNENDING: TokenMask(suppressed=(ids.eos_id, ids.answer_id, ids.coord_id, ids.size_id)),
        Mask.END: TokenMask(allowed=(ids.eos_id,)),
    }
    return tuple(rows[mask] for mask in Mask)


class TextEncoder(Protocol):
    """What a skill needs of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class Skill(Protocol):
    """The grammar and the result of one request."""

    is_spatial: bool
    """True when coordinates or sizes may occur, so that the step must run the region heads."""
    max_tokens: int
    """More tokens than this are never launched. May fall as tokens are consumed, not below what a step in
    flight already holds: one more than consumed."""

    def prompt(self) -> list[Token]:
        """Tokens after the image (or after BOS when there is none)."""

    def mask(self) -> Mask:
        """What the next token may be, given all tokens consumed so far."""

    def consume(self, token: Token) -> str:
        """Take the next token; return the text to stream now ("" for none)."""

    @property
    def finished(self) -> bool:
        """The token just consumed ended the answer; never consumed from again."""

    def close(self) -> str:
        """No more tokens will come (end, length, cancel): return the text still withheld."""

    def result(self) -> dict[str, Any]:
        """The answer as far as it goes; callable at any time."""
