"""A result as annotation files: COCO and YOLO. Pure. Class ids follow the order of the labels as typed."""

from __future__ import annotations

from typing import Any


def as_coco(result: dict[str, Any], file_name: str = "picture.png") -> dict[str, Any]:
    """A detect result as a COCO data set of one image: `bbox` is [x, y, width, height] in pixels."""
    labels = list(result["count"])
    return {
        "images": [{"id": 1, "file_name": file_name, **result["image"]}],
        "categories": [{"id": number, "name": label} for number, label in enumerate(labels, 1)],
        "annotations": [
            _annotation(number, labels.index(item["label"]) + 1, item["pixels"])
            for number, item in enumerate(result["objects"], 1)
        ],
    }


def _annotation(number: int, category: int, box: dict[str, float]) -> dict[str, Any]:
    width, height = box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]
    return {
        "id": number,
        "image_id": 1,
        "category_id": category,
        "bbox": [box["x_min"], box["y_min"], round(width, 2), round(height, 2)],
        "area": round(width * height, 2),
        "iscrowd": 0,
    }


def as_yolo(result: dict[str, Any]) -> tuple[str, str]:
    """The lines `class x_centre y_centre width height`, all 0..1, and the names of the classes."""
    labels = list(result["count"])
    lines = []
    for item in result["objects"]:
        box = item["normalized"]
        width, height = box["x_max"] - box["x_min"], box["y_max"] - box["y_min"]
        centre = (box["x_min"] + width / 2, box["y_min"] + height / 2)
        numbers = " ".join(f"{value:.6f}" for value in (*centre, width, height))
        lines.append(f"{labels.index(item['label'])} {numbers}\n")
    return "".join(lines), "".join(f"{label}\n" for label in labels)
