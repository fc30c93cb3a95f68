"""Query and caption: free text until the end, a stop string or the cap; with reasoning, two phases.

Source: engine_facts 1.2 (templates), 1.9 (decode loops). The reference suppresses answer_id on decode
steps only, so the very first token may be one.
"""

from __future__ import annotations

from typing import Any

from photon.detokenize import Detokenizer
from photon.model.config import TokenizerConfig
from photon.skills.base import Mask, TextEncoder, Token


class TextSkill:
    """Plain text after a prompt."""

    is_spatial = False

    def __init__(
        self,
        encoder: TextEncoder,
        ids: TokenizerConfig,
        prompt: list[Token],
        *,
        key: str,
        max_tokens: int,
        stop: tuple[str, ...] = (),
    ) -> None:
        self._prompt = prompt
        self._key = key
        self._eos_id = ids.eos_id
        self._text = Detokenizer(encoder, stop)
        self._started = False
        self.max_tokens = max_tokens
        self.finished = False

    def prompt(self) -> list[Token]:
        return self._prompt

    def mask(self) -> Mask:
        return Mask.TEXT if self._started else Mask.FIRST_TEXT

    def consume(self, token: Token) -> str:
        self._started = True
        if token.id == self._eos_id:
            self.finished = True
            return ""
        delta = self._text.push(token.id)
        self.finished = self._text.stopped
        return delta

    def close(self) -> str:
        return self._text.finish()

    def result(self) -> dict[str, Any]:
        return {self._key: self._text.text}


class ReasoningSkill:
    """Query that thinks first: grounded reasoning up to answer_id, then the answer.

    The reference samples answer_id, drops it and prefills a fresh one; feeding the sampled one is the
    same sequence. At the cap of the reasoning phase answer_id is forced.
    """

    is_spatial = True

    def __init__(
        self,
        encoder: TextEncoder,
        ids: TokenizerConfig,
        prompt: list[Token],
        *,
        max_tokens: int,
        stop: tuple[str, ...] = (),
    ) -> None:
        self._prompt = prompt
        self._ids = ids
        self._encoder = encoder
        self._cap = max_tokens
        self._thought: list[Token] = []
        self._answer: TextSkill | None = None
        self._stop = stop
        self.max_tokens = 2 * max_tokens + 1
        self.finished = False

    def prompt(self) -> list[Token]:
        return self._prompt

    def mask(self) -> Mask:
        if self._answer is not None:
            return self._answer.mask()
        if len(self._thought) == self._cap:
            return Mask.ANSWER
        return Mask.REASONING if self._thought else Mask.ANY

    def consume(self, token: Token) -> str:
        if self._answer is not None:
            delta = self._answer.consume(token)
            self.finished = self._answer.finished
            return delta
        if token.id == self._ids.answer_id:
            self.max_tokens = len(self._thought) + 1 + self._cap
            self._answer = TextSkill(
                self._encoder, self._ids, [], key="answer", max_tokens=self._cap, stop=self._stop
            )
        else:
            self._thought.append(token)
        return ""

    def close(self) -> str:
        return self._answer.close() if self._answer is not None else ""

    def result(self) -> dict[str, Any]:
        answer = self._answer.result() if self._answer is not None else {"answer": ""}
        return {"reasoning": grounded(self._thought, self._encoder, self._ids), **answer}


def grounded(tokens: list[Token], encoder: TextEncoder, ids: TokenizerConfig) -> dict[str, Any]:
    """Reasoning as text, and the points its phrases refer to.

    A phrase stands between start_ground_points_id and end_ground_id; its coordinates pair up to
    points. Indices are character offsets in the text; phrases with no whole point are left out.
    """
    text, start = "", 0
    grounding: list[dict[str, Any]] = []
    run: list[int] = []
    values: list[float] = []
    for token in tokens:
        if token.id == ids.coord_id:
            values.append(token.x)
        elif token.id in (ids.start_ground_points_id, ids.end_ground_id):
            text, run = text + encoder.decode(run), []
            points = list(zip(values[::2], values[1::2], strict=False))
            if token.id == ids.end_ground_id and points:
                grounding.append({"start_idx": start, "end_idx": len(text), "points": points})
            start, values = len(text), []
        else:
            run.append(token.id)
    return {"text": text + encoder.decode(run), "grounding": grounding}
