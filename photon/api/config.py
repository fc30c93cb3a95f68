"""ApiConfig: who may ask over HTTP, and how much at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

MIB = 2**20


@dataclass(frozen=True)
class ApiConfig:
    """Limits of the HTTP routes.

    Attributes:
        now_s: seconds since 1970, for the `created` fields of OpenAI's format.
        api_key: what callers of /v1 must send; None lets everybody in. Never printed.
        max_image_bytes: of one encoded image.
        max_open: requests to /v1 between their first byte and their last; one more is told to come back.
    """

    now_s: Callable[[], float]
    api_key: str | None = field(default=None, repr=False)
    max_image_bytes: int = 32 * MIB
    max_open: int = 128

    @property
    def max_body_bytes(self) -> int:
        """An image in base64, and a mebibyte for all the rest."""
        return self.max_image_bytes * 4 // 3 + MIB
