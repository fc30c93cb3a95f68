"""Pins a batch: one row per file, a broken file is its own row, what is known is not run again, and others
keep their seats in the engine. user_reports 12, 32, 50."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import picture, tiny_model
from PIL import Image

from photon import Engine, EngineConfig, open_device
from photon.errors import InvalidRequestError
from photon.observe import Mark, Span, StepRecord
from photon.ui.batch_run import MAX_FILES, Batch, Job, Room, files_of, rows_of
from photon.ui.files import SaveError
from photon.ui.kept import Home, Kept, valid

TOKEN = "0" * 32
DETECT = Job("detect", "cat, dog", settings={"max_objects": 2})
GO_ON = Job("query", "go on", settings={"max_tokens": 60, "temperature": 1.0, "seed": 2})


class Together:
    """The most requests that any step held, and who arrived."""

    def __init__(self) -> None:
        self.most = 0
        self.arrivals = 0

    def on_span(self, span: Span) -> None: ...

    def on_mark(self, mark: Mark) -> None:
        self.arrivals += mark.name == "arrival"

    def on_step(self, record: StepRecord) -> None:
        self.most = max(self.most, len(record.rows))


@pytest.fixture(scope="module")
def together() -> Together:
    return Together()


@pytest.fixture(scope="module")
def engine(together: Together) -> Iterator[Engine]:
    config = EngineConfig(max_batch_size=4)
    with Engine(tiny_model(), open_device("cpu"), config, observers=[together]) as engine:
        yield engine


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[str, str]]:
    """Six pictures in several formats, and between them one that is none."""
    made = []
    for number, ending in enumerate(("png", "jpg", "webp", "gif", "bmp", "tiff")):
        path = tmp_path / f"{number}.{ending}"
        Image.fromarray(picture(number)).save(path)
        made.append((path.name, str(path)))
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    return [*made[:3], ("broken.png", str(broken)), *made[3:]]


def batch(engine: Engine, files: list[tuple[str, str]], kept: Kept, job: Job = DETECT) -> Batch:
    return Batch(engine, Room(2), kept, job, rows_of(files, job))


def played(engine: Engine, files: list[tuple[str, str]], kept: Kept, job: Job = DETECT) -> Batch:
    made = batch(engine, files, kept, job)
    asyncio.run(asyncio.wait_for(made.run(), 60))
    return made


def test_a_broken_file_is_its_own_row_and_every_format_is_read(
    engine: Engine, files: list[tuple[str, str]], home: Home
) -> None:
    """user_reports 12, 50."""
    rows = played(engine, files, home.of(TOKEN)).rows
    assert [row.state for row in rows] == ["done"] * 3 + ["error"] + ["done"] * 3
    assert "damaged" in rows[3].error
    assert all(list(row.result["count"]) == ["cat", "dog"] for row in rows if row.result)


def test_a_row_is_what_a_run_alone_gives(engine: Engine, files: list[tuple[str, str]], home: Home) -> None:
    for row in played(engine, files[:3], home.of(TOKEN)).rows:
        alone = engine.detect(row.path, "cat", settings=DETECT.settings)["objects"]
        assert row.result is not None
        assert row.result["count"]["cat"] == len(alone)


def test_what_is_known_is_not_run_again_and_a_change_is(
    engine: Engine, together: Together, files: list[tuple[str, str]], home: Home
) -> None:
    first = played(engine, files, home.of(TOKEN))
    arrivals = together.arrivals
    again = played(engine, files, home.of(TOKEN))
    assert together.arrivals == arrivals
    assert again.counts() == {"kept": 6, "error": 1}
    assert [row.result for row in again.rows] == [row.result for row in first.rows]
    for other in (Job("detect", "cat"), Job("point", DETECT.prompt), Job("detect", DETECT.prompt)):
        assert played(engine, files[:1], home.of(TOKEN), other).counts() == {"done": 1}
    assert played(engine, files[:1], home.of("1" * 32)).counts() == {"done": 1}, "another browser"


def test_a_renamed_file_is_known_and_a_changed_one_is_not(
    engine: Engine, files: list[tuple[str, str]], tmp_path: Path, home: Home
) -> None:
    kept = home.of(TOKEN)
    played(engine, files[:1], kept)
    renamed = Path(files[0][1]).rename(tmp_path / "other name.png")
    assert played(engine, [("x", str(renamed))], kept).counts() == {"kept": 1}
    Image.fromarray(picture(9)).save(renamed)
    assert played(engine, [("x", str(renamed))], kept).counts() == {"done": 1}


def test_a_stopped_batch_goes_on_where_it_was(
    engine: Engine, files: list[tuple[str, str]], home: Home
) -> None:
    """user_reports 50."""

    async def stop_after_one() -> Batch:
        stopped = batch(engine, files[:3], home.of(TOKEN), GO_ON)
        work = asyncio.ensure_future(stopped.run())
        while not stopped.counts()["done"]:
            await asyncio.sleep(0)
        stopped.cancel()
        await asyncio.wait_for(work, 60)
        return stopped

    counts = asyncio.run(stop_after_one()).counts()
    assert counts["stopped"] >= 1
    assert counts["done"] + counts["stopped"] == 3
    after = played(engine, files[:3], home.of(TOKEN), GO_ON).counts()
    assert after == {"kept": counts["done"], "done": counts["stopped"]}


def test_a_visitor_who_leaves_takes_the_batch_out_of_the_engine(
    engine: Engine, files: list[tuple[str, str]], home: Home
) -> None:
    async def leave() -> Batch:
        left = batch(engine, files, home.of(TOKEN), GO_ON)
        work = asyncio.ensure_future(left.run())
        while not engine.stats()["resident"]:
            await asyncio.sleep(0)
        work.cancel()
        await asyncio.wait({work}, timeout=60)
        return left

    left = asyncio.run(leave())
    while engine.stats()["resident"] or engine.stats()["waiting"]:
        pass
    assert left.counts()["stopped"] >= 5


def test_two_batches_together_take_no_more_seats_than_the_room_has(
    engine: Engine, together: Together, files: list[tuple[str, str]], home: Home
) -> None:
    async def both() -> list[Batch]:
        room = Room(2)
        batches = [
            Batch(engine, room, home.of(token * 32), job, rows_of(files, job))
            for token, job in (("a", DETECT), ("b", GO_ON))
        ]
        await asyncio.gather(*(batch.run() for batch in batches))
        return batches

    together.most = 0
    assert [made.counts()["done"] for made in asyncio.run(both())] == [6, 6]
    assert together.most == 2


def test_more_labels_than_seats_take_them_all() -> None:
    async def take() -> None:
        room = Room(2)
        for _ in range(3):
            async with room.take(8):
                pass

    asyncio.run(asyncio.wait_for(take(), 10))


def test_every_question_is_a_row_and_labels_are_one() -> None:
    files = [("a.png", "a"), ("b.png", "b")]
    questions = rows_of(files, Job("query", "what is it?\n\n why, then? "))
    assert [(row.file, row.prompt) for row in questions[:2]] == [
        ("a.png", "what is it?"),
        ("a.png", "why, then?"),
    ]
    assert len(rows_of(files, Job("detect", "cat\ndog"))) == len(rows_of(files, Job("caption"))) == 2


@pytest.mark.parametrize(
    ("files", "job", "words"),
    [
        (0, DETECT, "no pictures"),
        (MAX_FILES + 1, DETECT, "too many"),
        (1, Job("detect", " \n"), "empty"),
        (1, Job("detect", ",".join("abcdefghi")), "too many"),
        (1, Job("caption", length="endless"), "endless"),
        (1, Job("segment", "x"), "segment"),
    ],
)
def test_a_batch_that_cannot_be_is_one_sentence(files: int, job: Job, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        rows_of([("a.png", "a")] * files, job)


def test_what_is_wrong_for_every_file_ends_the_batch(
    engine: Engine, files: list[tuple[str, str]], home: Home
) -> None:
    with pytest.raises(InvalidRequestError, match="max_objects"):
        played(engine, files, home.of(TOKEN), Job("detect", "cat", settings={"max_objects": 0}))


def test_results_that_cannot_be_kept_are_there_and_it_is_said(
    engine: Engine, files: list[tuple[str, str]], tmp_path: Path
) -> None:
    occupied = tmp_path / "occupied"
    occupied.write_text("a file where the folder should be")
    made = played(engine, files[:2], Kept(occupied))
    assert made.counts() == {"done": 2}
    assert "cannot be kept" in made.note
    assert str(tmp_path) not in made.note


def test_a_full_disk_leaves_no_half_result(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    (tmp_path / "k.json").mkdir()
    (tmp_path / "k.json" / "in the way").touch()
    with pytest.raises(SaveError):
        kept.put("k", {})
    assert [path.name for path in tmp_path.iterdir()] == ["k.json"]
    assert kept.get("k") is None


@pytest.mark.parametrize("token", [None, 7, "", "../../etc", "A" * 32, "0" * 33])
def test_only_a_token_names_a_folder(token: Any) -> None:
    assert valid(token) != token
    assert len(valid(token)) == 32


def test_a_file_that_is_gone_is_its_own_sentence(engine: Engine, home: Home) -> None:
    rows = played(engine, files_of([{"path": "/nowhere/a.png", "orig_name": "a.png"}]), home.of(TOKEN)).rows
    assert rows[0].error == "The file cannot be read (No such file or directory); add it again."
