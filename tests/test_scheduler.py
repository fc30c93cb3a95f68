"""Pins the scheduler's decisions, which are pure: who is admitted, who decodes, now, later or never.

I3, I8; pipeline_bugs 2, 15, 52, 55, 56, 64, 65.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon.config import EngineConfig
from photon.errors import InvalidRequestError
from photon.scheduler import MAX_PREFILL_ROWS, Capacity, Scheduler
from photon.sequence import FinishReason, SamplingParams, Sequence
from photon.skills.base import Mask, Token

CONTEXT = 64
PAGES = 40
FREE = Capacity(pages=PAGES, rows=64, lora_slots=4)
PREFIX = 9  # two full pages of four and a part of a third


class Plain:
    """A skill with a prompt of `length` tokens."""

    is_spatial = False
    finished = False

    def __init__(self, length: int, max_tokens: int) -> None:
        self.length, self.max_tokens = length, max_tokens

    def prompt(self) -> list[Token]:
        return [Token(7)] * self.length

    def mask(self) -> Mask:
        return Mask.ANY

    def consume(self, token: Token) -> str:
        return ""

    def close(self) -> str:
        return ""

    def result(self) -> dict[str, Any]:
        return {}


def sequence(
    length: int = 3,
    *,
    max_tokens: int = 20,
    image_crops: int = 0,
    adapter: int | None = None,
    key: bytes | None = None,
) -> Sequence:
    """A waiting one; prefix 1, so `length + 1` prefill positions. With a key it is about an image of 9."""
    made = Sequence(1, Plain(length, max_tokens), SamplingParams(), PREFIX if key else 1)
    made.adapter_id, made.image_key = adapter, key
    if image_crops:
        made.pixels, made.tiling = [0] * image_crops, (1, 1)
    return made


def running(length: int = 3, *, launched: int = 1, pages: int = 1, refs: int = 1, **options: Any) -> Sequence:
    """An admitted one, `launched` of whose tokens are launched."""
    made = sequence(length, **options)
    made.num_launched, made.inflight_refs = launched, refs
    made.pages, made.batch_idx = list(range(1, pages + 1)), 1
    made.tokens = [Token(9)] * max(0, launched - refs)
    return made


def scheduler(**changes: Any) -> Scheduler:
    config = EngineConfig(**{"max_batch_size": 4, "page_size": 4, "prefill_token_budget": 32, **changes})
    return Scheduler(config, num_pages=PAGES, max_context=CONTEXT, crop_budget=6)


def rows_of(plan: Any) -> tuple[Sequence, ...]:
    return plan.rows if plan else ()


def test_nothing_to_do_is_no_plan() -> None:
    assert scheduler().plan([], [], FREE) is None


def test_prefill_goes_before_decode_and_then_decode_has_its_turn() -> None:
    """pipeline_bugs 64."""
    plans, planner = [], scheduler(max_consecutive_prefills=2)
    for _ in range(6):
        plan = planner.plan([sequence()], [running()], FREE)
        assert plan is not None
        planner.launched(plan)
        plans.append(plan.kind)
    assert plans == ["prefill", "prefill", "decode"] * 2


def test_prefills_are_unlimited_while_nothing_can_decode() -> None:
    planner = scheduler()
    for _ in range(5):
        plan = planner.plan([sequence()], [], FREE)
        assert plan is not None
        assert plan.kind == "prefill"
        planner.launched(plan)


def test_planning_changes_nothing() -> None:
    planner, waiting = scheduler(), [sequence(), sequence()]
    first = planner.plan(waiting, [running()], FREE)
    assert planner.plan(waiting, [running()], FREE) == first
    assert len(waiting) == 2


@pytest.mark.parametrize(
    ("waiting", "running_rows", "free", "admitted"),
    [
        ([sequence() for _ in range(6)], 0, FREE, 4),
        ([sequence() for _ in range(6)], 3, FREE, 1),
        ([sequence() for _ in range(6)], 4, FREE, 0),
        ([sequence() for _ in range(6)], 0, Capacity(PAGES, 2, 4), 2),
        ([sequence() for _ in range(6)], 0, Capacity(5, 64, 4), 2),
        ([sequence(3), sequence(30), sequence(3)], 0, FREE, 1),
        ([sequence(7), sequence(7), sequence(7), sequence(7)], 0, FREE, 4),
        ([sequence(8), sequence(8), sequence(8), sequence(8)], 0, FREE, 3),
        ([sequence(50)], 0, FREE, 1),
        ([sequence(), sequence(image_crops=1), sequence()], 0, FREE, 1),
        ([sequence(image_crops=3) for _ in range(3)], 0, FREE, 2),
        ([sequence(image_crops=9), sequence(image_crops=1)], 0, FREE, 1),
        ([sequence(adapter=i) for i in range(4)], 0, Capacity(PAGES, 64, 2), 2),
        ([sequence(adapter=1) for i in range(4)], 0, Capacity(PAGES, 64, 1), 4),
        ([sequence(adapter=i) for i in range(4)], 0, Capacity(PAGES, 64, 1, frozenset({0, 2})), 3),
        ([sequence(adapter=1), sequence()], 0, Capacity(PAGES, 64, 0), 0),
    ],
)
def test_the_head_of_the_line_is_admitted_as_far_as_it_fits(
    waiting: list[Sequence], running_rows: int, free: Capacity, admitted: int
) -> None:
    """Seats, rows, pages, token budget, kind, crop budget, adapters; nothing overtakes what does not fit."""
    busy = [running(refs=2) for _ in range(running_rows)]
    assert rows_of(scheduler().plan(waiting, busy, free)) == tuple(waiting[:admitted])


def test_a_prefill_has_at_most_eight_rows() -> None:
    planner = scheduler(max_batch_size=32, prefill_token_budget=1000)
    assert len(rows_of(planner.plan([sequence() for _ in range(20)], [], FREE))) == MAX_PREFILL_ROWS


@pytest.mark.parametrize(
    ("row", "decodes"),
    [
        (running(), True),
        (running(refs=2), False),
        (running(launched=20, max_tokens=20), False),
        (running(launched=19, max_tokens=20, pages=6), True),
        (running(40, launched=CONTEXT - 41, max_tokens=99, pages=16), True),
        (running(40, launched=CONTEXT - 40, max_tokens=99, pages=17), False),
    ],
)
def test_a_row_decodes_when_its_next_token_is_allowed(row: Sequence, decodes: bool) -> None:
    """I3 two steps at most; I8 within max_tokens and the context, in flight included."""
    assert rows_of(scheduler().plan([], [row], FREE)) == ((row,) if decodes else ())


def test_a_finished_row_is_never_planned() -> None:
    """pipeline_bugs 24."""
    row = running()
    row.finish_reason = FinishReason.STOP
    assert scheduler().plan([], [row], FREE) is None


def test_pages_go_to_the_oldest_rows_first() -> None:
    rows = [running(3, launched=1, pages=1) for _ in range(3)]  # each needs a second page
    assert rows_of(scheduler().plan([], rows, Capacity(2, 9, 0))) == tuple(rows[:2])


def test_rows_with_a_page_left_go_on_while_others_wait_for_one() -> None:
    full, roomy = running(3, pages=1), running(3, pages=2)
    assert rows_of(scheduler().plan([], [full, roomy], Capacity(0, 9, 0))) == (roomy,)


def test_the_next_page_of_a_running_row_is_not_given_to_a_new_request() -> None:
    """pipeline_bugs 64: otherwise short requests without end would keep a long one from its page."""
    long_one = running(3, pages=1)
    plan = scheduler().plan([sequence()], [long_one], Capacity(2, 9, 0))
    assert rows_of(plan) == (long_one,)
    assert rows_of(scheduler().plan([sequence()], [long_one], Capacity(3, 9, 0))) != (long_one,)


def test_a_preempted_sequence_waits_until_it_can_run_to_its_end_unless_it_is_alone() -> None:
    """pipeline_bugs 55."""
    again = sequence(3, max_tokens=21)
    again.tokens, again.num_preemptions = [Token(9)] * 4, 1
    assert rows_of(scheduler().plan([again], [running(refs=2)], Capacity(5, 9, 0))) == ()
    assert rows_of(scheduler().plan([again], [running(refs=2)], Capacity(6, 9, 0))) == (again,)
    assert rows_of(scheduler().plan([again], [], Capacity(3, 9, 0))) == (again,)


@pytest.mark.parametrize("length", [CONTEXT - 2, CONTEXT - 1, CONTEXT])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_never_admitted(length: int) -> None:
    """pipeline_bugs 56."""
    reason = scheduler().never_fits(sequence(length))
    assert (reason is None) == (length + 2 <= CONTEXT)
    assert reason is None or reason.endswith("shorten the prompt.")


def test_a_prompt_larger_than_the_pool_is_never_admitted() -> None:
    small = Scheduler(EngineConfig(page_size=4), num_pages=3, max_context=CONTEXT, crop_budget=1)
    assert small.never_fits(sequence(10)) is None
    assert "needs 4 KV pages, but the pool has 3" in str(small.never_fits(sequence(11)))


def test_an_adapter_without_slots_is_never_admitted() -> None:
    assert "max_lora_slots 0" in str(scheduler(max_lora_slots=0).never_fits(sequence(adapter=1)))


# Cached prefixes ----------------------------------------------------------------------------------------


def about(key: bytes, length: int = 3, **options: Any) -> Sequence:
    return sequence(length, image_crops=1, key=key, **options)


def kept(pages: int, **entries: int) -> Capacity:
    """So many pages, and for each image how many of them its entry takes when it is read."""
    return Capacity(pages, 64, 4, prefixes={(name.encode(), None): taken for name, taken in entries.items()})


@pytest.mark.parametrize(
    ("waiting", "free", "admitted", "is_cached"),
    [
        ([about(b"x"), about(b"x"), about(b"y")], kept(PAGES), 2, False),
        ([about(b"x"), about(b"x"), about(b"y")], kept(PAGES, x=3), 2, True),
        ([about(b"x"), about(b"y"), about(b"x")], kept(PAGES, x=3, y=0), 3, True),
        ([about(b"y"), about(b"y"), about(b"x")], kept(PAGES, x=3), 2, False),
        ([about(b"x"), sequence(), about(b"x")], kept(PAGES, x=3), 1, True),
        ([about(b"x", adapter=1)], kept(PAGES, x=3), 1, False),
        ([about(b"x", 15) for _ in range(4)], kept(PAGES, x=3), 2, True),
        ([about(b"x", 2) for _ in range(3)], kept(6, x=3), 3, True),
        ([about(b"x", 2) for _ in range(3)], kept(5, x=3), 2, True),
        ([about(b"x", 2), about(b"y", 2)], kept(7, x=3, y=3), 1, True),
        ([about(b"x", 2), about(b"y", 2)], kept(8, x=3, y=3), 2, True),
        ([about(b"x", 2), about(b"y", 2)], kept(2, x=0, y=0), 2, True),
    ],
)
def test_a_prefill_reads_cached_prefixes_or_computes_them(
    waiting: list[Sequence], free: Capacity, admitted: int, is_cached: bool
) -> None:
    """pipeline_bugs 52: an entry's own pages are no room for its readers. Only the prompt counts as work."""
    plan = scheduler().plan(waiting, [], free)
    assert plan is not None
    assert (plan.rows, plan.is_cached) == (tuple(waiting[:admitted]), is_cached)


def test_where_the_copy_of_a_page_is_one_too_many_the_prefix_is_computed_again_by_one_that_is_alone() -> None:
    one, other = about(b"x", 2), running(refs=2)
    plan = scheduler().plan([one, about(b"x", 2)], [], kept(3, x=3))
    assert plan is not None
    assert (plan.rows, plan.is_cached) == ((one,), False)
    assert scheduler().plan([one], [other], kept(3, x=3)) is None, "pages will come back"


SEQUENCES = st.builds(
    sequence,
    st.integers(1, 40),
    max_tokens=st.integers(1, 60),
    image_crops=st.integers(0, 4),
    adapter=st.sampled_from([None, 1, 2]),
)
IMAGES = st.builds(about, st.sampled_from([b"x", b"y", b"z"]), st.integers(1, 40))
RUNNING = st.builds(
    running, st.integers(1, 20), launched=st.integers(1, 12), pages=st.integers(6, 9), refs=st.integers(0, 2)
)
ENTRIES = st.dictionaries(st.sampled_from([(b"x", None), (b"y", None)]), st.integers(0, 3))
CAPACITY = st.builds(
    lambda pages, rows, slots, entries: Capacity(
        pages + sum(entries.values()), rows, slots, prefixes=entries
    ),
    *(st.integers(0, 30), st.integers(0, 9), st.integers(0, 2), ENTRIES),
)


@given(st.lists(SEQUENCES | IMAGES, max_size=6), st.lists(RUNNING, max_size=4), CAPACITY)
def test_no_plan_takes_more_than_there_is(
    waiting: list[Sequence], rows: list[Sequence], free: Capacity
) -> None:
    planner = scheduler()
    plan = planner.plan(waiting, rows, free)
    if plan is None:
        return
    assert 0 < len(plan.rows) <= planner.config.max_batch_size
    assert len(set(map(id, plan.rows))) == len(plan.rows), "one row twice"
    if plan.kind == "decode":
        assert sum(planner.missing_pages(row) for row in plan.rows) <= free.pages
        return
    assert list(plan.rows) == waiting[: len(plan.rows)], "the line was not kept"
    assert len(rows) + len(plan.rows) <= planner.config.max_batch_size
    assert len(plan.rows) <= free.rows
    pages = sum(planner.pages_for(row.num_prefill_positions) for row in plan.rows)
    if plan.is_cached:
        keys = {row.prefix_key for row in plan.rows if row.prefix_key}
        pages += sum(free.prefixes[key] for key in keys) - len(plan.rows) * (PREFIX // 4)
    assert pages <= free.pages
    assert len({row.adapter_id for row in plan.rows} - {None}) <= free.lora_slots
    assert len({row.has_image for row in plan.rows}) == 1


@given(st.lists(SEQUENCES | IMAGES, min_size=1, max_size=6), ENTRIES, st.integers(9, PAGES))
def test_an_empty_engine_admits_the_head_of_the_line_unless_it_never_fits(
    waiting: list[Sequence], entries: Any, pages: int
) -> None:
    """Otherwise the engine would stand still for ever."""
    planner = scheduler()
    planner.num_pages = pages
    plan = planner.plan(waiting, [], Capacity(pages, 8, 2, prefixes=entries))
    assert plan is not None or planner.never_fits(waiting[0]) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 3},
        {"depth": 0},
        {"max_batch_size": 33},
        {"max_batch_size": "8"},
        {"page_size": 0},
        {"num_pages": 0},
        {"num_pages": "many"},
        {"prefill_token_budget": 0},
        {"prefill_crop_budget": 0},
        {"max_consecutive_prefills": 0},
        {"max_waiting": 0},
        {"max_cached_images": -1},
        {"max_lora_slots": -1},
        {"max_lora_rank": 1.5},
    ],
)
def test_a_wrong_knob_is_refused_in_a_sentence_that_names_it(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(change))):
        EngineConfig(**change)
