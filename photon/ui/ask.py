"""What one press of Run (or one API call) asks for: one picture, one task, one or several labels."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from photon import Request
from photon.errors import InvalidRequestError

TASKS = ("query", "caption", "point", "detect")
SPATIAL = ("point", "detect")
LENGTHS = ("short", "normal", "long")
MAX_LABELS = 8
WITH_REFS = ("query", "point")
RESULT_KEY = {"query": "answer", "caption": "caption", "point": "points", "detect": "objects"}


@dataclass(frozen=True)
class Ask:
    """Everything about one run that its result must repeat; immutable."""

    task: str
    image: Image.Image
    prompt: str = ""
    length: str = "normal"
    settings: Mapping[str, Any] = field(default_factory=dict)
    spatial_refs: tuple[tuple[float, ...], ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """What each engine request looks for; one empty label where the task has none."""
        return split_labels(self.prompt) if self.task in SPATIAL else (self.prompt,)

    @property
    def size(self) -> tuple[int, int]:
        return self.image.size

    def requests(self, image: Any) -> list[Request]:
        """One engine request per label, in the order typed; `image` is the picture, or it encoded."""
        return [
            Request(
                skill=self.task,
                image=image,
                prompt=label,
                length=self.length,
                spatial_refs=self.spatial_refs,
                settings=self.settings,
            )
            for label in self.labels
        ]


def split_labels(prompt: str) -> tuple[str, ...]:
    """Labels as typed, trimmed: "cat, dog" is two, one per line works too, '"salt, pepper"' is one.

    Duplicates are merged without regard to case. An empty prompt is one empty label: the engine says
    what is wrong with it.

    Raises:
        InvalidRequestError: more than MAX_LABELS labels.
    """
    rows = csv.reader(prompt.splitlines(), skipinitialspace=True)
    found: dict[str, str] = {}
    for label in (cell.strip() for row in rows for cell in row):
        if label:
            found.setdefault(label.casefold(), label)
    if len(found) > MAX_LABELS:
        raise InvalidRequestError(f"{len(found)} labels are too many for one run; use at most {MAX_LABELS}.")
    return tuple(found.values()) or ("",)


def check_task(task: str, length: str) -> None:
    """Raise InvalidRequestError for a task or a caption length that does not exist."""
    if task not in TASKS:
        raise InvalidRequestError(f"There is no task {task!r}; use {', '.join(TASKS)}.")
    if length not in LENGTHS:
        raise InvalidRequestError(f"There is no length {length!r}; use {', '.join(LENGTHS)}.")
