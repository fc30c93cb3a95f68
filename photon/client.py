"""Client: the calls a person writes, in the conventions of the `moondream` client.

Each call is one request; several calls from several threads share the engine's batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self

from photon.handle import Handle
from photon.sequence import Request

Settings = Mapping[str, Any] | None
Refs = Iterable[tuple[float, ...]]


class Client(ABC):
    """query, caption, point and detect on top of `submit`. All block until the answer is there, except
    with stream=True. Raise InvalidRequestError before anything is queued, RequestFailedError after.
    """

    @abstractmethod
    def submit(self, request: Request) -> Handle:
        """Queue a request."""

    @abstractmethod
    def close(self) -> None:
        """End; idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def query(
        self,
        image: Any = None,
        question: str = "",
        *,
        stream: bool = False,
        settings: Settings = None,
        reasoning: bool = False,
        spatial_refs: Refs = (),
    ) -> dict[str, Any]:
        """{"answer": text}, or {"answer": iterator of text} with stream=True; plus how it ended."""
        request = Request(
            "query",
            image,
            question,
            reasoning=reasoning,
            spatial_refs=_refs(spatial_refs),
            settings=settings or {},
        )
        return self._text(request, "answer", stream)

    def caption(
        self, image: Any, length: str = "normal", *, stream: bool = False, settings: Settings = None
    ) -> dict[str, Any]:
        """{"caption": text}, or {"caption": iterator of text} with stream=True; plus how it ended."""
        request = Request("caption", image, length=length, settings=settings or {})
        return self._text(request, "caption", stream)

    def point(
        self, image: Any, object: str, settings: Settings = None, *, spatial_refs: Refs = ()
    ) -> dict[str, Any]:
        """{"points": [{"x", "y"}, ...]} with coordinates from 0 to 1; plus how it ended.

        point(image, "gaze", spatial_refs=[(x, y)]) is where the person with the head at (x, y) looks.
        """
        refs = _refs(spatial_refs)
        return self.submit(
            Request("point", image, object, spatial_refs=refs, settings=settings or {})
        ).result()

    def detect(self, image: Any, object: str, settings: Settings = None) -> dict[str, Any]:
        """{"objects": [{"x_min", "y_min", "x_max", "y_max"}, ...]} from 0 to 1; plus how it ended."""
        return self.submit(Request("detect", image, object, settings=settings or {})).result()

    def _text(self, request: Request, key: str, stream: bool) -> dict[str, Any]:
        handle = self.submit(request)
        return {key: handle.stream()} if stream else handle.result()


def _refs(spatial_refs: Refs) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(ref) for ref in spatial_refs)
