"""Pins what the engine tells an observer, and that telling changes nothing.

pipeline_bugs 66-70, 72, 73, and I13: on the launch and sample path nothing waits for the device.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import Any

import pytest
from engines import FlakyDevice, build, finish, oracle, outcome, query, requests, run, small, tick, tiny_model

from photon import Engine, Request, open_device
from photon.device.deferred import DeferredDevice
from photon.measure.rounds import EndlessSkill
from photon.model.config import TokenizerConfig
from photon.observe import Mark, Span, StepRecord, StepRow
from photon.sequence import SamplingParams
from photon.skills.base import Mask, Skill, TextEncoder, Token, token_masks

ALL = range(len(requests()))


class FailingSkill(EndlessSkill):
    """Raises on its second token."""

    def consume(self, token: Token) -> str:
        if self._started:
            raise ValueError("enough")
        return super().consume(token)


def failing(params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    return FailingSkill(encoder, ids, [Token(1)], key="caption", max_tokens=9)


class Recording:
    """An observer that keeps everything."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.marks: list[Mark] = []
        self.steps: list[StepRecord] = []

    def on_span(self, span: Span) -> None:
        self.spans.append(span)

    def on_mark(self, mark: Mark) -> None:
        self.marks.append(mark)

    def on_step(self, record: StepRecord) -> None:
        self.steps.append(record)

    def rows_of(self, request_id: int) -> list[StepRow]:
        return [row for step in self.steps for row in step.rows if row.request_id == request_id]

    def of_step(self) -> dict[int, dict[tuple[str, str], Span]]:
        steps: dict[int, dict[tuple[str, str], Span]] = defaultdict(dict)
        for span in self.spans:
            steps[span.step_id][span.track, span.name] = span
        return steps


@pytest.fixture(params=[1, 2], scope="module")
def recording(request: pytest.FixtureRequest) -> Recording:
    """All requests, at depth 1 and at depth 2; the answers are checked here."""
    observer = Recording()
    with build(small(depth=request.param), observers=[observer]) as engine:
        assert run(engine, requests()) == [oracle(index) for index in ALL], "tracing changed a token"
    return observer


def test_spans_of_one_track_are_disjoint(recording: Recording) -> None:
    """pipeline_bugs 70."""
    for track in ("host", "compute", "copy"):
        spans = sorted(span[2:4] for span in recording.spans if span.track == track)
        assert all(start < end for start, end in spans)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_every_step_has_the_same_few_spans(recording: Recording) -> None:
    """pipeline_bugs 73: five on the host, four to six on the device; never one per token."""
    host = {("host", name) for name in ("plan", "launch", "sample", "wait", "commit")}
    device = {("compute", "h2d"), ("compute", "sample"), ("copy", "d2h")}
    some = {("compute", "vision"), ("copy", "h2d")}
    for spans in recording.of_step().values():
        kinds = {span.kind for span in spans.values()}
        forward = {("compute", "forward")} if kinds == {"decode"} else {("compute", "prefill")}
        assert set(spans) - some == host | device | forward
    assert sum(map(len, recording.of_step().values())) == len(recording.spans)


def test_the_forward_starts_when_the_upload_has_ended(recording: Recording) -> None:
    for spans in recording.of_step().values():
        first = next(spans["compute", n] for n in ("vision", "prefill", "forward") if ("compute", n) in spans)
        assert spans["compute", "h2d"].end_ns <= first.start_ns


def test_device_spans_lie_between_the_launch_and_the_commit_of_their_step(recording: Recording) -> None:
    """pipeline_bugs 72."""
    for spans in recording.of_step().values():
        launched, committed = spans["host", "launch"].start_ns, spans["host", "commit"].end_ns
        for (track, _), span in spans.items():
            assert track == "host" or launched <= span.start_ns <= span.end_ns <= committed


def test_waiting_is_a_span_of_its_own(recording: Recording) -> None:
    """pipeline_bugs 68: here the device works only while the host waits, so no other span may see it work."""
    waits = [span for span in recording.spans if span.name == "wait"]
    for span in recording.spans:
        if span.track == "copy":
            assert any(wait.start_ns < span.start_ns and span.end_ns < wait.end_ns for wait in waits)


def test_spans_of_a_step_agree_about_it(recording: Recording) -> None:
    for spans in recording.of_step().values():
        assert len({(span.slot, span.kind, span.rows, span.padding) for span in spans.values()}) == 1
        assert (
            len({span.zombies for span in spans.values() if span.name in ("commit", "forward", "d2h")}) == 1
        )


def test_every_committed_step_has_one_record_that_agrees_with_its_spans(recording: Recording) -> None:
    commits = {span.step_id: span for span in recording.spans if span.name == "commit"}
    assert [record.step_id for record in recording.steps] == list(commits)
    for record in recording.steps:
        span = commits[record.step_id]
        zombies = sum(row.is_zombie for row in record.rows)
        assert (record.slot, record.kind, record.padding) == (span.slot, span.kind, span.padding)
        assert (len(record.rows), zombies, record.time_ns) == (span.rows, span.zombies, span.start_ns)


def test_delivered_rows_are_the_tokens_of_the_answer(recording: Recording) -> None:
    """pipeline_bugs 66: every row that was no zombie; the end token is delivered as well."""
    for index in ALL:
        expected, rows = oracle(index), recording.rows_of(index + 1)
        delivered = [row for row in rows if row.is_delivered]
        assert all(row.is_delivered is not row.is_zombie for row in rows)
        if "stop" in requests()[index].settings:
            continue
        is_eos = expected.result["finish_reason"] == "stop"
        assert len(delivered) == len(expected.tokens) + is_eos
        for token, row in zip(expected.tokens, delivered, strict=False):
            assert row.token_id == token.id
            values = [0.0 if math.isnan(value) else value for value in (row.x, row.y)]
            assert values == [token.x, token.y]


def test_only_coordinates_and_sizes_have_values(recording: Recording) -> None:
    """user_reports 28."""
    ids = tiny_model().config.tokenizer
    numbers = {ids.coord_id: 1, ids.size_id: 2}
    for record in recording.steps:
        for row in record.rows:
            assert 2 - sum(map(math.isnan, (row.x, row.y))) == numbers.get(row.token_id, 0)


def test_positions_of_a_request_count_up_from_its_prompt(recording: Recording) -> None:
    """The prefill wrote up to its last token; each decode writes the next position, a zombie's too."""
    for index in ALL:
        positions = [row.position for row in recording.rows_of(index + 1)]
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        assert positions[0] > 0


def test_tokens_were_sampled_under_the_mask_the_record_names(recording: Recording) -> None:
    table = token_masks(tiny_model().config.tokenizer)
    seen = set()
    for record in recording.steps:
        for row in record.rows:
            mask = table[Mask[row.mask]]
            seen.add(row.mask)
            assert row.token_id not in mask.suppressed
            assert mask.allowed is None or row.token_id in mask.allowed
    assert {"TEXT", "COORD", "SIZE", "OBJECT_OR_END"} <= seen


def test_a_row_holds_pages_at_its_commit_and_gives_one_ref_back(recording: Recording) -> None:
    for record in recording.steps:
        for row in record.rows:
            assert row.pages * small().page_size > row.position
            assert (row.refs_before, row.refs_before - row.refs_after) in {(1, 1), (2, 1)}
    adapters = {i + 1 for i in ALL if "adapter" in requests()[i].settings}
    assert {row.request_id for r in recording.steps for row in r.rows if row.lora_slot} == adapters


def test_what_a_step_waited_for_includes_its_masks_when_they_were_uploaded(recording: Recording) -> None:
    for record in recording.steps:
        masks = "compute for masks_ready, "
        has_upload = ("copy", "h2d") in recording.of_step()[record.step_id]
        sample = masks * has_upload + "copy for sampled"
        assert record.waits == f"launch: nothing | sample: {sample} | commit: host for copied"
    assert len({record.waits for record in recording.steps}) == 2


def test_each_request_has_its_marks_in_order(recording: Recording) -> None:
    """Each once; the first token and the end at the instant of their step's commit."""
    lives = defaultdict(dict)
    for mark in recording.marks:
        assert mark.name not in lives[mark.request_id]
        lives[mark.request_id][mark.name] = mark
    instants = {record.step_id: record.time_ns for record in recording.steps}
    assert len(lives) == len(requests())
    for marks in lives.values():
        assert [name for name in marks if name != "prefix_hit"] == [
            "arrival",
            "admitted",
            "first_token",
            "finish",
            "release",
        ]
        times = [mark.time_ns for mark in marks.values()]
        assert times == sorted(times)
        for name in ("first_token", "finish"):
            assert marks[name].time_ns == instants[marks[name].step_id]


def test_a_prefill_without_a_vision_span_has_a_prefix_hit_or_no_image(recording: Recording) -> None:
    images = [request.image is not None for request in requests()]
    hits = {mark.request_id: mark.step_id for mark in recording.marks if mark.name == "prefix_hit"}
    assert 0 < len(hits) < len(requests())
    ids = sorted(mark.request_id for mark in recording.marks if mark.name == "arrival")
    has_image = dict(zip(ids, images, strict=True))
    for step in recording.steps:
        if step.kind == "prefill":
            seen = ("compute", "vision") in recording.of_step()[step.step_id]
            for row in step.rows:
                assert seen == (has_image[row.request_id] and row.request_id not in hits)
                assert hits.get(row.request_id, step.step_id) == step.step_id


def test_a_grammar_that_fails_takes_no_token() -> None:
    observer = Recording()
    with build(observers=[observer]) as engine:
        handle = engine.submit(Request(failing))
        finish(engine)
        assert handle.error is not None
    assert [(row.is_zombie, row.is_delivered) for row in observer.rows_of(handle.request_id)][:2] == [
        (False, True),
        (False, False),
    ]


def test_times_of_a_request_add_up() -> None:
    """pipeline_bugs 67: also of one that was cancelled in the queue, in prefill, or that failed.

    user_reports 74.
    """
    device = FlakyDevice("decode", 3)
    with build(small(max_batch_size=2), device=device) as engine:
        handles = [engine.submit(request) for request in requests()]
        handles[-1].cancel()
        tick(engine)
        handles[0].cancel()
        finish(engine)
    assert {handle.error is None for handle in handles} == {True, False}
    for handle in handles:
        metrics = handle.metrics
        phases = (metrics.preprocess_ms, metrics.queue_ms, metrics.prefill_ms, metrics.decode_ms)
        assert min(phases) >= 0
        assert sum(phases) == pytest.approx(metrics.total_ms)
        assert metrics.ttft_ms <= metrics.total_ms
        assert metrics.output_tokens == handle.num_tokens


def test_metrics_say_nothing_where_there_is_nothing_to_divide() -> None:
    with build() as engine:
        one = engine.submit(query("one", max_tokens=1))
        assert one.metrics is None
        finish(engine)
        assert one.metrics.tokens_per_s is None
        two = engine.submit(requests()[0])
        finish(engine)
        assert two.metrics.tokens_per_s > 0


class Faulty(Recording):
    """An observer that raises on its third record."""

    def on_span(self, span: Span) -> None:
        super().on_span(span)
        if len(self.spans) == 3:
            raise RuntimeError("I have seen enough")


def test_an_observer_that_raises_is_dropped_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    faulty, other = Faulty(), Recording()
    with build(observers=[faulty, other]) as engine:
        assert run(engine, requests()[:4]) == [oracle(index) for index in range(4)]
    assert len(faulty.spans) == 3
    assert len(other.spans) > 30
    assert caplog.text.count("raised and was dropped") == 1


def test_a_step_that_failed_leaves_no_half_span() -> None:
    """pipeline_bugs 69: events of an abandoned step are never asked for their time."""
    observer = Recording()
    with build(device=FlakyDevice("sample", 2), observers=[observer]) as engine:
        handles = [engine.submit(request) for request in requests()]
        finish(engine)
        assert any(handle.error for handle in handles)
    broken = [spans for spans in observer.of_step().values() if ("host", "commit") not in spans]
    assert len(broken) == 1
    assert set(broken[0]) <= {("host", "plan"), ("host", "launch")}


class Checksums:
    """Compares a slot's host blocks at the launch (masks: the sample) and at the commit of a step."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.kept: dict[tuple[int, str], bytes] = {}
        self.num_compared = 0

    def on_span(self, span: Span) -> None:
        groups = {"launch": ("step", "prompt", "crops"), "sample": ("masks",)}.get(span.name, ())
        if self.engine is None or span.track != "host":
            return
        blocks = self.engine._runtime.slots[span.slot].blocks
        for group in groups:
            self.kept[span.step_id, group] = bytes(blocks[group].numpy())
        if span.name == "commit":
            for group in ("step", "prompt", "crops", "masks"):
                self.num_compared += self.kept.pop((span.step_id, group)) == bytes(blocks[group].numpy())

    def on_mark(self, mark: Mark) -> None: ...

    def on_step(self, record: StepRecord) -> None: ...


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_owns_its_host_blocks_from_launch_to_commit(depth: int) -> None:
    """pipeline_bugs 35-37, 41; I5, I15."""
    checksums = Checksums()
    with build(small(depth=depth), observers=[checksums]) as engine:
        checksums.engine = engine
        run(engine, requests())
        assert checksums.num_compared == 4 * engine.stats()["steps"]
    assert checksums.kept == {}


# I13 -----------------------------------------------------------------------------------------------------


FORWARDS = ("prefill", "prefill_cached", "decode")


class Waits(DeferredDevice):
    """Remembers whenever the host waits: for what, and which forwards were enqueued and had not run."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.log: list[tuple[list[Any], list[str]]] = []

    def run_until(self, targets: list[Any]) -> None:
        queued = [value.program for kind, value in self._streams[0].queue if kind == "work"]
        self.log.append((targets, [program for program in queued if program in FORWARDS]))
        super().run_until(targets)


def waits_of(depth: int, seed: int) -> tuple[list[tuple[list[Any], list[str]]], list[Any], dict[str, Any]]:
    """What the host waited for while it served all requests; the slots' copy records; stats."""
    device = Waits(seed)
    with build(small(depth=depth), device=device) as engine:
        handles = [engine.submit(request) for request in requests()]
        device.log.clear()
        copied, is_busy = [], True
        while is_busy:
            is_busy = tick(engine)
            copied += [slot.copied.last for slot in engine._runtime.slots]
        assert [outcome(handle) for handle in handles] == [oracle(index) for index in ALL]
        return device.log, copied, engine.stats()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [1, 2])
def test_the_host_waits_once_a_step_and_only_for_its_copy(depth: int, seed: int) -> None:
    """pipeline_bugs 76: I13: plan, launch and sample never wait."""
    log, copied, stats = waits_of(depth, seed)
    assert len(log) == stats["steps"]
    assert all(len(targets) == 1 and targets[0] in copied for targets, _ in log)


def test_at_depth_2_the_next_forward_is_enqueued_before_the_host_waits() -> None:
    """pipeline_bugs 76: two steps really in flight, in all but the first and the last step."""
    log, _, stats = waits_of(depth=2, seed=1)
    assert stats["max_in_flight"] == 2
    assert sum(bool(queued) for _, queued in log) >= len(log) - 3


def test_at_depth_1_nothing_is_enqueued_behind_the_step_the_host_waits_for() -> None:
    log, _, stats = waits_of(depth=1, seed=1)
    assert stats["max_in_flight"] == 1
    assert all(len(queued) == 1 for _, queued in log)


def test_tracing_on_the_cpu_device_keeps_time_in_order() -> None:
    """pipeline_bugs 72: two processes, one clock."""
    observer = Recording()
    with build(device=open_device("cpu"), observers=[observer], threaded=True) as engine:
        handles = [engine.submit(request) for request in requests()]
        for handle in handles:
            handle.result(timeout=120)
    test_spans_of_one_track_are_disjoint(observer)
    complete = Recording()
    complete.spans = [s for s in observer.spans if ("host", "commit") in observer.of_step()[s.step_id]]
    test_device_spans_lie_between_the_launch_and_the_commit_of_their_step(complete)
