"""Files of results to download: pictures with their marks, JSON, CSV, and annotations in other formats."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Self

from PIL import Image

from photon import overlay
from photon.errors import PhotonError
from photon.ui.ask import RESULT_KEY, SPATIAL
from photon.ui.exports import Item, as_coco, as_csv, as_document, as_voc, as_yolo, unique
from photon.ui.markup import palette

_MAKERS: dict[str, tuple[str, Callable[[Sequence[Item]], Any]]] = {
    "json": ("photon_results.json", as_document),
    "csv": ("photon_results.csv", as_csv),
    "coco": ("photon_coco.json", as_coco),
    "yolo": ("photon_yolo.zip", as_yolo),
    "voc": ("photon_voc.zip", as_voc),
}
KINDS = ("png", *_MAKERS)
"""What can be downloaded."""


class SaveError(PhotonError):
    """A file could not be written."""


def kinds_for(task: str) -> tuple[str, ...]:
    """What a task's results can be saved as."""
    drawn = ("png",) if task in SPATIAL else ()
    boxes = ("coco", "yolo", "voc") if task == "detect" else ()
    return (*drawn, "json", "csv", *boxes)


class Folder:
    """Lives as long as the event that fills it; Gradio copies what it serves.

    Raises SaveError where nothing can be written, as its methods do.
    """

    def __init__(self) -> None:
        with one_sentence():
            self.path = Path(tempfile.mkdtemp(prefix="photon-run-"))

    def save(self, kind: str, items: Sequence[Item]) -> str:
        """All items in one file of a kind of _MAKERS; its path."""
        name, make = _MAKERS[kind]
        return self._write(name, make(items))

    def save_run(self, image: Image.Image, item: Item) -> dict[str, str]:
        """Every file that one result has; their paths by kind."""
        assert item.result is not None
        written = {"json": self._write("photon_result.json", item.result)}
        for kind in kinds_for(item.result["task"]):
            if kind in ("coco", "yolo", "voc"):
                written[kind] = self.save(kind, [item])
            elif kind == "png":
                with one_sentence():
                    path = self.path / "photon_overlay.png"
                    burnt_in(image, item.result).save(path, compress_level=3)
                written[kind] = str(path)
        return written

    def save_pictures(self, pictures: Iterable[tuple[str, Image.Image]]) -> str:
        """PNGs in one archive, under the names given; pictures are taken one at a time."""
        path, taken = self.path / "photon_pictures.zip", set[str]()
        with one_sentence(), zipfile.ZipFile(path, "w") as archive:
            for name, picture in pictures:
                data = io.BytesIO()
                picture.save(data, "PNG", compress_level=3)
                archive.writestr(f"{unique(PurePath(name).stem, taken)}.png", data.getvalue())
        return str(path)

    def _write(self, name: str, content: Any) -> str:
        path = self.path / name
        with one_sentence():
            if name.endswith(".zip"):
                with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                    for member, text in content.items():
                        archive.writestr(member, text)
            else:
                path.write_text(content if isinstance(content, str) else _pretty(content), encoding="utf-8")
        return str(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


_UNWRITTEN = "The files cannot be written on the server ({}); the results are still shown here."


@contextlib.contextmanager
def one_sentence(sentence: str = _UNWRITTEN) -> Iterator[None]:
    """Turns an operating system's refusal to write into a SaveError of this sentence and its reason."""
    try:
        yield
    except OSError as error:
        raise SaveError(sentence.format(error.strerror or "no reason was given")) from error


def _pretty(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def burnt_in(image: Image.Image, result: Mapping[str, Any]) -> Image.Image:
    """The picture with every label's points or boxes drawn on it, in the colours of the page."""
    if result["task"] not in SPATIAL:
        return image
    key = RESULT_KEY[result["task"]]
    colours = palette(result["labels"])
    for label in result["count"]:
        places = {key: [found["normalized"] for found in result[key] if found["label"] == label]}
        image = overlay.draw(image, places, label=label, colour=colours[label])
    return image
