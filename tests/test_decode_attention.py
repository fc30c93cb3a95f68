"""Pins which way of attending a runner takes: the kernel, where it does what the gather way does."""

from __future__ import annotations

import logging

import pytest
import torch
from engines import build
from torch import Tensor

from photon.decode_attention import DecodeAttention, GatherAttention, choose_attention, proven
from photon.device.base import Work
from photon.kv_cache import PagedKVCache
from photon.model.layers import rotary_table


def cache(page_size: int = 4) -> PagedKVCache:
    return PagedKVCache(
        num_layers=1,
        num_pages=1,
        page_size=page_size,
        n_heads=2,
        head_dim=8,
        dtype=torch.float32,
        torch_device="cpu",
    )


@pytest.fixture
def turns() -> Tensor:
    return rotary_table(4, 16)


def test_what_does_the_same_is_taken_and_nothing_is_said(
    turns: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    gather, other = GatherAttention(cache(), turns), GatherAttention(cache(), turns)
    assert proven(lambda: other, gather, cache(), turns) is other
    assert not caplog.records


def test_pages_larger_than_the_context_can_be_tried(turns: Tensor) -> None:
    gather, other = GatherAttention(cache(64), turns), GatherAttention(cache(64), turns)
    assert proven(lambda: other, gather, cache(64), turns) is other


def test_a_way_that_cannot_be_built_is_one_warning_with_the_cause(
    turns: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler() -> DecodeAttention:
        raise RuntimeError("Failed to find C compiler.")

    gather = GatherAttention(cache(), turns)
    assert proven(no_compiler, gather, cache(), turns) is gather
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().endswith("RuntimeError: Failed to find C compiler.")


def test_a_way_that_computes_something_else_is_not_taken(
    turns: Tensor, caplog: pytest.LogCaptureFixture
) -> None:
    gather, other = GatherAttention(cache(), turns), GatherAttention(cache(), turns.flip(0))
    assert proven(lambda: other, gather, cache(), turns) is gather
    assert "its results are" in caplog.text


def test_what_goes_wrong_far_behind_the_first_pages_is_not_taken() -> None:
    """The kernel's splits are some pages each: a trial within one would not put them together."""
    turns = rotary_table(4, 200)
    wrong = torch.cat((turns[:64], turns[64:].flip(0)))
    gather, other = GatherAttention(cache(), turns), GatherAttention(cache(), wrong)
    assert proven(lambda: other, gather, cache(), turns) is gather


def test_on_a_cpu_it_is_the_gather_way_and_the_runner_says_so(turns: Tensor) -> None:
    assert choose_attention(cache(), turns).name == "gather"
    with build() as engine:
        assert engine.device.call(Work("decode_attention")) == "gather"
