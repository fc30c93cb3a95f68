"""Admission: from a caller's request to a sequence, or to one sentence why not.

Runs on the caller's thread, so that decoding an image or refusing a prompt never holds up a step.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from photon.errors import ImageError, InvalidRequestError
from photon.images import load_image
from photon.model.config import ModelConfig
from photon.model.crops import prepare_crops
from photon.model.tokenizer import unknown_words
from photon.model.weights import Model
from photon.scheduler import Scheduler
from photon.sequence import Request, SamplingParams, Sequence
from photon.skills.build import build


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """An image decoded and cut into crops once, for several questions.

    pixels: uint8 (N, S, S, 3), the whole image first; tiling: rows and columns of the crops after it.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    tiling: tuple[int, int]
    width: int
    height: int


class Admission:
    """Checks requests and numbers them. Thread-safe."""

    def __init__(self, model: Model, scheduler: Scheduler, *, max_crops: int) -> None:
        self._model = model
        self._max_crops = max_crops
        self._scheduler = scheduler
        self._request_ids = itertools.count(1)
        self._adapter_numbers = itertools.count(1)
        self.adapter_ids: dict[str, int] = {}
        """Loaded adapters by name; a name loaded again gets a new id."""

    def new_adapter_id(self) -> int:
        return next(self._adapter_numbers)

    def encode_image(self, image: Any) -> EncodedImage:
        """Decode and crop. Raises ImageError."""
        if isinstance(image, EncodedImage):
            return self._checked(image)
        decoded = load_image(image)
        crops = prepare_crops(decoded, self._model.config.vision)
        if len(crops.pixels) > self._max_crops:
            width, height = decoded.size
            raise ImageError(f"An image of {width} x {height} px is too long and narrow; crop it first.")
        return EncodedImage(crops.pixels, crops.tiling, *decoded.size)

    def _checked(self, image: EncodedImage) -> EncodedImage:
        side = self._model.config.vision.crop_size
        if image.pixels.shape[1:] != (side, side, 3) or len(image.pixels) > self._max_crops:
            raise ImageError("The image was encoded for another model; give the picture itself.")
        return image

    def prepare(self, request: Request) -> Sequence:
        """The request as a waiting sequence.

        Raises:
            InvalidRequestError: whatever is wrong with it, in one sentence.
        """
        if not isinstance(request.prompt, str):
            raise InvalidRequestError("The prompt must be text.")
        params = SamplingParams.from_settings(request.settings)
        request = in_vocabulary(request, self._model.config)
        skill = build(request, params, self._model.tokenizer, self._model.config.tokenizer)
        if params.adapter is not None and params.adapter not in self.adapter_ids:
            known = ", ".join(self.adapter_ids) or "none is"
            raise InvalidRequestError(f"There is no adapter {params.adapter!r}; loaded: {known}.")
        has_image = request.image is not None
        prefix = self._model.config.text.prefix_attn if has_image else 1
        sequence = Sequence(next(self._request_ids), skill, params, prefix)
        sequence.adapter_id = None if params.adapter is None else self.adapter_ids[params.adapter]
        check_sequence(sequence, self._model.config)
        if reason := self._scheduler.never_fits(sequence):
            raise InvalidRequestError(reason)
        if has_image:
            encoded = self.encode_image(request.image)
            sequence.pixels, sequence.tiling = encoded.pixels, encoded.tiling
        return sequence


def in_vocabulary(request: Request, config: ModelConfig) -> Request:
    """The request as a model of few words has learned to read it: in lower case.

    Raises InvalidRequestError for words it has never seen, instead of answering noise.
    """
    if not config.vocabulary or request.skill == "caption" or not isinstance(request.prompt, str):
        return request
    if unknown := unknown_words(request.prompt, config.vocabulary):
        words = ", ".join(repr(word) for word in unknown[:5])
        raise InvalidRequestError(f"The model {config.name} does not know {words}. {config.limits}".strip())
    return replace(request, prompt=request.prompt.lower())


def check_sequence(sequence: Sequence, config: ModelConfig) -> None:
    """Refuse what a caller's own skill could ask for that would end the engine and not the request."""
    size = config.text.vocab_size
    if not all(0 <= token.id < size for token in sequence.prompt):
        raise InvalidRequestError(f"The skill's prompt has ids outside the model's vocabulary of {size}.")
    if not sequence.prompt or sequence.max_tokens < 1:
        raise InvalidRequestError("A skill needs a prompt and at least one token to answer with.")
