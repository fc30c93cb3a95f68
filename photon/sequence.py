"""Request (what the caller asked, immutable), Sequence (its state in the engine), SamplingParams."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from photon.errors import InvalidRequestError
from photon.model.config import TokenizerConfig
from photon.prefix_cache import PrefixKey
from photon.skills.base import Skill, TextEncoder, Token

SkillFactory = Callable[["SamplingParams", TextEncoder, TokenizerConfig], Skill]


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Request:
    """One question to the model.

    Attributes:
        skill: "query", "caption", "point" or "detect"; or a function that builds a skill of your own.
        image: PIL image, path, bytes, ndarray, EncodedImage; None for a query about no image.
        prompt: the question, or the object to look for; ignored by caption.
        length: "short", "normal" or "long"; caption only.
        reasoning: think before answering; query only.
        spatial_refs: points (x, y) or boxes (x_min, y_min, x_max, y_max), normalised; query and point.
        settings: temperature, top_p, max_tokens, max_objects, seed, stop, adapter.
    """

    skill: str | SkillFactory
    image: Any = None
    prompt: str = ""
    length: str = "normal"
    reasoning: bool = False
    spatial_refs: tuple[tuple[float, ...], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplingParams:
    """Checked settings of one request.

    temperature 0 is greedy. top_p keeps the most likely tokens whose mass before them is at most top_p
    (reference rule: the first always stays). Random numbers are a function of (seed, token index).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 768
    max_objects: int = 50
    seed: int = 0
    stop: tuple[str, ...] = ()
    adapter: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> SamplingParams:
        """Check a caller's settings. Numbers may come as strings.

        Raises:
            InvalidRequestError: an unknown name, or a value out of range; the sentence names it.
        """
        if not isinstance(settings, Mapping):
            raise InvalidRequestError("settings must be a mapping of names to values.")
        known = [f.name for f in fields(cls)]
        for name in settings:
            if name not in known:
                raise InvalidRequestError(f"There is no setting {name!r}; use {', '.join(known)}.")
        given = {name: value for name, value in settings.items() if value is not None}
        values: dict[str, Any] = {"seed": random.getrandbits(32)}
        for name, value in given.items():
            values[name] = _CHECKS[name](name, value)
        return cls(**values)


def _number(name: str, value: Any, low: float, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not low <= number <= high:
        raise InvalidRequestError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}.")
    return number


def _integer(name: str, value: Any, low: int, high: int) -> int:
    number = _number(name, value, low, high)
    if number != int(number):
        raise InvalidRequestError(f"{name} is {value!r}; it must be a whole number from {low} to {high}.")
    return int(number)


def _top_p(name: str, value: Any) -> float:
    number = _number(name, value, 0, 1)
    if number == 0:
        raise InvalidRequestError("top_p is 0; it must be above 0 and at most 1.")
    return number


def _stop(name: str, value: Any) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    ok = isinstance(texts, (tuple, list)) and len(texts) <= 16
    if not ok or not all(isinstance(text, str) and 0 < len(text) <= 256 for text in texts):
        raise InvalidRequestError("stop must be up to 16 strings of 1 to 256 characters.")
    return tuple(texts)


def _adapter(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError("adapter must be the name of a loaded adapter.")
    return value


_CHECKS: dict[str, Any] = {
    "temperature": lambda name, value: _number(name, value, 0, 10),
    "top_p": _top_p,
    "max_tokens": lambda name, value: _integer(name, value, 1, 1 << 20),
    "max_objects": lambda name, value: _integer(name, value, 1, 1000),
    "seed": lambda name, value: _integer(name, value, 0, (1 << 53) - 1),
    "stop": _stop,
    "adapter": _adapter,
}


class Sequence:
    """State of one request between submit and release. Only the engine's thread touches it.

    Positions: the prefix (image or BOS) and the prompt fill 0..P-1 and yield token 0; the decode that
    feeds token k writes position P + k and yields token k + 1.
    """

    def __init__(self, request_id: int, skill: Skill, params: SamplingParams, prefix: int) -> None:
        self.request_id = request_id
        self.skill = skill
        self.params = params
        self.prefix = prefix
        """KV positions before the prompt: BOS, or BOS and the image."""
        self.prompt = skill.prompt()
        self.last_prompt_position = prefix + len(self.prompt) - 1
        """KV position; the decode that feeds token k writes k + 1 behind it."""
        self.pixels: Any = None
        """Crops, uint8 (N, S, S, 3), kept until release because a preempted sequence needs them again."""
        self.tiling: tuple[int, int] | None = None
        self.image_key: bytes | None = None
        """Content hash of the image; None = no image, or one that is not cached."""
        self.num_cached = 0
        """KV positions that its last prefill took from the prefix cache: all of the prefix, or none."""
        self.tail_page = 0
        """Then, the page that holds the prefix's last positions, if they do not fill one."""
        self.adapter_id: int | None = None
        self.tokens: list[Token] = []
        """Committed tokens, the end token left out."""
        self.num_launched = 0
        """Tokens whose forward has been launched, committed ones included."""
        self.inflight_refs = 0
        self.batch_idx = 0
        self.lora_slot = 0
        self.pages: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.num_preemptions = 0
        self.first_step_id = self.last_step_id = -1
        """The first and the last step that was launched with it; -1 before."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def max_tokens(self) -> int:
        """Tokens at most, as the skill sees it now."""
        return self.skill.max_tokens

    @property
    def is_resident(self) -> bool:
        """Holds a batch_idx, and with it pages."""
        return self.batch_idx != 0

    @property
    def has_image(self) -> bool:
        return self.tiling is not None

    @property
    def prefix_key(self) -> PrefixKey | None:
        """What the keys and values of its image prefix depend on; None where they are not cached."""
        return None if self.image_key is None else (self.image_key, self.adapter_id)

    @property
    def computes_image(self) -> bool:
        """Its last prefill runs the vision encoder."""
        return self.has_image and not self.num_cached

    @property
    def prefill_tokens(self) -> list[Token]:
        """What the next prefill feeds after the prefix: the prompt, and what was generated before."""
        return self.prompt + self.tokens

    @property
    def num_prefill_positions(self) -> int:
        return self.last_prompt_position + 1 + len(self.tokens)

    @property
    def next_position(self) -> int:
        """The KV position that the next decode writes."""
        return self.last_prompt_position + self.num_launched

    @property
    def max_positions(self) -> int:
        """KV positions at the worst: the last token is never fed."""
        return self.prefix + len(self.prompt) + self.max_tokens - 1


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) from (seed, token index) alone (I17): splitmix64, top 24 bits, exact in float32."""
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return ((z ^ (z >> 31)) >> 40) / (1 << 24)
