"""Pins sampling: the mask holds, greedy is the maximum, top-p keeps the reference's set, a draw depends on
its own row alone (I17). pipeline_bugs 25, 34. A few lines of plain Python are the oracle.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from photon.sampler import mask_table, sample_greedy, sample_top_p
from photon.skills.base import TokenMask

LOGITS = st.lists(st.integers(-80, 80).map(lambda n: n / 8), min_size=2, max_size=12)
UNIFORM = st.integers(0, 2**24 - 1).map(lambda n: n / 2**24)


def draw(logits: list[float], temperature: float, top_p: float, uniform: float) -> int:
    """sample_top_p of one row."""
    columns = [torch.tensor([value]) for value in (temperature, top_p, uniform)]
    return int(sample_top_p(torch.tensor([logits]), *columns)[0])


def distribution(logits: list[float], temperature: float, top_p: float) -> dict[int, float]:
    """Kept tokens, most likely first, with their shares: kept while the mass before is at most top_p."""
    weights = [math.exp((value - max(logits)) / temperature) for value in logits]
    shares = [weight / sum(weights) for weight in weights]
    kept, before = {}, 0.0
    for index in sorted(range(len(shares)), key=lambda i: -shares[i]):
        if before <= top_p:
            kept[index] = shares[index]
        before += shares[index]
    return {index: share / sum(kept.values()) for index, share in kept.items()}


@given(LOGITS, st.floats(0.1, 10), st.floats(0.01, 1), UNIFORM)
def test_a_draw_is_the_inverse_of_the_cumulative_distribution(
    logits: list[float], temperature: float, top_p: float, uniform: float
) -> None:
    token = draw(logits, temperature, top_p, uniform)
    shares = distribution(logits, temperature, top_p)
    low = 0.0
    for index, share in shares.items():
        if index == token:
            assert low - 1e-4 <= uniform <= low + share + 1e-4
        low += share
    assert token in shares or min(abs(top_p - mass) for mass in cumulative(logits, temperature)) < 1e-4


def cumulative(logits: list[float], temperature: float) -> list[float]:
    """Masses at which a rounding error may keep or drop one token more."""
    total, masses = 0.0, []
    for share in distribution(logits, temperature, 1.0).values():
        total += share
        masses.append(total)
    return masses


@given(LOGITS, st.floats(0.01, 1), UNIFORM)
def test_temperature_0_is_greedy_in_any_company(logits: list[float], top_p: float, uniform: float) -> None:
    assert draw(logits, 0.0, top_p, uniform) == int(sample_greedy(torch.tensor([logits]))[0])


@given(LOGITS, UNIFORM, st.sampled_from([1e-45, 1e-38, 1e-30, 1e-6]))
def test_the_smallest_temperature_takes_a_most_likely_token(
    logits: list[float], uniform: float, temperature: float
) -> None:
    """Not a NaN, whose index would be out of range and end the engine."""
    assert logits[draw(logits, temperature, 1.0, uniform)] == max(logits)


@given(LOGITS, st.floats(0.1, 10), UNIFORM)
def test_the_smallest_top_p_keeps_the_first(logits: list[float], temperature: float, uniform: float) -> None:
    assert logits[draw(logits, temperature, 1e-9, uniform)] == max(logits)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.5]), st.floats(0.2, 1), UNIFORM), min_size=2, max_size=8)
)
def test_a_row_draws_alone_as_it_draws_in_a_batch(rows: list[tuple[float, float, float]]) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(len(rows), 50, generator=generator) * 3
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    batched = sample_top_p(logits, *columns).tolist()
    assert batched == [draw(row.tolist(), *values) for row, values in zip(logits, rows, strict=True)]


def test_two_logits_of_one_probability_do_not_change_a_greedy_row() -> None:
    """One bit apart, they have the same probability in float32; the larger wins beside a sampling row too."""
    low = torch.tensor(0.1)
    logits = torch.stack((torch.stack((low, low.nextafter(torch.tensor(1.0)))), torch.tensor([1.0, 2.0])))
    ids = sample_top_p(logits, torch.tensor([0.0, 1.0]), torch.ones(2), torch.zeros(2))
    assert ids[0] == sample_greedy(logits)[0] == 1


def test_frequencies_follow_the_probabilities() -> None:
    count = 20_000
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(count, -1)
    uniform = (torch.arange(count) + 0.5) / count
    ids = sample_top_p(logits, torch.ones(count), torch.ones(count), uniform)
    shares = torch.bincount(ids, minlength=4) / count
    assert torch.allclose(shares, logits[0].softmax(-1), atol=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_number_gives_some_token(temperature: float) -> None:
    assert 0 <= draw([math.nan] * 5, temperature, 0.5, 0.5) < 5


def test_each_row_of_the_mask_table_is_its_mask() -> None:
    """pipeline_bugs 25."""
    masks = (TokenMask(), TokenMask(allowed=(1, 3)), TokenMask(suppressed=(0,)), TokenMask((0, 2), (2,)))
    table = mask_table(masks, 4, "cpu")
    allowed = [[token for token in range(4) if not row[token]] for row in table]
    assert allowed == [[0, 1, 2, 3], [1, 3], [1, 2, 3], [0]]


@given(UNIFORM, st.floats(0.05, 10), st.floats(0.01, 1))
def test_a_masked_token_is_never_drawn(uniform: float, temperature: float, top_p: float) -> None:
    logits = [5.0, -math.inf, 4.0, -math.inf, 3.0]
    assert draw(logits, temperature, top_p, uniform) in (0, 2, 4)
