"""Pins the cost models: their curves go through the published points; what is derived says how far off."""

from __future__ import annotations

import pytest

from photon.device.base import Work
from photon.device.cost import COPY_MS, GPUS, PRESETS, TABLE, Curve, derived, preset
from photon.errors import DeviceError

# engine_facts 6.1: forward, sampling, period in ms.
STEPS = {
    ("rtx3090", 1): (4.87, 0.20, 5.10),
    ("rtx3090", 8): (6.66, 0.27, 6.97),
    ("rtx3090", 32): (10.24, 0.26, 10.52),
    ("b200", 1): (2.45, 0.14, 2.63),
    ("b200", 8): (3.12, 0.14, 3.30),
    ("b200", 32): (3.80, 0.14, 3.98),
}


@pytest.mark.parametrize(("key", "rows"), STEPS)
def test_the_curves_go_through_the_published_points(key: str, rows: int) -> None:
    forward, sample, period = STEPS[key, rows]
    cost = preset(key)
    assert cost.forward.ns(rows) / 1e6 == pytest.approx(forward, abs=0.001)
    assert cost.sample.ns(rows) / 1e6 == pytest.approx(sample, abs=0.015)
    assert cost.step_ns(rows) / 1e6 == pytest.approx(period, abs=0.025)


@pytest.mark.parametrize(("name", "streams"), TABLE)
def test_the_hosts_two_numbers_fit_the_published_hidden_times(name: str, streams: int) -> None:
    published, cost = TABLE[name, streams], preset(name)
    hidden = sum(cost.host_ns(phase, streams) for phase in ("plan", "launch", "commit")) / 1e6 + COPY_MS
    assert hidden == pytest.approx(published.blocking_ms - published.pipelined_ms, abs=0.01)


@pytest.mark.parametrize(("key", "rows"), STEPS)
def test_the_derived_formula_is_as_far_off_the_published_points_as_the_module_says(
    key: str, rows: int
) -> None:
    error = derived(GPUS[key]).forward.ns(rows) / 1e6 / STEPS[key, rows][0] - 1
    assert -0.22 <= error <= 0.03


def test_every_gpu_has_a_preset_that_says_whether_it_is_published_or_derived() -> None:
    assert set(PRESETS) == set(GPUS)
    assert {key for key, cost in PRESETS.items() if cost.label == "published"} == {"rtx3090", "b200"}
    assert {cost.label for cost in PRESETS.values()} == {"published", "derived"}
    assert all("GB/s" in cost.source for cost in PRESETS.values() if cost.label == "derived")


def test_more_bandwidth_never_means_a_slower_step() -> None:
    costs = [derived(gpu) for gpu in sorted(GPUS.values(), key=lambda gpu: gpu.bandwidth_gb_s)]
    for rows in (1, 32):
        times = [cost.step_ns(rows) for cost in costs]
        assert times == sorted(times, reverse=True)


def test_each_program_of_a_step_has_its_cost_and_others_are_free() -> None:
    cost = preset("b200")
    assert cost.work_ns(Work("decode", (0, 8, 50, False, False))) == cost.forward.ns(8)
    assert cost.work_ns(Work("sample", (0, 8, True, False))) == cost.sample.ns(8)
    assert cost.work_ns(Work("upload", (0, False))) == 40_000
    assert cost.work_ns(Work("fetch", (0,))) == cost.work_ns(Work("upload_masks", (0,))) == 20_000
    assert cost.work_ns(Work("vision", (0, 4))) == round(4 * cost.crop_ms * 1e6)
    assert cost.work_ns(Work("load_adapter", (1, 1))) == 0
    assert cost.host_ns("nap", 8) == 0


def test_a_prefill_pays_for_its_positions_and_at_least_a_forward() -> None:
    cost = preset("b200")
    with_image = cost.work_ns(Work("prefill", (0, 8, 10, True, False)))
    assert with_image == round(8 * 740 * cost.prefill_token_ms * 1e6)
    assert cost.work_ns(Work("prefill", (0, 1, 10, False, False))) == cost.forward.ns(1)


def test_a_step_without_rows_takes_no_time() -> None:
    assert preset("b200").step_ns(0) == 0
    assert Curve(1.0, 2.0, 0.5).ns(4) == 5_000_000


def test_a_gpus_name_may_be_written_as_people_do() -> None:
    assert preset("RTX 3090") is preset("rtx-3090") is PRESETS["rtx3090"]


def test_an_unknown_gpu_is_a_sentence_that_names_those_there_are() -> None:
    with pytest.raises(DeviceError, match=r"There is no GPU 'b300'; use one of rtx3090, l4.*b200\."):
        preset("b300")
