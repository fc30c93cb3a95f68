"""Whatever comes in leaves as plain upright RGB, or is refused in one sentence before it costs anything."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin

from photon.errors import ImageError
from photon.images import MAX_FILE_BYTES, load_image


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG of any header, which Pillow would not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def refusal(source: Any) -> str:
    with pytest.raises(ImageError) as caught:
        load_image(source)
    message = str(caught.value)
    assert message.endswith(".")
    assert "/" not in message.replace("x / y", "")
    return message


def pixel(source: Any) -> tuple[int, ...]:
    image = load_image(source)
    assert image.mode == "RGB"
    return image.getpixel((0, 0))  # type: ignore[return-value]


SCENE = Image.effect_noise((40, 30), 80).convert("RGB")


@pytest.mark.parametrize(
    "give", [bytes, bytearray, memoryview, io.BytesIO, lambda data: Image.open(io.BytesIO(data))]
)
def test_every_kind_of_source_gives_the_same_pixels(give: Callable[[bytes], Any]) -> None:
    """user_reports 12."""
    assert load_image(give(encoded(SCENE))).tobytes() == SCENE.tobytes()


def test_paths_are_read(tmp_path: Path) -> None:
    (tmp_path / "scene.png").write_bytes(encoded(SCENE))
    assert load_image(tmp_path / "scene.png") == load_image(str(tmp_path / "scene.png")) == SCENE


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "WEBP"])
def test_lossless_formats_are_exact(kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    assert load_image(encoded(SCENE, kind, **options)).tobytes() == SCENE.tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "AVIF"])
def test_lossy_formats_are_close(kind: str) -> None:
    """user_reports 8, 12."""
    flat = Image.new("RGB", (32, 32), (200, 40, 90))
    assert pixel(encoded(flat, kind)) == pytest.approx((200, 40, 90), abs=6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation: int) -> None:
    """All eight orientations of a picture stored so that, upright, its top left corner is red."""
    upright = Image.new("RGB", (64, 32), "blue")
    upright.paste("red", (0, 0, 16, 16))
    undo = {
        2: [Image.Transpose.FLIP_LEFT_RIGHT],
        3: [Image.Transpose.ROTATE_180],
        4: [Image.Transpose.FLIP_TOP_BOTTOM],
        5: [Image.Transpose.TRANSPOSE],
        6: [Image.Transpose.ROTATE_90],
        7: [Image.Transpose.TRANSVERSE],
        8: [Image.Transpose.ROTATE_270],
    }
    stored = upright
    for step in undo.get(orientation, []):
        stored = stored.transpose(step)
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert load_image(encoded(stored, "PNG", exif=exif)).tobytes() == upright.tobytes()


def test_metadata_does_not_leave_with_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "secret")
    assert load_image(encoded(SCENE, exif=exif, pnginfo=text)).info == {}


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La"])
def test_alpha_is_composited_over_white(mode: str) -> None:
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 0)).convert("RGBA")
    if mode in ("LA", "La"):
        half = half.convert("LA")
    assert pixel(half.convert(mode)) == (255, 255, 255)


def test_half_transparent_red_is_pink() -> None:
    assert pixel(encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128)))) == (255, 127, 127)


@pytest.mark.parametrize(
    ("mode", "colour", "transparency"), [("P", 1, 1), ("L", 7, 7), ("RGB", (1, 2, 3), (1, 2, 3))]
)
def test_a_transparent_colour_is_white(mode: str, colour: Any, transparency: Any) -> None:
    image = Image.new(mode, (2, 2), colour)
    if mode == "P":
        image.putpalette([9, 9, 9, 200, 0, 0])
    assert pixel(encoded(image, transparency=transparency)) == (255, 255, 255)


@pytest.mark.parametrize("value", [0, 257, 33023, 65535])
def test_sixteen_bits_are_scaled(value: int) -> None:
    wanted = (round(value / 257),) * 3
    assert pixel(raw_png(1, 1, 16, 0, b"\0" + struct.pack(">H", value))) == wanted
    assert pixel(Image.fromarray(np.full((2, 2), value, np.int32))) == wanted
    assert pixel(np.full((2, 2), value, np.uint16)) == wanted
    assert pixel(encoded(Image.fromarray(np.full((2, 2), value, np.uint16)), "TIFF")) == wanted


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        (Image.new("1", (3, 3), 1), (255, 255, 255)),
        (Image.new("L", (3, 3), 90), (90, 90, 90)),
        (Image.new("P", (3, 3), 0), (0, 0, 0)),
        (Image.new("CMYK", (3, 3), (0, 255, 255, 0)), (255, 0, 0)),
        (Image.new("YCbCr", (3, 3), (255, 128, 128)), (255, 255, 255)),
        (Image.new("HSV", (3, 3), (0, 255, 255)), (255, 0, 0)),
        (Image.new("F", (3, 3), 0.5), (128, 128, 128)),
    ],
)
def test_every_mode_becomes_rgb(image: Image.Image, wanted: tuple[int, ...]) -> None:
    """user_reports 11."""
    assert pixel(image) == wanted


def test_a_cmyk_jpeg_keeps_its_colours() -> None:
    """user_reports 10."""
    red = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    assert pixel(encoded(red, "JPEG", quality=95)) == pytest.approx((255, 0, 0), abs=8)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_taken(kind: str) -> None:
    """user_reports 9."""
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixel(data) == (255, 0, 0)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_image_is_refused(kind: str, share: float) -> None:
    data = encoded(Image.effect_noise((200, 150), 80).convert("RGB"), kind)
    assert "damaged or cut off" in refusal(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"%PDF-1.7",
        b"<svg xmlns='x'/>",
        b"\0" * 100,
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9",
    ],
)
def test_what_is_no_image_is_refused(content: bytes) -> None:
    assert "not an image of a known kind" in refusal(content)


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0", b"P6 "]), st.binary()
)
def test_hostile_bytes_raise_nothing_but_an_image_error(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(ImageError):
        assert load_image(start + rest).mode == "RGB"


@pytest.mark.skipif(importlib.util.find_spec("pillow_heif") is not None, reason="HEIC is read here")
@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_heic_is_named_with_what_to_do(brand: bytes) -> None:
    """user_reports 8."""
    assert "HEIC; save it as JPEG" in refusal(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0" + brand)


@pytest.mark.parametrize(("width", "height"), [(10_000, 8_001), (10_000, 10_000), (60_000, 60_000)])
def test_a_pixel_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    assert f"{width} x {height}, more than 80 million" in refusal(raw_png(width, height, 8, 2, b"\0"))


def test_a_file_above_the_limit_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "big.png").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert "larger than 64 MB" in refusal(tmp_path / "big.png")
    assert "larger than 64 MB" in refusal(bytes(MAX_FILE_BYTES + 1))


@pytest.mark.parametrize("size", [(1, 1), (1, 9000), (9000, 1)])
def test_small_and_extreme_images_are_taken(size: tuple[int, int]) -> None:
    assert load_image(encoded(Image.new("RGB", size, "red"))).size == size


@pytest.mark.parametrize("empty", [Image.new("RGB", (0, 5)), np.zeros((0, 3), np.uint8)])
def test_an_image_without_pixels_is_refused(empty: Any) -> None:
    assert "no pixels" in refusal(empty)


@pytest.mark.parametrize("address", ["https://example.org/a.png", "HTTP://x", "data:image/png;base64,AA"])
def test_addresses_are_not_fetched(address: str) -> None:
    assert "download the picture" in refusal(address)


@pytest.mark.parametrize("name", ["missing.png", ".", "nul\0byte", ""])
def test_unreadable_files_are_refused_without_naming_the_path(name: str, tmp_path: Path) -> None:
    message = refusal(f"{tmp_path}/{name}" if name else "")
    assert "cannot be read" in message
    assert str(tmp_path) not in message


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.full((2, 3), 9, np.uint8), (9, 9, 9)),
        (np.full((2, 3, 1), 9, np.uint8), (9, 9, 9)),
        (np.full((2, 3, 3), [1, 2, 3], np.uint8), (1, 2, 3)),
        (np.full((2, 3, 4), [0, 0, 0, 0], np.uint8), (255, 255, 255)),
        (np.full((2, 3, 3), [1.0, 0.5, 0.0], np.float32), (255, 128, 0)),
        (np.full((2, 3), True), (255, 255, 255)),
        (np.full((4, 6, 3), [1, 2, 3], np.uint8)[::2, ::-2], (1, 2, 3)),
    ],
)
def test_arrays_are_taken(array: np.ndarray, wanted: tuple[int, ...]) -> None:
    assert pixel(array) == wanted
    assert load_image(array).size == (3, 2)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 2, 2), np.uint8), "shape"),
        (np.zeros((3,), np.uint8), "shape"),
        (np.zeros((2, 2), np.int64), "holds int64"),
        (np.full((2, 2), 1.5), "outside"),
        (np.full((2, 2), np.nan), "outside"),
    ],
)
def test_arrays_of_another_kind_are_refused(array: np.ndarray, message: str) -> None:
    assert message in refusal(array)


@pytest.mark.parametrize("source", [None, 3, ["a.png"], io.StringIO("text")])
def test_what_is_no_source_is_refused(source: Any) -> None:
    assert "is no image" in refusal(source)


def test_the_callers_image_is_neither_changed_nor_shared() -> None:
    mine = Image.new("RGB", (2, 2), "red")
    mine.info["note"] = "kept"
    load_image(mine).putpixel((0, 0), (0, 0, 0))
    assert mine.getpixel((0, 0)) == (255, 0, 0)
    assert mine.info == {"note": "kept"}
