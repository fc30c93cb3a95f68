"""The attention kernel against the gather way, under Triton's interpreter on the CPU and on a card.

Pins that it computes and writes the same, and that a row's result depends, bit for bit, on that row alone.
The interpreter is chosen when Triton is imported, so it runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
import torch

from photon.decode_attention import GatherAttention, proven
from photon.kv_cache import PagedKVCache
from photon.model.layers import rotary_table, split_heads

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

MAX_CONTEXT = 200
UNWRITTEN = 1e4  # in float16 too; read unmasked, it moves every result
Row = tuple[int, tuple[int, ...]]
ROWS: tuple[Row, ...] = (
    (0, (1,)),
    (15, (2,)),
    (16, (3, 4)),
    (31, (5, 6)),
    (32, (7, 8, 9)),
    (64, (10, 11, 12, 13, 14)),
    (100, (15, 16, 17, 18, 19, 20, 21)),
    (75, (15, 16, 17, 18, 22)),  # the first four pages are the row's above, as of one image
    (127, (30, 29, 28, 27, 26, 25, 24, 23)),
    (0, (0,)),  # padding: the null page
    (0, (0,)),
)


@dataclass(frozen=True)
class Problem:
    """Rows by position and pages. `only`: those of them in the step, with room for `table_width` pages."""

    rows: tuple[Row, ...] = ROWS
    only: tuple[int, ...] = tuple(range(len(ROWS)))
    table_width: int = 8
    page_size: int = 16
    heads: int = 2
    width: int = 32
    dtype: str = "float32"
    split: int = 32
    ways: tuple[str, ...] = ("kernel", "gather")


Outcome = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""What the rows attended to (B, H, 1, K), and the layer's pages afterwards; float32 holds both exactly."""


def outcomes(device: str, problem: Problem) -> list[Outcome]:
    """By way. Positions that no row has written hold UNWRITTEN."""
    from photon.decode_kernel import KernelAttention

    num_pages = max(page for _, pages in problem.rows for page in pages)
    cache = PagedKVCache(
        num_layers=1,
        num_pages=num_pages,
        page_size=problem.page_size,
        n_heads=problem.heads,
        head_dim=problem.width,
        dtype=getattr(torch, problem.dtype),
        torch_device="cpu",
    )
    fill(cache, problem)
    turns = rotary_table(problem.width // 2, MAX_CONTEXT).to(device)
    qkv = torch.randn(
        len(problem.rows), 1, 3 * problem.heads * problem.width, generator=torch.Generator().manual_seed(1)
    )
    qkv[[not any(pages) for _, pages in problem.rows]] = 0.5  # padding rows are all the same
    heads = split_heads(qkv[list(problem.only)].to(cache.layers[0].dtype).to(device), problem.heads)
    table = torch.zeros(len(problem.only), problem.table_width, dtype=torch.int64)
    for index, row in enumerate(problem.only):
        table[index, : len(problem.rows[row][1])] = torch.tensor(problem.rows[row][1])
    position = torch.tensor([problem.rows[row][0] for row in problem.only])
    ways = {
        "kernel": KernelAttention(cache, turns, split=problem.split),
        "gather": GatherAttention(cache, turns),
    }
    found = []
    for name in problem.ways:
        layer = cache.layers[0].clone().to(device)
        out = ways[name](position.to(device), table.to(device))(layer)(*heads)
        found.append((out.float().cpu().numpy(), layer.float().cpu().numpy()))
    return found


def fill(cache: PagedKVCache, problem: Problem) -> None:
    """Random keys and values at all positions before each row's own."""
    layer = cache.layers[0].fill_(UNWRITTEN)
    random = torch.Generator().manual_seed(0)
    for position, pages in problem.rows:
        for at in range(position):
            entry = layer[pages[at // problem.page_size], at % problem.page_size]
            entry.copy_(torch.randn(entry.shape, generator=random))


def chosen(device: str) -> str:
    """The way that a trial of the kernel ends with."""
    from photon.decode_kernel import KernelAttention

    cache = PagedKVCache(
        num_layers=1,
        num_pages=1,
        page_size=16,
        n_heads=2,
        head_dim=64,
        dtype=torch.bfloat16,
        torch_device=device,
    )
    turns = rotary_table(32, MAX_CONTEXT).to(device)
    return proven(lambda: KernelAttention(cache, turns), GatherAttention(cache, turns), cache, turns).name


def interpret() -> None:
    """In the process that interprets, before it imports Triton."""
    os.environ["TRITON_INTERPRET"] = "1"
    torch.set_num_threads(1)


card = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", params=["interpreter", pytest.param("cuda", marks=card)])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Call one of the functions above where the kernel can run."""
    if request.param == "cuda":
        yield lambda function, *args: function("cuda", *args)
        return
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=interpret) as pool:
        yield lambda function, *args: pool.submit(function, "cpu", *args).result(timeout=300)


@pytest.mark.parametrize("split", [32, 128])
def test_it_computes_and_writes_what_the_gather_way_does(run: Callable[..., Any], split: int) -> None:
    """Positions at the first and last of pages and splits, shared pages, padding, more pages than needed."""
    (out, layer), (expected, expected_layer) = run(outcomes, Problem(split=split))
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layer[:, :, 1], expected_layer[:, :, 1])
    np.testing.assert_allclose(layer[:, :, 0], expected_layer[:, :, 0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2**-7), ("float16", 2**-10)])
def test_in_16_bits_it_differs_by_roundings_alone(run: Callable[..., Any], dtype: str, step: float) -> None:
    (out, layer), (expected, expected_layer) = run(outcomes, Problem(dtype=dtype, width=64))
    np.testing.assert_allclose(out, expected, rtol=2 * step, atol=2 * step)
    np.testing.assert_array_equal(layer[:, :, 1], expected_layer[:, :, 1])
    np.testing.assert_allclose(layer[:, :, 0], expected_layer[:, :, 0], rtol=step, atol=1e-6)


def test_head_widths_and_page_sizes_need_not_be_powers_of_two(run: Callable[..., Any]) -> None:
    problem = Problem(((40, (1, 2, 3, 4)), (11, (5,))), only=(0, 1), page_size=12, heads=3, width=24)
    (out, layer), (expected, expected_layer) = run(outcomes, problem)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer, expected_layer, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_is_the_same_bit_for_bit_alone_in_company_and_with_more_room(
    run: Callable[..., Any], dtype: str
) -> None:
    """I12."""
    whole = Problem(dtype=dtype, ways=("kernel",))
    [(together, _)] = run(outcomes, whole)
    for row in (4, 6):
        for width in (len(ROWS[row][1]), 12):
            [(alone, _)] = run(outcomes, replace(whole, only=(row,), table_width=width))
            np.testing.assert_array_equal(alone[0], together[row])


def test_a_trial_finds_it_right(run: Callable[..., Any]) -> None:
    assert run(chosen) == "kernel"


def compiled(dtype: str) -> list[int]:
    """Bytes of both programs for compute capability 9.0, in Moondream 2's shapes; no card is needed."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from photon.decode_kernel import NUM_WARPS, SPLIT, _combine, _partial

    floats, numbers = f"*{dtype}", dict.fromkeys(("table", "position"), "*i64")
    kinds = dict.fromkeys("qkv", floats) | {"layer": floats, "out": floats} | numbers
    kinds |= dict.fromkeys(("turns", "parts", "sums"), "*fp32")
    values = {"WIDTH": 64, "ROTARY": 32, "PAGE": 16, "SPLIT": SPLIT, "BLOCK": 64, "MAX_SPLITS": 32}
    sizes = []
    for function in (_partial, _combine):
        signature = {n: "constexpr" if n in values else kinds.get(n, "i32") for n in function.arg_names}
        constants = {(i,): values[n] for i, n in enumerate(function.arg_names) if n in values}
        source = ASTSource(function, signature, constexprs=constants)
        options = {"num_warps": NUM_WARPS}
        sizes.append(len(triton.compile(source, GPUTarget("cuda", 90, 32), options).asm["cubin"]))
    return sizes


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_it_compiles_for_a_card_as_the_interpreter_takes_what_the_compiler_does_not(dtype: str) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert min(pool.submit(compiled, dtype).result(timeout=300)) > 0
