"""Pins what leaves the page: every format gives its boxes back within a pixel, classes keep their numbers, a
disk that takes nothing is one sentence. user_reports 30, 35, 41."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from photon.images import load_image
from photon.ui import results
from photon.ui.ask import Ask
from photon.ui.exports import Item, as_coco, as_csv, as_document, as_voc, as_yolo, unique
from photon.ui.files import Folder, SaveError, burnt_in, kinds_for
from photon.ui.markup import palette
from photon.ui.runs import Outcome, Part

SIZE = (640, 480)
PLACES = [
    {"x_min": 0.25, "y_min": 0.5, "x_max": 0.75, "y_max": 1.0},
    {"x_min": 0.1003, "y_min": 0.2, "x_max": 0.3, "y_max": 0.9},
    {"x_min": -0.1, "y_min": 0.0, "x_max": 1.2, "y_max": 0.0015},
]
LABELS = ("blue cat", 'salt, <pepper> & "dog"')


def part(label: str, places: list[dict[str, float]] | str, error: str = "") -> Part:
    return Part(label, places, 1, "error" if error else "stop", error=error)


def result(
    *parts: Part, task: str = "detect", prompt: str = "", size: tuple[int, int] = SIZE
) -> dict[str, Any]:
    ask = Ask(
        task,
        Image.new("RGB", size),
        prompt or ",".join(f'"{p.label.replace(chr(34), chr(34) * 2)}"' for p in parts),
    )
    return results.as_json(Outcome(ask, parts, "finished", model="m"))


def boxes() -> Item:
    """Two labels, three boxes each."""
    return Item("a b/cat.jpg", result(*(part(label, PLACES) for label in LABELS)))


def edges(item: Item) -> list[tuple[str, list[float]]]:
    assert item.result is not None
    return [(found["label"], list(found["pixels"].values())) for found in item.result["objects"]]


def members(path: str) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def assert_same(read: list[tuple[str, list[float]]], item: Item) -> None:
    assert [label for label, _ in read] == [label for label, _ in edges(item)]
    for (_, got), (_, expected) in zip(read, edges(item), strict=True):
        assert got == pytest.approx(expected, abs=1)


def test_coco_gives_the_boxes_back_within_a_pixel() -> None:
    """user_reports 41."""
    coco = json.loads(json.dumps(as_coco([boxes()])))
    names = {category["id"]: category["name"] for category in coco["categories"]}
    read = []
    for note in coco["annotations"]:
        x, y, width, height = note["bbox"]
        read.append((names[note["category_id"]], [x, y, x + width, y + height]))
    assert_same(read, boxes())
    assert coco["images"] == [{"id": 1, "file_name": "a b/cat.jpg", "width": 640, "height": 480}]


def test_yolo_gives_the_boxes_back_within_a_pixel() -> None:
    """user_reports 41."""
    texts = as_yolo([boxes()])
    names = texts["classes.txt"].splitlines()
    read = []
    for line in texts["labels/cat.txt"].splitlines():
        kind, *numbers = line.split()
        x, y, w, h = (float(number) for number in numbers)
        corners = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        read.append((names[int(kind)], [c * side for c, side in zip(corners, SIZE * 2, strict=True)]))
    assert_same(read, boxes())
    for number, name in enumerate(LABELS):
        assert f"  {number}: {json.dumps(name)}\n" in texts["data.yaml"]


def test_voc_gives_the_boxes_back_within_a_pixel() -> None:
    root = ElementTree.fromstring(as_voc([boxes()])["Annotations/cat.xml"])
    read = [
        (node.findtext("name") or "", [float(edge.text or "") for edge in node.find("bndbox") or ()])
        for node in root.iter("object")
    ]
    assert_same(read, boxes())
    assert [root.findtext(f"size/{name}") for name in ("width", "height", "depth")] == ["640", "480", "3"]


def test_a_class_has_one_number_in_every_picture_even_where_it_failed_or_was_not_found() -> None:
    """user_reports 35."""
    items = [
        Item("a.png", result(part("cat", [], error="It broke."), part("dog", PLACES[:1]))),
        Item("b.png", result(part("cat", PLACES[:1]), part("dog", []))),
        Item("c.png", None, "no image"),
    ]
    texts = as_yolo(items)
    assert (texts["labels/a.txt"][:2], texts["labels/b.txt"][:2]) == ("1 ", "0 ")
    assert [note["category_id"] for note in as_coco(items)["annotations"]] == [2, 1]
    assert sorted(as_voc(items)) == ["Annotations/a.xml", "Annotations/b.xml"]


def test_files_of_one_name_do_not_overwrite_each_other() -> None:
    items = [Item(name, result(part("cat", []))) for name in ("x/a.png", "y/a.jpg", "a-2.png")]
    assert len(as_voc(items)) == 3
    assert unique("a", {"a", "a-2"}) == "a-3"


def test_the_document_and_the_table_hold_every_file_with_its_error() -> None:
    items = [boxes(), Item("broken.png", None, "It is damaged.")]
    files = as_document(items)["files"]
    assert files[0]["model"] == "m"
    assert files[0]["labels"] == list(LABELS)
    assert files[1] == {"file": "broken.png", "error": "It is damaged."}
    rows = list(csv.DictReader(io.StringIO(as_csv(items))))
    assert [row["error"] for row in rows] == ["", "It is damaged."]
    assert (rows[0]["width"], rows[0]["count"]) == ("640", f"{LABELS[0]}: 3, {LABELS[1]}: 3")


def test_an_answer_is_one_cell_of_the_table() -> None:
    text = 'yes, "two"\nlines'
    item = Item("a.png", result(part("", text), task="query", prompt="is it?"))
    assert next(csv.DictReader(io.StringIO(as_csv([item]))))["answer"] == text


def test_the_drawn_picture_has_the_colours_of_the_page() -> None:
    labels = ("blue cat", "red dog")
    drawn = burnt_in(
        Image.new("RGB", (400, 400), "white"), result(*(part(n, PLACES[:1]) for n in labels), size=(400, 400))
    )
    pixel = drawn.getpixel((200, 200 + 1))
    assert pixel == tuple(bytes.fromhex(palette(labels)["red dog"][1:]))


def test_a_run_is_saved_as_every_kind_its_task_has() -> None:
    for task, kinds in (
        ("query", "json csv"),
        ("point", "png json csv"),
        ("detect", "png json csv coco yolo voc"),
    ):
        assert kinds_for(task) == tuple(kinds.split())
    item = boxes()
    with Folder() as folder:
        written = folder.save_run(Image.new("RGB", SIZE), item)
        assert sorted(written) == ["coco", "json", "png", "voc", "yolo"]
        assert json.loads(Path(written["json"]).read_text()) == item.result
        assert "labels/cat.txt" in members(written["yolo"])
        assert load_image(written["png"]).size == SIZE
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["photon_result.json", "photon_overlay.png", "photon_voc.zip"])
def test_a_full_disk_is_one_sentence(name: str) -> None:
    with Folder() as folder:
        (folder.path / name).symlink_to("/dev/full")
        with pytest.raises(SaveError, match="No space left on device") as error:
            folder.save_run(Image.new("RGB", SIZE), boxes())
    assert str(folder.path) not in str(error.value)


def test_pictures_go_into_one_archive() -> None:
    picture = Image.new("RGB", (9, 9))
    with Folder() as folder:
        path = folder.save_pictures((name, picture) for name in ("x/a.jpg", "a.png"))
        assert members(path) == ["a.png", "a-2.png"]
