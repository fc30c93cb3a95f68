"""Admission: from a caller's request to a sequence, or to one sentence why not.

Runs on the caller's thread, so that decoding an image or refusing a prompt never holds up a step.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from photon.errors import ImageError, InvalidRequestError
from photon.images import load_image
from photon.model.config import ModelConfig
from photon.model.crops import prepare_crops
from photon.model.tokenizer import unknown_words
from photon.model.weights import Model
from photon.scheduler import Scheduler
from photon.sequence import Request, SamplingParams, Sequence
from photon.skills.build import build

MAX_ENCODED_BYTES = 256 << 20
"""Crops that are kept for the next question about the same image."""
MAX_FILES = 4096
"""Encoded files that are known by their bytes, so that they are not even decoded again."""

MAX_CHARS_PER_POSITION = 32
"""More characters than prompts have per token, runs of spaces aside."""


@dataclass(frozen=True, eq=False)
class EncodedImage:
    """An image decoded and cut into crops once, for several questions.

    pixels: uint8 (N, S, S, 3), the whole image first; tiling: rows and columns of the crops after it.
    key: hash of what the crops were cut from, and how; None: nothing computed from it is kept.
    """

    pixels: np.ndarray[Any, np.dtype[np.uint8]]
    tiling: tuple[int, int]
    width: int
    height: int
    key: bytes | None = None


class _EncodedImages:
    """The images encoded last, up to `max_bytes` of crops: by key, or by the hash of a file that holds
    the same pixels. Thread-safe.
    """

    def __init__(self, max_bytes: int = MAX_ENCODED_BYTES) -> None:
        self._lock = threading.Lock()
        self._max_bytes = max_bytes
        self._images: OrderedDict[bytes, EncodedImage] = OrderedDict()
        self._files: dict[bytes, bytes] = {}
        self._num_bytes = 0

    def find(self, key_or_file: bytes) -> EncodedImage | None:
        with self._lock:
            key = self._files.get(key_or_file, key_or_file)
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def holds(self, file: bytes, key: bytes) -> None:
        """The file with this hash holds the image with this key."""
        with self._lock:
            self._files[file] = key
            if len(self._files) > MAX_FILES:
                del self._files[next(iter(self._files))]

    def keep(self, key: bytes, image: EncodedImage) -> EncodedImage:
        """Keep it, unless another thread was faster; returns the one that is kept."""
        with self._lock:
            if key not in self._images:
                self._images[key] = image
                self._num_bytes += image.pixels.nbytes
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= self._images.popitem(last=False)[1].pixels.nbytes
            return self._images.get(key, image)


class Admission:
    """Checks requests and numbers them. Thread-safe."""

    def __init__(self, model: Model, scheduler: Scheduler, *, max_crops: int) -> None:
        self._model = model
        self._max_crops = max_crops
        self._encoded = _EncodedImages()
        self._scheduler = scheduler
        self._request_ids = itertools.count(1)
        self._adapter_numbers = itertools.count(1)
        self.adapter_ids: dict[str, int] = {}
        """Loaded adapters by name; a name loaded again gets a new id."""

    def new_adapter_id(self) -> int:
        return next(self._adapter_numbers)

    def encode_image(self, image: Any) -> EncodedImage:
        """Decode and crop, unless these bytes or pixels were among the last. Raises ImageError."""
        if isinstance(image, EncodedImage):
            return self._checked(image)
        file = hashlib.sha256(image).digest() if isinstance(image, bytes) else None
        if file and (found := self._encoded.find(file)):
            return found
        decoded = load_image(image)
        key = self._key(decoded)
        if file:
            self._encoded.holds(file, key)
        return self._encoded.find(key) or self._encoded.keep(key, self._crop(decoded, key))

    def _crop(self, decoded: Image.Image, key: bytes) -> EncodedImage:
        crops = prepare_crops(decoded, self._model.config.vision)
        if len(crops.pixels) > self._max_crops:
            width, height = decoded.size
            raise ImageError(f"An image of {width} x {height} px is too long and narrow; crop it first.")
        crops.pixels.setflags(write=False)  # others will be answered from them
        return EncodedImage(crops.pixels, crops.tiling, *decoded.size, key)

    def _key(self, decoded: Image.Image) -> bytes:
        """Of everything the crops depend on: size, pixels, and how they are cut."""
        digest = hashlib.sha256(repr((decoded.size, self._model.config.vision)).encode())
        digest.update(decoded.tobytes())
        return digest.digest()

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
        check_prompt(request.prompt, self._model.config)
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
            sequence.image_key = encoded.key
        return sequence


def check_prompt(prompt: Any, config: ModelConfig) -> None:
    """Refuse before tokenising, which takes seconds for a megabyte, what no context could hold."""
    if not isinstance(prompt, str):
        raise InvalidRequestError("The prompt must be text.")
    if len(prompt) > MAX_CHARS_PER_POSITION * config.text.max_context:
        length, context = len(prompt), config.text.max_context
        raise InvalidRequestError(
            f"The prompt has {length} characters, too many for a context of {context} positions; shorten it."
        )


def in_vocabulary(request: Request, config: ModelConfig) -> Request:
    """The request as a model of few words has learned to read it: in lower case.

    Raises InvalidRequestError for words it has never seen, instead of answering noise.
    """
    if not config.vocabulary or request.skill == "caption" or not isinstance(request.prompt, str):
        return request
    if unknown := unknown_words(request.prompt, config.vocabulary):
        words = ", ".join(repr(word[:40]) for word in unknown[:5])
        raise InvalidRequestError(f"The model {config.name} does not know {words}. {config.limits}".strip())
    return replace(request, prompt=request.prompt.lower())


def check_sequence(sequence: Sequence, config: ModelConfig) -> None:
    """Refuse what a caller's own skill could ask for that would end the engine and not the request."""
    size = config.text.vocab_size
    if not all(0 <= token.id < size for token in sequence.prompt):
        raise InvalidRequestError(f"The skill's prompt has ids outside the model's vocabulary of {size}.")
    if not sequence.prompt or sequence.max_tokens < 1:
        raise InvalidRequestError("A skill needs a prompt and at least one token to answer with.")
