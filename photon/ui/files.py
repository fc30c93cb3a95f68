"""Files of one run to download: the picture with its marks, and the result as JSON."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from photon import overlay
from photon.ui.ask import RESULT_KEY, SPATIAL
from photon.ui.markup import colour
from photon.ui.results import tidy
from photon.ui.runs import Outcome


class RunFiles:
    """A folder that lives as long as the event that fills it; Gradio copies what it serves."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="photon-run-"))

    def write_json(self, result: dict[str, Any]) -> str:
        path = self.folder / "photon_result.json"
        path.write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
        return str(path)

    def write_overlay(self, outcome: Outcome) -> str:
        """The picture at its own resolution, marks burnt in; lossless."""
        path = self.folder / "photon_overlay.png"
        burnt_in(outcome).save(path, compress_level=3)
        return str(path)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def burnt_in(outcome: Outcome) -> Image.Image:
    """The picture with every label's points or boxes drawn on it."""
    image = outcome.ask.image
    if outcome.ask.task not in SPATIAL:
        return image
    key = RESULT_KEY[outcome.ask.task]
    for index, (label, found) in enumerate(outcome.found.items()):
        places = {key: [tidy(place) for place in found]}
        image = overlay.draw(image, places, label=label, colour=colour(index))
    return image
