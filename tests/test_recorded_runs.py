"""Pins that a trace is true: what the recorder holds of real runs of the engine adds up to the nanosecond and
is what the engine itself reports. Runs are on the deferred device, every kind of request at once.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from engines import build, finish, requests, small, tick

from photon import Handle
from tracing.bubbles import bubbles, gaps, host_leaves, steps_overlap
from tracing.inspect import inspect, step_ids, steps
from tracing.intervals import pairs, total, union
from tracing.leaks import leaks
from tracing.metrics import summary
from tracing.predict import predict
from tracing.recorder import Recorder
from tracing.requests import demand, request_lives
from tracing.trace import RowRecord, SpanRecord, Trace

CANCELLED = (0, 4, 9)


@dataclass(frozen=True)
class Run:
    trace: Trace
    handles: tuple[Handle, ...]
    stats: dict[str, Any]

    def is_cancelled(self, request_id: int) -> bool:
        """Request ids count from 1 in order of submission."""
        return self.handles[request_id - 1].result(timeout=0)["finish_reason"] == "cancelled"

    def steps(self) -> dict[int, list[SpanRecord]]:
        found: dict[int, list[SpanRecord]] = defaultdict(list)
        for span in self.trace.spans:
            found[span.step_id].append(span)
        return found

    def rows(self) -> dict[int, list[RowRecord]]:
        found: dict[int, list[RowRecord]] = defaultdict(list)
        for row in self.trace.rows:
            found[row.step_id].append(row)
        return found


@functools.cache
def run(depth: int, sync_masks: bool = False) -> Run:
    recorder = Recorder(info=lambda: {"depth": str(depth)})
    with build(small(depth=depth), observers=[recorder]) as engine:
        engine._runtime.sync_masks = sync_masks
        handles = [engine.submit(request) for request in requests()]
        for index in CANCELLED:
            for _ in range(4):
                tick(engine)
            handles[index].cancel()
        finish(engine)
        return Run(recorder.snapshot(), tuple(handles), engine.stats())


RUNS = pytest.mark.parametrize(("depth", "sync_masks"), [(1, False), (2, False), (2, True)])


@RUNS
def test_spans_of_a_track_nest_or_are_disjoint(depth: int, sync_masks: bool) -> None:
    for track in ("host", "compute", "copy"):
        open_ends: list[int] = []
        for span in (s for s in run(depth, sync_masks).trace.spans if s.track == track):
            while open_ends and open_ends[-1] <= span.start_ns:
                open_ends.pop()
            assert not open_ends or span.end_ns <= open_ends[-1]
            open_ends.append(span.end_ns)


@RUNS
def test_device_spans_lie_between_launch_and_commit_of_their_step(depth: int, sync_masks: bool) -> None:
    for spans in run(depth, sync_masks).steps().values():
        launched = min(s.start_ns for s in spans if s.name == "launch")
        committed = max(s.end_ns for s in spans if s.name == "commit")
        device = [s for s in spans if s.track != "host"]
        assert {s.track for s in device} == {"compute", "copy"}
        assert all(launched <= s.start_ns <= s.end_ns <= committed for s in device)


@RUNS
def test_the_forward_starts_when_the_upload_of_its_inputs_has_ended(depth: int, sync_masks: bool) -> None:
    for spans in run(depth, sync_masks).steps().values():
        upload, work, *_ = [s for s in spans if s.track == "compute"]
        assert upload.name == "h2d"
        assert upload.end_ns <= work.start_ns


@RUNS
def test_outermost_host_spans_and_the_gaps_between_them_are_the_wall_time(
    depth: int, sync_masks: bool
) -> None:
    spans = [s for s in run(depth, sync_masks).trace.spans if s.track == "host"]
    outermost, wall, at = [], spans[-1].end_ns - spans[0].start_ns, spans[0].start_ns
    between = 0
    for span in spans:
        if span.start_ns >= at:
            between += span.start_ns - at
            outermost.append(span)
            at = span.end_ns
    assert sum(s.end_ns - s.start_ns for s in outermost) + between == wall
    leaves = host_leaves(run(depth, sync_masks).trace)
    assert sum(leaf.end_ns - leaf.start_ns for leaf in leaves) + between == wall


@RUNS
def test_every_committed_step_has_one_record_with_all_its_rows(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    rows, spans = found.rows(), found.steps()
    assert set(rows) == set(spans) == set(range(1, found.stats["steps"] + 1))
    for step, own in rows.items():
        commit = next(s for s in spans[step] if s.name == "commit")
        assert [row.row for row in own] == list(range(commit.rows))
        assert sum(row.is_zombie for row in own) == commit.zombies
        assert {row.time_ns for row in own} == {commit.start_ns}
    assert sum(row.is_zombie for own in rows.values() for row in own) == found.stats["zombie_rows"]


@RUNS
def test_rows_are_the_tokens_that_the_callers_got(depth: int, sync_masks: bool) -> None:
    """The end token is delivered as well; it is no part of the answer, a stop string takes tokens back."""
    found = run(depth, sync_masks)
    delivered: dict[int, list[RowRecord]] = defaultdict(list)
    for row in found.trace.rows:
        assert not (row.is_zombie and row.is_delivered)
        if row.is_delivered:
            delivered[row.request_id].append(row)
    for index, handle in enumerate(found.handles):
        own, tokens = delivered[index + 1], handle.tokens
        assert len(own) - len(tokens) in (0, 1)
        for row, token in zip(own, tokens, strict=False):
            assert row.token_id == token.id
            assert row.x == token.x or row.x != row.x


@RUNS
def test_refs_and_positions_of_a_request_go_step_by_step(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    by_request: dict[int, list[RowRecord]] = defaultdict(list)
    for row in found.trace.rows:
        assert row.refs_after == row.refs_before - 1
        assert 0 <= row.refs_after < depth
        assert row.pages > 0
        by_request[row.request_id].append(row)
    for rows in by_request.values():
        assert all(b.position == a.position + 1 for a, b in pairwise(rows))
        assert all(b.time_ns > a.time_ns for a, b in pairwise(rows))


@RUNS
def test_a_zombie_had_finished_and_is_released_at_its_commit(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    marks = {(m.request_id, m.name): m.time_ns for m in found.trace.marks}
    zombies = [row for row in found.trace.rows if row.is_zombie]
    assert bool(zombies) == (depth == 2)
    for row in zombies:
        ended = marks.get((row.request_id, "finish"), marks.get((row.request_id, "cancel")))
        assert ended is not None
        assert ended < row.time_ns
        assert row.refs_after == 0
        commit = next(s for s in found.steps()[row.step_id] if s.name == "commit")
        assert commit.start_ns <= marks[row.request_id, "release"] <= commit.end_ns


@RUNS
def test_every_zombie_is_explained_by_facts(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    zombies = [row for row in found.trace.rows if row.is_zombie]
    assert {found.is_cancelled(row.request_id) for row in zombies} == ({True, False} if depth == 2 else set())
    for row in zombies:
        (why,) = [r["why"] for r in inspect(found.trace, row.step_id)["table"] if r["row"] == row.row]
        launched = f"; step {row.step_id} had been launched "
        if found.is_cancelled(row.request_id):
            assert why.startswith(f"Request {row.request_id} was cancelled{launched}")
        else:
            before = next(
                r for r in reversed(found.rows()[row.step_id - 1]) if r.request_id == row.request_id
            )
            how = f"finished (with token {before.token_id}) when step {before.step_id} was committed"
            assert why.startswith(f"Request {row.request_id} {how}{launched}")
        assert why.endswith("its pages are released now.")


@RUNS
def test_a_leak_is_found_in_every_sample_that_has_one_and_nowhere_else(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    told = Counter((leak.step_id, leak.inside) for leak in leaks(found.trace))
    expected = [(step, "sample") for step in found.steps()] if sync_masks else []
    assert told == Counter(expected)


@RUNS
def test_bubbles_are_the_idle_time_of_the_run(depth: int, sync_masks: bool) -> None:
    trace = run(depth, sync_masks).trace
    found = bubbles(trace)
    idle = pairs([b.start_ns for b in found], [b.end_ns for b in found])
    short = total(gaps(trace)) - total(union(idle))
    assert 0 <= short <= 2_000 * len(gaps(trace))
    assert all(sum(part.ns for part in b.parts) == b.host_ns for b in found)
    at_depth_2 = "at depth 2 the next forward would have been launched before that"
    assert any(at_depth_2 in b.text for b in found) == (depth == 1)


@RUNS
def test_lives_are_those_of_the_handles(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    lives = {life.request_id: life for life in request_lives(found.trace)}
    assert len(lives) == len(found.handles)
    for index, handle in enumerate(found.handles):
        life, metrics = lives[index + 1], handle.metrics
        assert metrics is not None
        assert life.is_cancelled == found.is_cancelled(index + 1)
        if life.first_token_ns is not None and life.arrival_ns is not None:
            assert (life.first_token_ns - life.arrival_ns) / 1e6 == pytest.approx(metrics.ttft_ms)
            assert life.first_token_ns == life.tokens_ns[0]
    assert total(demand(found.trace)) > 0


@RUNS
def test_a_blocking_run_predicts_and_a_pipelined_one_does_not(depth: int, sync_masks: bool) -> None:
    trace = run(depth, sync_masks).trace
    assert steps_overlap(trace) == (depth == 2)
    assert (predict(trace) is None) == (depth == 2)
    values = summary(trace)
    assert values["sync_leaks"] == (len(step_ids(trace)) if sync_masks else 0)


@RUNS
def test_every_step_can_be_inspected(depth: int, sync_masks: bool) -> None:
    found = run(depth, sync_masks)
    lines = {line["step"]: line for line in steps(found.trace, newest=10_000)}
    for step in step_ids(found.trace):
        seen = inspect(found.trace, step)
        assert {key: lines[step][key] for key in ("slot", "kind", "rows", "zombies", "padding")} == {
            key: seen[key] for key in ("slot", "kind", "rows", "zombies", "padding")
        }
        assert [text.partition(":")[0] for text in seen["waits"]] == ["launch", "sample", "commit"]
        assert len(seen["table"]) == seen["rows"] + seen["padding"]
        assert min(span["offset_us"] for span in seen["spans"] if span["track"] != "host") >= 0
