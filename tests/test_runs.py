"""Pins a run in the real engine, tick by tick: its place in the line, and Stop, after which at most two steps
hold it. user_reports 45, 48."""

from __future__ import annotations

import asyncio

import pytest
from engines import build, finish, picture, query, small, tick
from PIL import Image

from photon import Engine
from photon.observe import Mark, Span, StepRecord
from photon.ui.ask import Ask
from photon.ui.results import progress
from photon.ui.runs import Run, submit
from photon.ui.session import Session

LONG = {"max_tokens": 40, "temperature": 1.0, "seed": 2}


class Rows:
    """Which requests each committed step held."""

    def __init__(self) -> None:
        self.steps: list[set[int]] = []

    def on_span(self, span: Span) -> None: ...

    def on_mark(self, mark: Mark) -> None: ...

    def on_step(self, record: StepRecord) -> None:
        self.steps.append({row.request_id for row in record.rows})


def started(engine: Engine, task: str = "point", prompt: str = "cat, dog") -> Run:
    ask = Ask(task, Image.fromarray(picture(1)), prompt, settings=LONG)
    return asyncio.run(submit(engine, ask))


@pytest.mark.parametrize("age", [2, 3, 6])
def test_after_stop_at_most_two_steps_hold_the_run_and_others_go_on(age: int) -> None:
    """user_reports 45."""
    rows, session = Rows(), Session()
    with build(observers=[rows]) as engine:
        other = engine.submit(query(image=picture(2), **LONG))
        run = started(engine, "query", "tell me more")
        session.attach(session.begin(), run)
        for _ in range(age):
            tick(engine)
        before = len(rows.steps)
        session.stop()
        finish(engine)
        mine = {handle.request_id for handle in run.handles}
        assert sum(bool(mine & step) for step in rows.steps[before:]) <= 2
        assert run.outcome().parts[0].finish_reason == "cancelled"
        assert other.result(timeout=0)["finish_reason"] != "cancelled"


def test_who_waits_sees_how_many_are_before_them() -> None:
    """user_reports 48."""
    with build(small(max_batch_size=1)) as engine:
        first = engine.submit(query(image=picture(2), **LONG))
        run, last = started(engine), started(engine, "query", "why")
        tick(engine)
        assert (run.snapshot().num_ahead, last.snapshot().num_ahead) == (0, 2)
        assert progress(last.snapshot()).startswith("Queued: 2 requests before this one")
        run.handles[0].cancel()
        tick(engine)
        assert progress(last.snapshot()).startswith("Queued: 1 request before this one")
        first.cancel()
        run.cancel()
        tick(engine)
        assert last.snapshot().num_ahead == 0
        finish(engine)
        assert last.outcome().parts[0].finish_reason in ("stop", "length")


def test_labels_run_beside_each_other_and_one_failure_is_its_own() -> None:
    with build() as engine:
        run = started(engine, "point", "cat, dog")
        tick(engine)
        assert engine.stats()["schedulable"] == 2
        engine._roster.fail(engine._roster.running[0], RuntimeError("broken grammar"))
        finish(engine)
        broken, whole = run.outcome().parts
        assert "broken grammar" in broken.error
        assert whole.finish_reason in ("stop", "length")
