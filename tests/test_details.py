"""Pins the answers to a click: a step and a bubble as JSON, and one sentence for what is not held."""

from __future__ import annotations

import pytest
from producer import MS, run
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tracing.bubbles import bubbles
from tracing.inspect import inspect
from tracing.recorder import Recorder
from tracing.ui.details import detail_routes
from tracing.ui.sources import Sources


@pytest.fixture
def sources() -> Sources:
    recorder = Recorder()
    run(recorder, 0, run(recorder, 50, 0) + MS, depth=1)
    return Sources(recorder)


def ask(sources: Sources, path: str) -> tuple[int, dict]:
    response = TestClient(Starlette(routes=detail_routes(sources))).get(path)
    return response.status_code, response.json()


def test_a_step_is_answered_as_inspect_sees_it(sources: Sources) -> None:
    status, answer = ask(sources, "/wb/trace/step?step=7")
    assert status == 200
    assert answer == inspect(sources.live.snapshot(), 7)
    assert len(answer["table"]) > 0


def test_a_step_of_an_opened_trace_is_found_by_its_source(sources: Sources) -> None:
    source = sources.add(sources.live.snapshot(), "copy")
    assert ask(sources, f"/wb/trace/step?source={source}&step=7") == ask(sources, "/wb/trace/step?step=7")


def test_a_bubble_is_answered_with_its_cause_in_words(sources: Sources) -> None:
    found = [b for b in bubbles(sources.live.snapshot()) if b.step_id > 1]
    for bubble in (found[0], found[-1]):
        status, answer = ask(sources, f"/wb/trace/bubble?start={bubble.start_ns}&end={bubble.end_ns}")
        assert status == 200
        assert (answer["step"], answer["cause"], answer["text"]) == (
            bubble.step_id,
            bubble.cause,
            bubble.text,
        )


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("step?step=999", 404, "not held"),
        ("step?step=seven", 400, "whole numbers"),
        ("step?step=7&source=nobody", 404, "open its file again"),
        ("bubble?start=-9000000000&end=-8000000000", 404, "no bubble"),
    ],
)
def test_what_is_not_held_is_refused_in_one_sentence(
    sources: Sources, path: str, status: int, words: str
) -> None:
    code, answer = ask(sources, f"/wb/trace/{path}")
    assert code == status
    assert words in answer["error"]
