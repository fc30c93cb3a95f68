"""Pins what is done once for an image that comes again, in whatever form: crops by its pixels, decoding by
its bytes; and that what is kept is bounded and told apart by all that the crops depend on.
"""

from __future__ import annotations

import dataclasses
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import build, picture, tiny_model
from PIL import Image

from photon.admission import Admission, EncodedImage, _EncodedImages
from photon.errors import ImageError
from photon.scheduler import Scheduler


def make(model: Any = None, max_crops: int = 5) -> Admission:
    with build() as engine:
        scheduler: Scheduler = engine._scheduler
    return Admission(model or tiny_model(), scheduler, max_crops=max_crops)


def png(pixels: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_the_same_pixels_are_cut_once_however_they_come(tmp_path: Path) -> None:
    pixels, admit = picture(3, 56, 40), make()
    (tmp_path / "a.png").write_bytes(png(pixels))
    forms = [pixels, Image.fromarray(pixels), png(pixels), bytearray(png(pixels)), tmp_path / "a.png"]
    forms += [io.BytesIO(png(pixels)), Image.fromarray(pixels).convert("RGBA")]
    encoded = [admit.encode_image(form) for form in forms]
    assert all(image is encoded[0] for image in encoded)
    assert admit.encode_image(encoded[0]) is encoded[0]


def test_bytes_that_came_before_are_not_decoded_again() -> None:
    """Another file with the same pixels is: it is known by its own hash from then on."""
    admit = make()
    first = admit.encode_image(png(picture(3)))
    files = admit._encoded._files
    assert admit.encode_image(png(picture(3))) is first
    assert len(files) == 1
    other = io.BytesIO()
    Image.fromarray(picture(3)).save(other, "BMP")
    assert admit.encode_image(other.getvalue()) is first
    assert len(files) == 2


def test_damaged_bytes_are_refused_each_time() -> None:
    admit = make()
    for _ in range(2):
        with pytest.raises(ImageError):
            admit.encode_image(png(picture(3))[:60])


def test_size_pixels_and_the_way_of_cutting_make_the_key() -> None:
    wide, high = (np.zeros((*size, 3), np.uint8) for size in ((20, 40), (40, 20)))
    config = tiny_model().config
    fewer = dataclasses.replace(config.vision, max_crops=2)
    other = dataclasses.replace(tiny_model(), config=dataclasses.replace(config, vision=fewer))
    keys = {make().encode_image(image).key for image in (wide, high, picture(1), picture(2))}
    assert len(keys | {make(other).encode_image(wide).key}) == 5


def test_crops_that_others_will_be_answered_from_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make().encode_image(picture(1)).pixels[0] = 0


def test_what_is_kept_is_bounded_in_bytes_and_the_oldest_goes() -> None:
    images = [make().encode_image(picture(seed)) for seed in range(4)]
    kept = _EncodedImages(max_bytes=2 * images[0].pixels.nbytes)
    for image in images:
        assert image.key is not None
        kept.keep(image.key, image)
        kept.find(images[0].key or b"")
    assert [kept.find(image.key or b"") is not None for image in images] == [True, False, False, True]
    assert kept._num_bytes == 2 * images[0].pixels.nbytes


def test_threads_that_encode_the_same_image_at_once_get_the_same_one() -> None:
    admit, found = make(), []
    threads = [
        threading.Thread(target=lambda: found.append(admit.encode_image(picture(3, 56, 40))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(isinstance(image, EncodedImage) and image is found[0] for image in found)


def test_an_image_of_too_many_crops_is_refused_and_not_kept() -> None:
    admit = make(max_crops=1)
    for _ in range(2):
        with pytest.raises(ImageError, match="too long and narrow"):
            admit.encode_image(picture(3, 56, 40))
