"""Pins the page's pure parts: labels, settings, results as JSON and sentences, SVG, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from photon.errors import InvalidRequestError, QueueFullError
from photon.ui import events, markup, results
from photon.ui.ask import MAX_LABELS, TASKS, Ask, check_task, split_labels
from photon.ui.examples import Example, picked, read_examples
from photon.ui.image_input import is_animated, path_of
from photon.ui.runs import Outcome, Part, Run, submit
from photon.ui.session import Session
from photon.ui.tasks import FIRST_PROMPT, prompt_update, settings_from

BOX = {"x_min": 0.25, "y_min": 0.5, "x_max": 0.75, "y_max": 1.0}


def metrics(**changes: Any) -> SimpleNamespace:
    names = ("queue_ms", "preprocess_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms", "tokens_per_s")
    counts = ("input_tokens", "output_tokens", "cached_tokens", "zombie_rows", "arrival_ns", "finished_ns")
    return SimpleNamespace(**(dict.fromkeys(names, 1.0) | dict.fromkeys(counts, 1) | changes))


def outcome(task: str, *parts: Part, prompt: str = "cat", size: tuple[int, int] = (200, 100)) -> Outcome:
    return Outcome(Ask(task, Image.new("RGB", size), prompt), parts, "finished")


# ---- what is asked


def test_commas_and_lines_separate_labels_and_quotes_keep_a_comma() -> None:
    """user_reports 33."""
    assert split_labels(' cat,  big dog\n"salt, pepper" ') == ("cat", "big dog", "salt, pepper")


def test_duplicate_labels_are_merged_without_regard_to_case_as_first_typed() -> None:
    """user_reports 33."""
    assert split_labels("Cat, cat, CAT") == ("Cat",)


def test_an_empty_prompt_stays_one_empty_label_for_the_engine_to_refuse() -> None:
    assert split_labels("  ,\n") == ("",)


def test_too_many_labels_are_refused_with_the_limit() -> None:
    with pytest.raises(InvalidRequestError, match=f"at most {MAX_LABELS}"):
        split_labels(",".join(map(str, range(MAX_LABELS + 1))))


def test_a_question_is_never_split() -> None:
    assert Ask("query", Image.new("RGB", (1, 1)), "a, b?").labels == ("a, b?",)


def test_each_label_becomes_one_request_with_the_same_settings() -> None:
    picture = Image.new("RGB", (1, 1))
    requests = Ask("detect", picture, "cat, dog", settings={"seed": 1}).requests(picture)
    assert [(r.skill, r.prompt, dict(r.settings)) for r in requests] == [
        ("detect", "cat", {"seed": 1}),
        ("detect", "dog", {"seed": 1}),
    ]


def test_unknown_tasks_and_lengths_are_named() -> None:
    with pytest.raises(InvalidRequestError, match="segment"):
        check_task("segment", "normal")
    with pytest.raises(InvalidRequestError, match="tiny"):
        check_task("caption", "tiny")


def test_empty_settings_are_left_out_and_text_that_is_no_number_is_passed_on() -> None:
    given = settings_from("0.5", "", "ten", None, " 7 ", "stop\n\nhalt")
    assert given == {"temperature": 0.5, "max_tokens": "ten", "seed": 7, "stop": ["stop", "halt"]}


def test_switching_the_task_replaces_only_a_prompt_nobody_typed() -> None:
    assert prompt_update("detect", FIRST_PROMPT["query"])[0]["value"] == FIRST_PROMPT["detect"]
    assert prompt_update("detect", "my own words")[0]["value"] == "my own words"


def test_caption_shows_the_length_instead_of_the_prompt() -> None:
    prompt, length, refs = prompt_update("caption", "x")
    assert (prompt["visible"], length["visible"], refs["visible"]) == (False, True, False)


def test_references_are_offered_where_the_engine_takes_them() -> None:
    assert [task for task in TASKS if prompt_update(task, "")[2]["visible"]] == ["query", "point"]


# ---- what came out


def test_json_states_the_picture_the_space_and_why_it_ended() -> None:
    """user_reports 30."""
    result = results.as_json(outcome("detect", Part("cat", [BOX], 1, "stop", False, metrics())))
    assert result["image"] == {"width": 200, "height": 100}
    pixels = {"x_min": 50, "y_min": 50, "x_max": 150, "y_max": 100}
    assert result["objects"] == [{"label": "cat", "normalized": BOX, "pixels": pixels}]
    assert (result["count"], result["finish_reason"], result["truncated"]) == ({"cat": 1}, "stop", False)


def test_coordinates_are_clamped_and_ordered_once_for_json_and_drawing() -> None:
    assert results.tidy({"x_min": 1.5, "x_max": -0.5, "y_min": 0.2, "y_max": 0.1}) == {
        "x_min": 0.0,
        "x_max": 1.0,
        "y_min": 0.1,
        "y_max": 0.2,
    }


def test_zero_found_is_a_success_with_its_own_sentence() -> None:
    """user_reports 31."""
    empty = outcome("point", Part("x", [], 1, "stop", False, metrics()), prompt="x")
    assert results.counts(empty) == {"x": "0 found for 'x'"}
    assert results.as_json(empty)["points"] == []


def test_one_failing_label_does_not_lose_the_others() -> None:
    """user_reports 32."""
    good, bad = (
        Part("cat", [BOX], 1, "stop", False, metrics()),
        Part("dog", [], 2, "error", error="It broke."),
    )
    result = results.as_json(outcome("detect", good, bad))
    assert (len(result["objects"]), result["errors"]) == (1, {"dog": "It broke."})


@pytest.mark.parametrize(
    ("reason", "word"), [("stop", "Complete"), ("length", "limit"), ("cancelled", "kept")]
)
def test_why_a_run_ended_is_said_in_words(reason: str, word: str) -> None:
    """user_reports 19."""
    assert word in results.why_it_ended(outcome("query", Part("", "text", 1, reason)))


def test_metrics_of_several_requests_add_counts_and_keep_the_slowest_time() -> None:
    parts = (
        Part("a", [], 1, "stop", False, metrics(total_ms=5.0, output_tokens=3, finished_ns=10)),
        Part("b", [], 2, "stop", False, metrics(total_ms=9.0, output_tokens=4, arrival_ns=0)),
    )
    merged = results.merged_metrics(parts)
    assert (merged["total_ms"], merged["output_tokens"], merged["requests"]) == (9.0, 7, 2)
    window = results.run_window(parts)
    assert window is not None
    assert (window.start_ns, window.end_ns) == (0, 10)


def test_the_python_call_repeats_task_prompt_and_settings() -> None:
    """user_reports 24."""
    ask = Ask("point", Image.new("RGB", (1, 1)), "it's", "", {"max_objects": 2}, ((0.1, 0.2),))
    call = results.python_call(ask)
    arguments = """settings={'max_objects': 2}, spatial_refs=[[0.1, 0.2]]"""
    assert f"""engine.point(image, "it's", {arguments})["points"]""" in call
    assert f'object="it\'s", {arguments}, api_name' in call
    compile(call, "call", "exec")


# ---- what is drawn


@pytest.mark.parametrize("size", [(64, 64), (1, 1), (6000, 4000), (30, 900)])
def test_every_number_of_the_svg_lies_in_the_picture(size: tuple[int, int]) -> None:
    box = {"x_min": -1.0, "y_min": 0.0, "x_max": 2.0, "y_max": 0.0}
    svg = markup.marks({"a very long label " * 9: [box, {"x": 1.0, "y": 0.0}]}, size)
    assert f'viewBox="0 0 {size[0]} {size[1]}"' in svg
    for attribute, limit in (("x", size[0]), ("cx", size[0]), ("y", size[1]), ("cy", size[1])):
        values = [float(value) for value in re.findall(rf' {attribute}="([-\d.]+)"', svg)]
        assert values
        assert all(0 <= value <= limit + 1 for value in values), attribute


def test_labels_have_different_colours_and_a_named_colour_is_its_own() -> None:
    colours = markup.palette(["Blue cross", "red cross", "star", "red star"])
    assert (colours["Blue cross"], colours["red cross"]) == ("#0b6bcb", "#e6194b")
    assert len(set(colours.values())) == 4


def test_a_label_keeps_its_colour_where_another_one_failed() -> None:
    labels = ("cat", "dog")
    dog = markup.palette(labels)["dog"]
    assert dog in markup.marks({"dog": [BOX]}, (9, 9), labels)
    assert dog in markup.status("done", "", counts={"dog": "1 found"}, labels=labels)


def test_line_width_follows_the_picture() -> None:
    assert markup.line_width((64, 64)) <= 2
    assert markup.line_width((6000, 4000)) >= 10


def test_labels_and_answers_stay_text() -> None:
    """user_reports 18."""
    hostile = "<style>*{display:none}</style> {{value}} ${1+1}"
    for html in (
        markup.answer(hostile),
        markup.status("done", hostile),
        markup.marks({hostile: [BOX]}, (9, 9)),
    ):
        assert "<style>" not in html
        assert "{{" not in html
        assert "${" not in html


def test_numbers_show_a_dash_where_there_is_nothing_to_divide() -> None:
    assert "–" in markup.numbers({"tokens_per_s": None, "queue_ms": 0.5}, 2)
    assert markup.numbers({}, 2) == ""


def test_a_large_picture_is_shown_smaller_but_keeps_its_own_ratio() -> None:
    html = markup.picture(Image.new("RGB", (4000, 1000)))
    assert "--w:4000;--h:1000" in html
    assert len(html) < 100_000


# ---- who it belongs to


class Cancellable:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def test_a_new_turn_cancels_the_one_before() -> None:
    session, run = Session(), Cancellable()
    session.attach(session.begin(), run)  # type: ignore[arg-type]
    session.begin()
    assert run.cancelled == 1


def test_stop_before_the_request_exists_cancels_it_as_soon_as_it_does() -> None:
    session, run = Session(), Cancellable()
    turn = session.begin()
    session.stop()
    session.attach(turn, run)  # type: ignore[arg-type]
    assert run.cancelled == 1


def test_a_run_that_arrives_for_an_older_turn_is_cancelled_and_not_kept() -> None:
    session, late = Session(), Cancellable()
    old = session.begin()
    session.begin()
    session.attach(old, late)  # type: ignore[arg-type]
    assert (late.cancelled, session.run) == (1, None)


def test_only_the_current_turn_may_end_the_run() -> None:
    session, run = Session(), Cancellable()
    old = session.begin()
    turn = session.begin()
    session.attach(turn, run)  # type: ignore[arg-type]
    session.end(old)
    assert run.cancelled == 0
    session.end(turn)
    assert run.cancelled == 1


class SlowEngine:
    """Takes its time in submit, as a large picture does; remembers what it handed out."""

    def __init__(self) -> None:
        self.device = SimpleNamespace(now_ns=lambda: 0)
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.handles: list[Cancellable] = []

    def submit(self, request: Any) -> Cancellable:
        self.entered.set()
        assert self.go_on.wait(10)
        self.handles.append(Cancellable())
        return self.handles[-1]


def test_who_leaves_while_the_picture_is_prepared_leaves_no_request_behind() -> None:
    engine = SlowEngine()

    async def leave() -> None:
        work = asyncio.create_task(submit(engine, Ask("point", Image.new("RGB", (1, 1)), "a")))  # type: ignore[arg-type]
        await asyncio.to_thread(engine.entered.wait, 10)
        work.cancel()
        engine.go_on.set()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        while not (engine.handles and engine.handles[0].cancelled):
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(leave(), 10))
    assert engine.handles[0].cancelled == 1


def submitted(prompt: str, refusals: dict[str, InvalidRequestError]) -> Run:
    """A run in an engine that refuses some labels."""

    def answer(request: Any) -> Cancellable:
        if request.prompt in refusals:
            raise refusals[request.prompt]
        handles.append(Cancellable())
        return handles[-1]

    handles.clear()
    clock = SimpleNamespace(now_ns=lambda: 0)
    engine = SimpleNamespace(device=clock, submit=answer, encode_image=lambda image: image)
    return asyncio.run(submit(engine, Ask("point", Image.new("RGB", (1, 1)), prompt)))  # type: ignore[arg-type]


handles: list[Cancellable] = []


def test_a_label_that_is_refused_keeps_its_sentence_and_the_others_run() -> None:
    run = submitted("a, b", {"b": InvalidRequestError("b is refused")})
    assert run.handles[0] is handles[0]
    assert run._part("b", run.handles[1]).error == "b is refused"


def test_a_run_of_which_every_label_is_refused_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="a is refused"):
        submitted("a, b", {name: InvalidRequestError(f"{name} is refused") for name in "ab"})


def test_a_full_queue_takes_back_the_labels_before_it() -> None:
    with pytest.raises(QueueFullError):
        submitted("a, b", {"b": QueueFullError("1 request is waiting; try again later.")})
    assert handles[0].cancelled == 1


def test_a_full_queue_is_busy_and_a_wrong_request_is_not_run() -> None:
    full = QueueFullError("1024 requests are waiting; try again later.")
    assert (events.headline(full), events.sentence(full)) == ("Busy, try again", str(full))
    assert events.headline(InvalidRequestError("x")) == "Not run"
    assert events.headline(RuntimeError("x")) == "Failed"


def test_an_example_is_found_only_by_a_valid_index() -> None:
    examples = (Example("a.png", "point", "x"),)
    assert picked(examples, {"index": 0}) == examples[0]
    assert [picked(examples, data) for data in ({"index": 1}, {"index": -1}, {"index": "0"}, {})] == [
        None
    ] * 4


def test_every_example_has_its_picture_and_one_per_task_at_least() -> None:
    path = Path(__file__).resolve().parents[1] / "assets" / "examples.json"
    examples = read_examples(path)
    assert len(examples) == len(json.loads(path.read_text()))
    assert {example.task for example in examples} == set(TASKS)


def test_an_empty_upload_has_no_path_and_a_broken_one_is_not_animated() -> None:
    assert (path_of(None), path_of({"path": None}), path_of({"path": "a"})) == (None, None, "a")
    assert is_animated(__file__) is False
