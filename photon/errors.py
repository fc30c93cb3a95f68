"""Errors a caller can meet. Each message is one sentence that names the cause and the remedy."""

from __future__ import annotations

from typing import Self


class PhotonError(Exception):
    """Base of everything photon raises for the caller."""


class InvalidRequestError(PhotonError, ValueError):
    """The request itself is wrong (prompt, image, setting); nothing reached the engine."""


class ImageError(InvalidRequestError):
    """The image cannot be used: not an image, too large, truncated, unreachable."""


class QueueFullError(InvalidRequestError):
    """Too many requests wait; the same request may be taken a moment later."""


class CheckpointError(PhotonError):
    """A model, tokenizer or adapter file does not hold what it should."""


class DeviceError(PhotonError):
    """The device cannot be opened, or died."""


class EngineDeadError(PhotonError):
    """A forward or commit failed; the engine refuses requests and says why."""

    @classmethod
    def of(cls, cause: BaseException) -> Self:
        """What callers are told of an engine that `cause` has ended."""
        error = cls(f"The engine has ended: {str(cause) or type(cause).__name__}")
        error.__cause__ = cause
        return error


class RequestFailedError(PhotonError):
    """This one request failed inside the engine; others were not touched."""
