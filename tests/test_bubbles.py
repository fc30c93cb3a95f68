"""Pins why the device idled: the host's part and the latency of each bubble, what the host did meanwhile by
its innermost spans, and the sentence that says so, every number of it from the trace."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracing.bubbles import Bubble, Part, bubbles, host_leaves, host_work
from tracing.intervals import total
from tracing.trace import MarkRecord, SpanRecord, Trace

US = 1_000


def host(name: str, start: int, end: int, step: int = 0, kind: str = "decode") -> SpanRecord:
    return SpanRecord("host", name, start * US, end * US, step, kind=kind)


def device(start: int, end: int, step: int = 0, name: str = "forward") -> SpanRecord:
    return SpanRecord("compute", name, start * US, end * US, step, step % 2, "decode", 1)


def wanted(start: int, end: int) -> list[MarkRecord]:
    return [MarkRecord("arrival", start * US, 0), MarkRecord("finish", end * US, 0)]


def blocking() -> Trace:
    """Steps 41 and 42, one after the other; a request from 0 to 1000 us."""
    spans = [host("plan", 0, 50, 41), host("launch", 50, 100, 41), host("wait", 100, 400, 41)]
    spans += [host("commit", 400, 500, 41), host("launch", 500, 600, 42), host("wait", 600, 900, 42)]
    spans += [host("commit", 900, 1000, 42), device(150, 400, 41), device(650, 900, 42)]
    return Trace.of(spans, wanted(0, 1000))


def test_bubbles_name_what_the_device_waited_for() -> None:
    first, second, last = bubbles(blocking())
    parts = (Part("plan", 41, 50_000), Part("launch", 41, 50_000))
    assert first == Bubble(0, 150_000, 41, 100_000, 50_000, parts, "forward", "arrival")
    assert second.step_id == 42
    assert (second.host_ns, second.latency_ns) == (200_000, 50_000)
    assert dict(second.phases)["commit"] == dict(second.phases)["launch"] == 100_000
    assert (last.step_id, last.cause) == (-1, "commit")  # the run's last commit: no work follows


def test_a_gap_before_device_sampling_is_blamed_on_the_host_sample() -> None:
    spans = [host("launch", 0, 10), device(10, 20), host("sample", 20, 90)]
    spans.append(device(95, 100, 0, "sample"))
    found = bubbles(Trace.of(spans, wanted(0, 100)))
    assert (found[-1].host_ns, found[-1].latency_ns, found[-1].cause) == (70_000, 5_000, "sample")


def test_a_late_device_is_launch_latency() -> None:
    spans = [host("launch", 0, 10), device(90, 100)]
    found = bubbles(Trace.of(spans, wanted(0, 100)))
    assert found[0].cause == "launch latency"
    assert found[0].host_ns + found[0].latency_ns == 90_000


def test_no_trace_has_a_bubble_without_demand() -> None:
    assert bubbles(Trace.of()) == bubbles(Trace.of([device(0, 10)])) == []


def test_a_wait_inside_a_launch_is_told_apart_from_the_launch() -> None:
    spans = [
        host("launch", 0, 80),
        host("sync: Event.synchronize in Runtime.launch", 20, 70),
        device(80, 100),
    ]
    (found,) = bubbles(Trace.of(spans, wanted(0, 100)))
    assert dict(found.phases)["launch"] == 30_000
    assert dict(found.phases)["sync"] == 50_000
    assert found.cause == "sync"


def test_the_sentence_of_a_blocking_step() -> None:
    assert bubbles(blocking())[1].text == (
        "The device idled 0.25 ms because the host was still committing step 41 (0.10 ms) and launching step "
        "42 (0.10 ms), and forward of step 42, already enqueued, took 0.050 ms to begin; at depth 2 the next "
        "forward would have been launched before that."
    )


def test_the_sentences_of_the_first_and_the_last_bubble_blame_nobody() -> None:
    first, _, last = (found.text for found in bubbles(blocking()))
    assert first.endswith("; the request came to an idle device, so nothing could hide its first launch.")
    assert last.endswith(
        "; no step followed while a request was open, so there was nothing to launch earlier."
    )


def test_depth_2_is_no_advice_where_it_is_used() -> None:
    spans = [host("launch", 0, 10, 1), host("launch", 10, 20, 2), device(10, 30, 1), device(30, 50, 2)]
    spans += [
        host("commit", 35, 90, 1),
        host("launch", 90, 100, 3),
        device(100, 120, 3),
        host("commit", 120, 121, 2),
    ]
    (late,) = [found for found in bubbles(Trace.of(spans, wanted(0, 120))) if found.step_id == 3]
    assert late.text == (
        "The device idled 0.050 ms because the host was still committing step 1 (0.040 ms) and launching "
        "step 3 (0.010 ms); the host was slower than the device here: less host work per step, or more rows "
        "in each, closes it."
    )


def test_work_that_was_enqueued_in_time_is_not_blamed_on_the_host() -> None:
    spans = [host("launch", 0, 10), host("sample", 10, 15), device(10, 40), device(60, 70, name="sample")]
    (found,) = [b for b in bubbles(Trace.of(spans, wanted(0, 70))) if b.work == "sample"]
    assert (found.host_ns, found.cause) == (0, "launch latency")
    assert found.text == (
        "The device idled 0.020 ms because it took 0.020 ms to go on to sample of step 0, already enqueued; "
        "the host was in time: this is the device's hand-over, or a wait for an upload."
    )


@pytest.mark.parametrize(
    ("name", "said", "remedy"),
    [
        ("sample", "preparing the sampling of step 1", "sampling needs the commit"),
        ("wait", "waiting for step 1", "nothing further was in flight"),
        ("sync: a in b", "waiting for the device in the middle of step 1 (a in b)", "does not wait"),
        ("injected: slow commit", "held up on purpose by slow commit", "on purpose"),
        ("detok", "in detok of step 1", "outside the engine's steps"),
    ],
)
def test_every_kind_of_host_time_has_its_words(name: str, said: str, remedy: str) -> None:
    spans = [device(0, 10), host(name, 10, 90, 1), host("launch", 90, 91, 1), device(91, 100, 1)]
    text = bubbles(Trace.of(spans, [MarkRecord("arrival", -1, 0)]))[-1].text
    assert f"because the host was still {said} (0.080 ms); " in text
    assert remedy in text.partition("; ")[2]


def test_untraced_time_is_called_so() -> None:
    spans = [device(0, 10), host("launch", 80, 90, 1), device(90, 100, 1)]
    found = bubbles(Trace.of(spans, [MarkRecord("arrival", -1, 0)]))[-1]
    assert (found.cause, dict(found.phases)["other"]) == ("other", 70_000)
    assert "launching step 1 (0.010 ms) and in no traced phase (0.070 ms)" in found.text


hosts = st.builds(
    lambda name, start, length: SpanRecord("host", name, start, start + length, 0),
    st.sampled_from(["plan", "launch", "sync: x", "commit", "wait", "injected: y", "unheard of"]),
    st.integers(0, 60),
    st.integers(0, 30),
)


@given(st.lists(hosts, max_size=12))
def test_leaves_are_disjoint_and_cover_what_the_spans_cover(spans: list[SpanRecord]) -> None:
    leaves = host_leaves(Trace.of(spans))
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(leaves))
    covered = {t for span in spans for t in range(span.start_ns, span.end_ns)}
    assert {t for leaf in leaves for t in range(leaf.start_ns, leaf.end_ns)} == covered


@given(st.lists(hosts, max_size=12), st.integers(0, 50), st.integers(1, 60))
def test_parts_of_a_bubble_add_up_to_it(spans: list[SpanRecord], start: int, length: int) -> None:
    end = (start + length) * US
    marks = [MarkRecord("arrival", start * US, 0), MarkRecord("finish", end, 0)]
    scaled = [span._replace(start_ns=span.start_ns * US, end_ns=span.end_ns * US) for span in spans]
    trace = Trace.of([*scaled, SpanRecord("compute", "forward", end, end + 1, 5)], marks)
    for found in bubbles(trace):
        assert sum(part.ns for part in found.parts) == found.host_ns == sum(ns for _, ns in found.phases)
        assert found.host_ns + found.latency_ns == found.end_ns - found.start_ns
        assert found.text.endswith(".")
    assert total(host_work(trace)) <= trace.window[1] - trace.window[0]
