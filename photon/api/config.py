"""ApiConfig: who may ask over HTTP, and how much at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from photon.errors import InvalidRequestError

MIB = 2**20


@dataclass(frozen=True)
class ApiConfig:
    """Limits of the HTTP routes.

    Attributes:
        now_s: seconds since 1970, for the `created` fields of OpenAI's format.
        api_key: what callers of /v1 must send; None lets everybody in. Never printed.
        max_image_bytes: of one encoded image.
        max_open: requests to /v1 between their first byte and their last; one more is told to come back.
        max_open_bytes: of the bodies of all of them; what would be more is told to come back.
    """

    now_s: Callable[[], float]
    api_key: str | None = field(default=None, repr=False)
    max_image_bytes: int = 32 * MIB
    max_open: int = 128
    max_open_bytes: int = 512 * MIB

    @property
    def max_body_bytes(self) -> int:
        """An image in base64, and a mebibyte for all the rest."""
        return self.max_image_bytes * 4 // 3 + MIB


def read_key(text: str | None) -> str | None:
    """The key that a flag gives: itself or, after an @, what a file holds, so that `ps` does not show it.

    Raises:
        InvalidRequestError: the file cannot be read, or there is no key in it; one sentence without the key.
    """
    if text is None:
        return None
    try:
        key = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise InvalidRequestError(f"The API key file {text[1:]} cannot be read: {reason}.") from None
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidRequestError(
            "The API key must be one line of ASCII characters; it is empty or has others."
        )
    return key
