"""The public HTTP endpoints /query, /caption, /point, /detect; everything else of the page is private.

No `from __future__ import annotations` here: Gradio derives each endpoint's schema from these hints.
"""

import asyncio
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder

from photon import Engine
from photon.errors import InvalidRequestError, PhotonError
from photon.images import load_image
from photon.ui.ask import Ask, check_task
from photon.ui.references import checked
from photon.ui.results import as_json
from photon.ui.runs import complete, submit


def endpoints(engine: Engine) -> None:
    """Register the four endpoints in the current Blocks context."""

    async def query(
        image: gr.FileData, question: str, settings: dict | None = None, spatial_refs: list | None = None
    ) -> dict:
        """Answer a question about the picture. settings: temperature, top_p, max_tokens, seed, stop.
        spatial_refs: points [x, y] and boxes [x_min, y_min, x_max, y_max] it is about, from 0 to 1."""
        return await answer(engine, "query", image, prompt=question, settings=settings, refs=spatial_refs)

    async def caption(image: gr.FileData, length: str = "normal", settings: dict | None = None) -> dict:
        """Describe the picture. length: short, normal or long."""
        return await answer(engine, "caption", image, length=length, settings=settings)

    async def point(
        image: gr.FileData, object: str, settings: dict | None = None, spatial_refs: list | None = None
    ) -> dict:
        """Point at every instance of the object; several objects, separated by commas, run as one batch.
        spatial_refs: as for query."""
        return await answer(engine, "point", image, prompt=object, settings=settings, refs=spatial_refs)

    async def detect(image: gr.FileData, object: str, settings: dict | None = None) -> dict:
        """Draw a box around every instance of the object; commas separate several objects."""
        return await answer(engine, "detect", image, prompt=object, settings=settings)

    for function in (query, caption, point, detect):
        gr.api(function, api_name=function.__name__, concurrency_limit=None)


async def answer(
    engine: Engine,
    task: str,
    image: Any,
    *,
    prompt: str = "",
    length: str = "normal",
    settings: Any = None,
    refs: Any = None,
) -> dict:
    """Run one task to its end and return its JSON; a caller that hangs up cancels it.

    Raises:
        gr.Error: anything the caller can mend, in one sentence.
    """
    try:
        check_task(task, length)
        path = uploaded_path(image)
        picture = await asyncio.to_thread(load_image, path)
        ask = Ask(task, picture, prompt, length, _settings(settings), spatial_refs=_refs(refs))
        run = await submit(engine, ask)
        return as_json(await complete(run))
    except PhotonError as error:
        raise gr.Error(str(error), print_exception=False) from None


def uploaded_path(image: Any) -> str:
    """Path of a file that was uploaded to this page, and of nothing else on this machine.

    Raises:
        InvalidRequestError: there is no image, or it was not uploaded.
    """
    path = image.get("path") if isinstance(image, dict) else getattr(image, "path", None)
    if not path:
        raise InvalidRequestError("There is no image; pass one with gradio_client.handle_file(path).")
    resolved = Path(path).resolve()
    if not resolved.is_relative_to(Path(get_upload_folder()).resolve()):
        raise InvalidRequestError(
            "This image was not uploaded here; pass it with gradio_client.handle_file(path)."
        )
    return str(resolved)


def _refs(refs: Any) -> tuple[tuple[float, ...], ...]:
    try:
        return tuple(checked(ref) for ref in refs or ())
    except (TypeError, ValueError, OverflowError):
        raise InvalidRequestError(
            "spatial_refs must be a list of [x, y] or [x_min, y_min, x_max, y_max] with numbers from 0 to 1."
        ) from None


def _settings(settings: Any) -> dict[str, Any]:
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise InvalidRequestError("settings must be an object, as in {'temperature': 0.5}.")
    return settings
