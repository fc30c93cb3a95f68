"""Files of one run to download: the picture with its marks, the result as JSON, COCO and YOLO."""

from __future__ import annotations

import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from PIL import Image

from photon import overlay
from photon.ui.ask import RESULT_KEY, SPATIAL
from photon.ui.exports import as_coco, as_yolo
from photon.ui.markup import colours
from photon.ui.results import tidy
from photon.ui.runs import Outcome


class RunFiles:
    """A folder that lives as long as the event that fills it; Gradio copies what it serves."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="photon-run-"))

    def write(self, outcome: Outcome, result: dict[str, Any]) -> dict[str, str]:
        """Write every file this result has; their paths by kind: json, png, coco, yolo."""
        written = {"json": self._text("photon_result.json", _pretty(result))}
        if outcome.ask.task in SPATIAL:
            written["png"] = self._overlay(outcome)
        if outcome.ask.task == "detect":
            written["coco"] = self._text("photon_coco.json", _pretty(as_coco(result)))
            written["yolo"] = self._yolo(result)
        return written

    def _text(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def _overlay(self, outcome: Outcome) -> str:
        """The picture at its own resolution, marks burnt in; lossless."""
        path = self.folder / "photon_overlay.png"
        burnt_in(outcome).save(path, compress_level=3)
        return str(path)

    def _yolo(self, result: dict[str, Any]) -> str:
        path = self.folder / "photon_yolo.zip"
        lines, classes = as_yolo(result)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("labels/picture.txt", lines)
            archive.writestr("classes.txt", classes)
        return str(path)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def _pretty(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def burnt_in(outcome: Outcome) -> Image.Image:
    """The picture with every label's points or boxes drawn on it."""
    image = outcome.ask.image
    if outcome.ask.task not in SPATIAL:
        return image
    key = RESULT_KEY[outcome.ask.task]
    for (label, found), colour in zip(outcome.found.items(), colours(outcome.found), strict=True):
        places = {key: [tidy(place) for place in found]}
        image = overlay.draw(image, places, label=label, colour=colour)
    return image
