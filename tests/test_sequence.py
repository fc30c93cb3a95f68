"""Pins settings (each checked, one sentence), positions, and random numbers of (seed, index)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon.errors import InvalidRequestError
from photon.sequence import FinishReason, SamplingParams, Sequence, uniform
from photon.skills.base import Mask, Token


class ThreeTokens:
    """A skill with a prompt of three tokens and room for five."""

    is_spatial = False
    max_tokens = 5
    finished = False

    def prompt(self) -> list[Token]:
        return [Token(1), Token(2), Token(3)]

    def mask(self) -> Mask:
        return Mask.ANY

    def consume(self, token: Token) -> str:
        return ""

    def close(self) -> str:
        return ""

    def result(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("name", "given_", "expected"),
    [
        ("temperature", 0, 0.0),
        ("temperature", "0.7", 0.7),
        ("temperature", 10, 10.0),
        ("top_p", 1, 1.0),
        ("top_p", "0.5", 0.5),
        ("max_tokens", 1, 1),
        ("max_tokens", "12", 12),
        ("max_tokens", 5.0, 5),
        ("max_objects", "3", 3),
        ("seed", "17", 17),
        ("seed", 2**53 - 1, 2**53 - 1),
        ("stop", "a", ("a",)),
        ("stop", ["a", "bc"], ("a", "bc")),
        ("stop", [], ()),
        ("adapter", "mine", "mine"),
        ("temperature", None, 0.0),
        ("max_tokens", None, 768),
        ("adapter", None, None),
    ],
)
def test_a_setting_is_read_as_it_is_meant(name: str, given_: Any, expected: Any) -> None:
    value = getattr(SamplingParams.from_settings({name: given_}), name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("name", "given_"),
    [
        *[("temperature", value) for value in (-0.1, 10.5, "warm", True, float("nan"), float("inf"), [1])],
        *[("top_p", value) for value in (0, -1, 1.01, "all", False, float("nan"))],
        *[("max_tokens", value) for value in (0, -1, 1.5, "many", 2**20 + 1, 10**400, True, "nan")],
        *[("max_objects", value) for value in (0, 1001, "few", 2.5)],
        *[("seed", value) for value in (-1, 2**53, "x", 0.5)],
        *[("stop", value) for value in ("", ["a", ""], 5, ["a"] * 17, ["x" * 257], [1], {"a": 1})],
        *[("adapter", value) for value in (1, ["a"], b"a")],
    ],
)
def test_a_wrong_setting_is_refused_in_a_sentence_that_names_it(name: str, given_: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams.from_settings({name: given_})
    sentence = str(caught.value)
    assert sentence.startswith(name)
    assert sentence.endswith(".")


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="no setting 'temp'; use temperature, top_p"):
        SamplingParams.from_settings({"temp": 1})


def test_two_requests_without_a_seed_draw_differently() -> None:
    seeds = {SamplingParams.from_settings({}).seed for _ in range(20)}
    assert len(seeds) == 20


@given(st.integers(0, 2**53 - 1), st.integers(0, 2**20))
def test_random_numbers_are_a_function_of_seed_and_index(seed: int, index: int) -> None:
    """I17. Exact in float32, and never 1, which no token would answer."""
    value = uniform(seed, index)
    assert 0 <= value < 1
    assert value == uniform(seed, index)
    assert value * 2**24 == int(value * 2**24)


def test_random_numbers_are_spread_evenly_over_indices_and_over_seeds() -> None:
    for draws in ([uniform(7, i) for i in range(4000)], [uniform(seed, 3) for seed in range(4000)]):
        tenths = [sum(k / 10 <= draw < (k + 1) / 10 for draw in draws) for k in range(10)]
        assert all(320 < count < 480 for count in tenths)
        pairs = sum(a < 0.5 and b < 0.5 for a, b in itertools.pairwise(draws))
        assert 880 < pairs < 1120


def test_token_k_is_fed_to_position_prompt_plus_k() -> None:
    sequence = Sequence(1, ThreeTokens(), SamplingParams(), prefix=5)
    assert sequence.num_prefill_positions == 8
    sequence.num_launched = 1
    assert sequence.next_position == 8
    assert sequence.max_positions == 8 + 4, "the last token is never fed"


def test_a_resumed_sequence_prefills_what_it_had() -> None:
    sequence = Sequence(1, ThreeTokens(), SamplingParams(), prefix=5)
    sequence.tokens = [Token(9), Token(8)]
    sequence.num_launched = 3
    assert sequence.prefill_tokens == [Token(1), Token(2), Token(3), Token(9), Token(8)]
    assert sequence.next_position == sequence.num_prefill_positions


def test_a_sequence_is_finished_when_it_has_a_reason() -> None:
    sequence = Sequence(1, ThreeTokens(), SamplingParams(), prefix=1)
    assert not sequence.finished
    sequence.finish_reason = FinishReason.STOP
    assert sequence.finished
    assert not sequence.is_resident
