"""From a data URL to the bytes of an image. No URL is ever fetched."""

from __future__ import annotations

import base64
import binascii

from photon.api.config import MIB
from photon.errors import ImageError


def image_bytes(url: str, max_bytes: int) -> bytes:
    """The encoded image in `data:...;base64,...`.

    Raises:
        ImageError: a web address, another kind of text, broken base64, or more than `max_bytes`.
    """
    head, comma, data = url.partition(",")
    if not head.startswith("data:"):
        raise ImageError("Web addresses are not fetched; send the image itself, as data:image/...;base64,...")
    if not comma or not head.endswith(";base64"):
        raise ImageError("The data URL has no base64 in it; send data:image/...;base64,...")
    if len(data) * 3 // 4 > max_bytes + 2:
        raise ImageError(f"The image file is larger than {max_bytes // MIB} MB; save it smaller or as JPEG.")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ImageError("The data URL's base64 is broken; encode the image file again.") from error
