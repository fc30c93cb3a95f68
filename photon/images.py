"""One decode function for every way in: page, API, HTTP, batch.

    bytes ─> format ─> size from the header ─> pixels ─> first frame, upright, 8 bit, on white, RGB
             │         │ too many pixels:      │ damaged:
             │         │ refused here          │ refused here
             not an image: refused here

Every refusal is an ImageError of one sentence that names cause and remedy, and never a path.
"""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

from photon.errors import ImageError

MAX_PIXELS = 80_000_000
"""Refused above this before a pixel is decoded. Below Pillow's own limit, whose warning so never shows."""

MAX_FILE_BYTES = 64 * 2**20

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "BMP", "TIFF", "PPM", "HEIF")
"""Decoders that may see a stranger's bytes. Pillow knows more, some of which start other programs."""

ImageSource = Image.Image | str | Path | bytes | bytearray | memoryview | np.ndarray | IO[bytes]

_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def load_image(source: ImageSource) -> Image.Image:
    """An RGB copy of the picture, upright, alpha over white, first frame, 8 bit; no metadata.

    Source is a PIL image, path, encoded bytes, binary file, or array: (H, W), (H, W, 1), (H, W, 3) or
    (H, W, 4); uint8, uint16, bool or floats in 0..1. Blocks while decoding.

    Raises:
        ImageError: not an image, damaged, too large, or a web address.
    """
    if isinstance(source, np.ndarray):
        image: Image.Image = _from_array(source)
    elif isinstance(source, Image.Image):
        image = source
    else:
        image = _open(_read(source))
    _check_size(image.size)
    try:
        return _plain_rgb(image)
    except ImageError:
        raise
    except Exception as error:  # whatever a decoder makes of hostile or broken bytes
        raise _damaged(image.format) from error


def _read(source: Any) -> bytes:
    """The encoded bytes, at most MAX_FILE_BYTES of them."""
    if isinstance(source, str | Path):
        return _read_file(source)
    data = source.read(MAX_FILE_BYTES + 1) if hasattr(source, "read") else source
    if not isinstance(data, bytes | bytearray | memoryview):
        kind = type(source).__name__
        raise ImageError(f"A {kind} is no image; give a picture, its bytes, a path, or an array.")
    _check_file_size(len(data))
    return bytes(data)


def _read_file(path: str | Path) -> bytes:
    if isinstance(path, str) and path.lower().startswith(("http:", "https:", "ftp:", "file:", "data:")):
        raise ImageError("Web addresses are not fetched; download the picture and give the file.")
    try:
        with open(path, "rb") as file:
            return _read(file)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        if isinstance(error, ImageError):
            raise
        reason = getattr(error, "strerror", None) or "not a file name"
        raise ImageError(f"The image file cannot be read ({reason}); check its name.") from error


def _check_file_size(num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        limit = MAX_FILE_BYTES // 2**20
        raise ImageError(f"The image file is larger than {limit} MB; save it smaller or as JPEG.")


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if not width or not height:
        raise ImageError(f"The image has no pixels ({width} x {height}); give one of at least 1 x 1.")
    if width * height > MAX_PIXELS:
        limit = MAX_PIXELS // 1_000_000
        raise ImageError(
            f"The image is {width} x {height}, more than {limit} million pixels; scale it down first."
        )


def _open(data: bytes) -> Image.Image:
    """The image of the first format that takes the bytes; only its header has been read.

    Image.open would do, but warns about large images before anybody can see how large.
    """
    _prepare_heif(data)
    Image.init()
    is_known = False
    for name in (name for name in FORMATS if name in Image.OPEN):
        factory, accept = Image.OPEN[name]
        if accept is not None and accept(data[:16]) is not True:
            continue
        is_known = True
        try:
            return factory(io.BytesIO(data), "")
        except Exception:
            continue
    if is_known:
        raise _damaged(None)
    raise ImageError("The file is not an image of a known kind; save it as PNG, JPEG or WebP.")


def _prepare_heif(data: bytes) -> None:
    """Teach Pillow HEIC if pillow-heif is here, else say what to do."""
    if data[4:8] != b"ftyp" or data[8:12] not in _HEIF_BRANDS or b"avif" in data[8:64]:
        return
    if importlib.util.find_spec("pillow_heif") is None:
        raise ImageError("The image is HEIC; save it as JPEG first, or install the package pillow-heif.")
    importlib.import_module("pillow_heif").register_heif_opener()


def _damaged(kind: str | None) -> ImageError:
    what = f"{kind} image" if kind else "image"
    return ImageError(f"The {what} is damaged or cut off; save or download it again.")


def _plain_rgb(image: Image.Image) -> Image.Image:
    """Decode and convert; nothing of the caller's image is changed."""
    image.load()
    image = _upright(image)
    if image.mode.startswith(("I", "F")):
        image = _eight_bit(image)
    if image.has_transparency_data:
        image = _over_white(image.convert("LA") if image.mode == "La" else image)
    plain = image.convert("RGB")
    plain.info.clear()
    return plain


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the EXIF tag says; a damaged tag says nothing."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image


def _over_white(image: Image.Image) -> Image.Image:
    overlay = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(overlay, mask=overlay)
    return white


def _eight_bit(image: Image.Image) -> Image.Image:
    """Modes I, I;16 and F -> L."""
    values = np.asarray(image)
    if image.mode.startswith("I"):
        values = values.clip(0, 65535).astype(np.uint16)
    return Image.fromarray(_scaled(values))


def _scaled(values: np.ndarray) -> np.ndarray:
    """uint8 of the full range: 65535, True and 1.0 all become 255."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if values.dtype == np.uint16:
        return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(f"The image array holds {values.dtype}; convert it to uint8, uint16 or 0..1 floats.")
    if not ((values >= 0) & (values <= 1)).all():  # false for NaN as well
        raise ImageError("The image holds floating-point values outside 0..1; scale it to 0..1 or to uint8.")
    return np.rint(values * 255).astype(np.uint8)


def _from_array(values: np.ndarray) -> Image.Image:
    shape = values.shape
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        raise ImageError(
            f"The image array has shape {shape}; expected (height, width), or that with 1, 3 or 4 channels."
        )
    _check_size((shape[1], shape[0]))
    if len(shape) == 3 and shape[2] == 1:
        values = values[:, :, 0]
    return Image.fromarray(np.ascontiguousarray(_scaled(values)))
