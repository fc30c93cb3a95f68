"""The image widget's side of "one decode function for every way in"."""

from __future__ import annotations

from typing import Any

import gradio as gr
from PIL import Image


def image_input(**look: Any) -> gr.Image:
    """The widget. Its events run with preprocess=False and read the uploaded file through `path_of`."""
    return gr.Image(label="Picture", sources=["upload", "clipboard"], type="filepath", **look)


def path_of(file: dict[str, Any] | None) -> str | None:
    """Where the upload lies, untouched. Gradio has checked that it is an upload of this page."""
    return file.get("path") if file else None


def is_animated(path: str) -> bool:
    """True when the file has several frames, of which only the first is used."""
    try:
        with Image.open(path) as image:
            return getattr(image, "n_frames", 1) > 1
    except Exception:
        # Whatever is wrong with the file, photon.images says it better.
        return False
