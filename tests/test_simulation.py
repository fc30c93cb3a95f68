"""Pins what the engine does on simulated machines: the published figures, and the regimes around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from photon.device.cost import COPY_MS, TABLE, CostModel, Curve, custom, host_phases, preset
from photon.errors import InvalidRequestError
from photon.simulation import TASKS, Comparison, Scenario, compare, simulate
from tracing.leaks import leaks
from tracing.recorder import Recorder

B200 = preset("b200")


def gain(cost: CostModel, streams: int = 8, tokens: int = 40, **options: object) -> float:
    found = compare(Scenario(cost, streams, tokens, **options)).gain_percent  # type: ignore[arg-type]
    assert found is not None
    return found


def play(name: str, streams: int) -> Comparison:
    return compare(Scenario(preset(name), streams, TABLE[name, streams].tokens))


@pytest.mark.parametrize(("name", "streams"), TABLE)
def test_the_engine_reproduces_the_published_periods_gain_and_zombie_tax(name: str, streams: int) -> None:
    published, found = TABLE[name, streams], play(name, streams)
    assert found.published is published
    assert found.blocking.period_ms == pytest.approx(published.blocking_ms, rel=0.02)
    assert found.pipelined.period_ms == pytest.approx(published.pipelined_ms, rel=0.02)
    is_short_run = (name, streams) == ("B200", 32)  # the source's own explanation of its shortfall
    gain = published.predicted_percent if is_short_run else published.observed_percent
    assert found.gain_percent == pytest.approx(gain, abs=1)
    tax = found.pipelined.zombie_tax_percent
    assert tax == pytest.approx(0.9, abs=0.2) if streams == 1 else tax < 0.5
    assert found.blocking.zombie_tax_percent == found.blocking.zombie_rows == 0


def test_a_run_of_one_answer_each_gains_less_as_the_source_saw() -> None:
    short = compare(Scenario(B200, 32, 104, answers=1, crops=0))
    assert short.run_gain_percent == pytest.approx(TABLE["B200", 32].observed_percent, abs=1.5)
    assert short.pipelined.duration_ms < 520


def test_device_bound_the_gain_is_the_hidden_host_time_over_the_device_time() -> None:
    slow = replace(B200, forward=B200.forward.scaled(10))
    found = compare(Scenario(slow, 8, 40))
    assert found.pipelined.period_ms == slow.step_ns(8) / 1e6
    assert found.pipelined.bubble_percent < 0.1
    assert 1 < gain(slow) < 3


@pytest.mark.parametrize("forward_ms", [4.0, 2.0, 1.0, 0.25])
def test_host_bound_the_gain_saturates_at_all_over_host(forward_ms: float) -> None:
    cost = custom(forward_ms=forward_ms, sample_ms=0.2, host_ms=6.0)
    found = compare(Scenario(cost, 8, 60))
    host = sum(cost.host_ns(phase, 8) for phase in cost.host) / 1e6
    hidden_anyway = cost.host_ns("sample", 8) / 1e6  # at depth 1 it already lies under the forward
    serial = cost.step_ns(8) / 1e6 + COPY_MS + host - min(hidden_anyway, forward_ms)
    assert found.pipelined.period_ms == pytest.approx(host)
    assert found.blocking.period_ms == pytest.approx(serial, rel=0.15)
    assert found.gain_percent == pytest.approx(100 * (serial / host - 1), abs=12)
    assert found.pipelined.bubble_percent > 20


def test_a_faster_gpu_gains_more_until_the_host_is_the_limit() -> None:
    gains = [gain(replace(B200, forward=B200.forward.scaled(1 / speed))) for speed in (0.25, 0.5, 1, 2, 4)]
    assert gains == sorted(gains)
    fastest = gain(replace(B200, forward=B200.forward.scaled(1e-3)))
    assert fastest < max(gains)


def test_more_streams_gain_more_where_the_host_pays_per_row() -> None:
    gains = [gain(B200, streams) for streams in (1, 4, 16, 32)]
    assert gains == sorted(gains)
    flat = replace(B200, forward=Curve(4.0), sample=Curve(0.2), host=host_phases(0.4, 0.0))
    assert gain(flat, 32) == pytest.approx(gain(flat, 4), abs=0.5)


def test_short_answers_about_large_pictures_gain_little_because_prefill_dominates() -> None:
    short = compare(Scenario(B200, 8, 3, crops=9))
    long = compare(Scenario(B200, 8, 200, crops=9))
    assert 2 * short.run_gain_percent < long.run_gain_percent
    assert short.pipelined.duration_ms > 9 * 24 * B200.crop_ms


@pytest.mark.parametrize("task", TASKS)
def test_constrained_decoding_gains_as_much_as_free_text(task: str) -> None:
    assert gain(B200, task=task) == pytest.approx(gain(B200), abs=1)


@pytest.mark.parametrize("task", ["query", "detect"])
def test_a_sync_leak_makes_the_gain_collapse_and_the_trace_says_where(task: str) -> None:
    recorder = Recorder()
    scenario = Scenario(B200, 32, 40, task, answers=1, sync_masks=True)
    simulate(scenario, 2, [recorder])
    assert gain(B200, 32, sync_masks=True, task=task) < 0.5 * gain(B200, 32, task=task)
    found = [leak for leak in leaks(recorder.snapshot()) if leak.inside == "sample"]
    assert found
    assert {leak.call for leak in found} == {"Stream.synchronize in Runtime.sample"}


def test_answers_of_one_token_lose_because_each_batch_leaves_a_step_of_zombies_behind() -> None:
    found = compare(Scenario(B200, 4, 1))
    assert found.blocking.period_ms is found.gain_percent is None
    assert found.pipelined.num_steps == 2 * found.blocking.num_steps
    assert found.pipelined.zombie_rows == 12
    assert found.run_gain_percent < 0


def test_streams_beyond_the_batch_wait_their_turn() -> None:
    found = compare(Scenario(B200, 40, 20))
    assert found.scenario.rows == 32
    assert found.published is None
    assert found.pipelined.period_ms == B200.step_ns(32) / 1e6


def test_32_streams_of_100_tokens_take_few_steps() -> None:
    run = compare(Scenario(B200, 32, 100)).pipelined
    assert run.num_steps < 450  # at 0.2 ms of real time each, both depths are far below two seconds


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"streams": 0}, "streams is 0; it must be a whole number from 1 to 1024."),
        ({"streams": 1025}, "streams is 1025; it must be a whole number from 1 to 1024."),
        ({"tokens": 0}, "tokens is 0; it must be a whole number from 1 to 1024."),
        ({"tokens": 1.5}, "tokens is 1.5; it must be a whole number from 1 to 1024."),
        ({"crops": 14}, "crops is 14; it must be a whole number from 0 to 13."),
        ({"answers": 0}, "answers is 0; it must be a whole number from 1 to 100."),
        ({"task": "chat"}, "There is no task 'chat'; use one of query, caption, point, detect."),
        ({"task": "point", "crops": 0}, "The task point needs a picture; give it 1 to 13 crops."),
    ],
)
def test_what_cannot_be_simulated_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        Scenario(B200, **changes)  # type: ignore[arg-type]
    assert str(error.value) == sentence
