"""Point and detect: (x, y[, size])* and then the end, as typed tokens.

Source: engine_facts 1.9 (decode loops) and 2 (grammar). Two tokens a point, three a box; whether another
object follows is decided between coord_id and eos_id only.
"""

from __future__ import annotations

from typing import Any

from photon.model.config import TokenizerConfig
from photon.skills.base import Mask, Token


class SpatialSkill:
    """The grammar both skills share; `fields` are the masks of one object's tokens."""

    is_spatial = True
    fields: tuple[Mask, ...]

    def __init__(
        self, ids: TokenizerConfig, prompt: list[Token], *, max_objects: int, max_tokens: int
    ) -> None:
        self._prompt = prompt
        self._eos_id = ids.eos_id
        self._values: list[Token] = []
        self.finished = False
        # One more than the objects need: the last token tells whether there was yet another object.
        self.max_tokens = min(len(self.fields) * max_objects + 1, max_tokens)

    def prompt(self) -> list[Token]:
        return self._prompt

    def mask(self) -> Mask:
        return self.fields[len(self._values) % len(self.fields)]

    def consume(self, token: Token) -> str:
        if token.id == self._eos_id:
            self.finished = True
        else:
            self._values.append(token)
        return ""

    def close(self) -> str:
        return ""

    def _objects(self) -> list[tuple[Token, ...]]:
        """Complete objects; a dangling coordinate is dropped."""
        width = len(self.fields)
        whole = len(self._values) - len(self._values) % width
        return [tuple(self._values[i : i + width]) for i in range(0, whole, width)]


class PointSkill(SpatialSkill):
    """Centres of all objects that match a phrase. "gaze", with a person's head as spatial reference, is
    where that person looks.
    """

    fields = (Mask.OBJECT_OR_END, Mask.COORD)

    def result(self) -> dict[str, Any]:
        return {"points": [{"x": x.x, "y": y.x} for x, y in self._objects()]}


class DetectSkill(SpatialSkill):
    """Boxes of all objects that match a phrase; raw, so they may reach over the image's edge."""

    fields = (Mask.OBJECT_OR_END, Mask.COORD, Mask.SIZE)

    def result(self) -> dict[str, Any]:
        return {"objects": [_box(x.x, y.x, size.x, size.y) for x, y, size in self._objects()]}


def _box(x: float, y: float, width: float, height: float) -> dict[str, float]:
    return {
        "x_min": x - width / 2,
        "y_min": y - height / 2,
        "x_max": x + width / 2,
        "y_max": y + height / 2,
    }
