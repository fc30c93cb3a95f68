"""Token ids -> text to stream, one token at a time.

    token bytes ──> UTF-8 decoder ──────────> held text ───────────────> emitted text
                    keeps an unfinished       keeps what may become      never taken back
                    character back            a stop string

Byte-level tokens are runs of bytes, so a stream of tokens is a stream of bytes and nothing is ever decoded
twice. By construction: emitted pieces joined = the text of all ids, cut where the first stop string is
complete; U+FFFD is emitted only for bytes that no later byte can repair.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from photon.errors import InvalidRequestError


class TokenBytes(Protocol):
    """All a detokeniser needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token, whatever stands around it; empty for control tokens."""


class Detokenizer:
    """The text of one request. One thread at a time."""

    def __init__(self, tokenizer: TokenBytes, stop: tuple[str, ...] = ()) -> None:
        """InvalidRequestError if a stop string is empty: it would end every answer before it begins."""
        if "" in stop:
            raise InvalidRequestError("A stop string is empty; leave it out or write at least one character.")
        self._tokenizer = tokenizer
        self._stop = stop
        self._bytes = b""  # of a character that is not complete
        self._held = ""
        self._pieces: list[str] = []
        self._finished = False
        self.stopped = False
        """A stop string is complete; it and what follows are not part of the text."""

    @property
    def text(self) -> str:
        """All that was emitted; after `finish`, or once stopped, the whole final text."""
        return "".join(self._pieces)

    def push(self, token_id: int) -> str:
        """Take one token, return what can be shown now. After a stop: nothing more, always ''."""
        assert not self._finished, "push after finish"
        data = self._bytes + self._tokenizer.token_bytes(token_id)
        text, num_used = codecs.utf_8_decode(data, "replace", False)  # whole characters only
        self._bytes = data[num_used:]
        if self._bytes[:1] == b"\xed" and self._bytes[1:] >= b"\xa0":  # half a surrogate; the codec waits on
            text, self._bytes = text + self._bytes.decode("utf-8", "replace"), b""
        return self._take(text)

    def finish(self) -> str:
        """No more tokens: return the remaining text. Later calls return ''."""
        self._finished = True
        remaining, self._bytes = self._take(self._bytes.decode("utf-8", "replace")), b""
        if self.stopped:
            return remaining
        return remaining + self._emit(len(self._held))

    def _take(self, text: str) -> str:
        if not self._stop:  # nothing is ever held back
            if text:
                self._pieces.append(text)
            return text
        if self.stopped:
            return ""
        self._held += text
        cut = self._first_stop()
        if cut is None:
            return self._emit(len(self._held) - self._possible_stop())
        self.stopped = True
        return self._emit(cut)

    def _first_stop(self) -> int | None:
        """Where to cut the held text: the start of the stop string that is complete first, so that the
        result does not depend on where tokens end. Nothing emitted can be part of one."""
        starts = [(start + len(stop), start) for stop in self._stop if (start := self._held.find(stop)) >= 0]
        return min(starts)[1] if starts else None

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop)) - 1)
        tails = (self._held[-length:] for length in range(longest, 0, -1))
        return next((len(tail) for tail in tails if any(stop.startswith(tail) for stop in self._stop)), 0)

    def _emit(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        if piece:
            self._pieces.append(piece)
        return piece
