"""Results as annotation files: JSON, CSV, COCO, YOLO, Pascal VOC. Pure; one place for the playground and the
batch.

A class is a label as typed; its number is its place among the labels, the same in every file of an export.
Boxes are left, top, right, bottom edges in pixels; VOC rounds them, which moves an edge by half a pixel.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple
from xml.etree import ElementTree

_COLUMNS = ("file", "task", "prompt", "width", "height", "count", "answer", "finish_reason", "ms", "error")


class Item(NamedTuple):
    """One picture of an export: the name it came with, and its result or why it has none."""

    file: str
    result: Mapping[str, Any] | None
    error: str = ""


def class_names(items: Iterable[Item]) -> list[str]:
    """Every label asked for, in the order typed, those with nothing found or an error included."""
    return list(dict.fromkeys(label for item in items if item.result for label in item.result["labels"]))


def as_document(items: Sequence[Item]) -> dict[str, Any]:
    """Every result in full, failures included."""
    return {
        "files": [
            {"file": item.file, **(item.result or {}), **({"error": item.error} if item.error else {})}
            for item in items
        ]
    }


def as_csv(items: Sequence[Item]) -> str:
    """One line per picture."""
    text = io.StringIO()
    table = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(_line(item) for item in items)
    return text.getvalue()


def _line(item: Item) -> dict[str, Any]:
    result = item.result or {}
    return {
        "file": item.file,
        "task": result.get("task"),
        "prompt": result.get("prompt"),
        **result.get("image", {}),
        "count": in_words(result),
        "answer": answer_of(result),
        "finish_reason": result.get("finish_reason"),
        "ms": result.get("metrics", {}).get("total_ms"),
        "error": item.error,
    }


def in_words(result: Mapping[str, Any]) -> str:
    """How much was found of what; "" for text tasks."""
    return ", ".join(f"{label}: {count}" for label, count in result.get("count", {}).items())


def answer_of(result: Mapping[str, Any]) -> str:
    """What the model said; "" for point and detect."""
    return result.get("answer") or result.get("caption") or ""


def as_coco(items: Sequence[Item]) -> dict[str, Any]:
    """A COCO data set of all detect results: `bbox` is [x, y, width, height] in pixels."""
    names, done = class_names(items), [item for item in items if item.result]
    boxes = [
        (number, names.index(found["label"]) + 1, found["pixels"])
        for number, item in enumerate(done, 1)
        for found in (item.result or {})["objects"]
    ]
    return {
        "images": [
            {"id": number, "file_name": item.file, **(item.result or {})["image"]}
            for number, item in enumerate(done, 1)
        ],
        "categories": [{"id": number, "name": label} for number, label in enumerate(names, 1)],
        "annotations": [_annotation(number, *box) for number, box in enumerate(boxes, 1)],
    }


def _annotation(number: int, image: int, category: int, box: Mapping[str, float]) -> dict[str, Any]:
    width, height = box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": [box["x_min"], box["y_min"], round(width, 2), round(height, 2)],
        "area": round(width * height, 2),
        "iscrowd": 0,
    }


def as_yolo(items: Sequence[Item]) -> dict[str, str]:
    """Texts by file name: lines `class x_centre y_centre width height`, all 0..1, and the classes' names."""
    names = class_names(items)
    texts = {
        f"labels/{stem}.txt": "".join(_yolo_line(names, found) for found in result["objects"])
        for stem, _, result in _named(items)
    }
    classes = "".join(f"  {number}: {json.dumps(name)}\n" for number, name in enumerate(names))
    texts["data.yaml"] = f"path: .\ntrain: images\nval: images\nnames:\n{classes}"
    return texts | {"classes.txt": "".join(f"{name}\n" for name in names)}


def _yolo_line(names: Sequence[str], found: Mapping[str, Any]) -> str:
    box = found["normalized"]
    width, height = box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]
    numbers = (box["x_min"] + width / 2, box["y_min"] + height / 2, width, height)
    return f"{names.index(found['label'])} {' '.join(f'{value:.6f}' for value in numbers)}\n"


def as_voc(items: Sequence[Item]) -> dict[str, str]:
    """Pascal VOC: one XML text per picture, by file name."""
    return {f"Annotations/{stem}.xml": _voc(item.file, result) for stem, item, result in _named(items)}


def _voc(file: str, result: Mapping[str, Any]) -> str:
    root = ElementTree.Element("annotation")
    _texts(root, filename=file)
    _texts(ElementTree.SubElement(root, "size"), **result["image"], depth=3)
    for found in result["objects"]:
        node = ElementTree.SubElement(root, "object")
        _texts(node, name=found["label"], pose="Unspecified", truncated=0, difficult=0)
        box = found["pixels"]
        edges = {"xmin": "x_min", "ymin": "y_min", "xmax": "x_max", "ymax": "y_max"}
        _texts(ElementTree.SubElement(node, "bndbox"), **{tag: round(box[key]) for tag, key in edges.items()})
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _texts(parent: ElementTree.Element, **values: Any) -> None:
    """A child per value; XML has no control characters."""
    for name, value in values.items():
        text = "".join(char for char in str(value) if char.isprintable())
        ElementTree.SubElement(parent, name).text = text


def _named(items: Sequence[Item]) -> list[tuple[str, Item, Mapping[str, Any]]]:
    """Those with a result, each under a name of its own without folder or ending."""
    taken: set[str] = set()
    named = []
    for item in items:
        if item.result is None:
            continue
        stem = unique(PurePath(item.file).stem, taken)
        named.append((stem, item, item.result))
    return named


def unique(name: str, taken: set[str]) -> str:
    """The name, or it with a number where it is taken; taken from now on."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    taken.add(candidate)
    return candidate
