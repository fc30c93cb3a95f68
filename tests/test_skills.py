"""Pins prompts, grammars and results of the skills, and how the engine treats a grammar: it is asked before
each token, with the exact history, on one thread, and never again after its end.

pipeline_bugs 25, 27, 28, 29, 31.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from engines import (
    ANSWER,
    COORD,
    EOS,
    SIZE,
    build,
    finish,
    oracle,
    outcome,
    picture,
    requests,
    run,
    small,
    tick,
    tiny_model,
)

from photon import Request
from photon.errors import InvalidRequestError
from photon.sequence import SamplingParams
from photon.skills.base import Mask, Skill, Token, token_masks
from photon.skills.build import build as build_skill
from photon.skills.build import spatial_tokens
from photon.skills.text import grounded

IDS = tiny_model().config.tokenizer
ENCODER = tiny_model().tokenizer


def skill_of(request: Request) -> Skill:
    return build_skill(request, SamplingParams.from_settings(request.settings), ENCODER, IDS)


def feed(skill: Skill, tokens: list[Token]) -> list[Mask]:
    """The masks under which the tokens were taken."""
    masks = []
    for token in tokens:
        assert not skill.finished
        masks.append(skill.mask())
        skill.consume(token)
    return masks


def words(text: str) -> list[Token]:
    return [Token(i) for i in ENCODER.encode(text)]


def ids_of(tokens: list[Token]) -> list[int]:
    return [token.id for token in tokens]


# Prompts -------------------------------------------------------------------------------------------------


def test_a_query_ends_with_the_answer_id_twice() -> None:
    prompt = ids_of(skill_of(Request("query", None, " what is it? ")).prompt())
    assert prompt == [1, 305, 2, *ENCODER.encode("what is it?"), 3, 3]


def test_a_reasoning_query_ends_with_the_thinking_id() -> None:
    prompt = ids_of(skill_of(Request("query", None, "why", reasoning=True)).prompt())
    assert prompt == [1, 305, 2, *ENCODER.encode("why"), 3, 4]


@pytest.mark.parametrize(("skill", "head"), [("point", [1, 308, 2]), ("detect", [1, 306, 307, 2])])
def test_a_spatial_prompt_has_a_space_before_the_object(skill: str, head: list[int]) -> None:
    prompt = ids_of(skill_of(Request(skill, picture(1), "dog")).prompt())
    assert prompt == [*head, *ENCODER.encode(" dog"), 3]


@pytest.mark.parametrize(("length", "word"), [("short", 302), ("normal", 303), ("long", 304)])
def test_a_caption_prompt_is_its_template(length: str, word: int) -> None:
    assert ids_of(skill_of(Request("caption", picture(1), length=length)).prompt()) == [1, 301, 2, word, 3]


def test_spatial_references_stand_before_the_question_with_their_values() -> None:
    request = Request("query", picture(1), "x", spatial_refs=((0.25, 0.5), (0.1, 0.2, 0.5, 0.8)))
    prompt = skill_of(request).prompt()
    assert ids_of(prompt[:8]) == [1, 305, 2, COORD, COORD, COORD, COORD, SIZE]
    point_x, point_y, centre_x, centre_y, size = prompt[3:8]
    assert (point_x.x, point_y.x) == (0.25, 0.5)
    assert (centre_x.x, centre_y.x, size.x, size.y) == pytest.approx((0.3, 0.5, 0.4, 0.6))


def test_gaze_is_a_point_beside_a_head() -> None:
    prompt = skill_of(Request("point", picture(1), "gaze", spatial_refs=((0.25, 0.5),))).prompt()
    assert ids_of(prompt) == [1, 308, 2, COORD, COORD, *ENCODER.encode(" gaze"), 3]
    assert (prompt[3].x, prompt[4].x) == (0.25, 0.5)


@pytest.mark.parametrize(
    "request_",
    [Request("detect", picture(1), "x"), Request("caption", picture(1)), Request("query", None, "x")],
)
def test_spatial_references_belong_to_queries_and_points_about_an_image(request_: Request) -> None:
    with pytest.raises(InvalidRequestError, match="a query or a point about an image"):
        skill_of(replace(request_, spatial_refs=((0.5, 0.5),)))


def test_a_spatial_reference_changes_where_is_pointed() -> None:
    """Through the engine: its value is embedded, so another head has another gaze."""
    with build() as engine:
        refs = [(), ((0.1, 0.2),), ((0.9, 0.7),)]
        asked = [Request("point", picture(1), "gaze", spatial_refs=ref) for ref in refs]
        results = [outcome.result["points"] for outcome in run(engine, asked)]
    assert len({str(points) for points in results}) == 3


@pytest.mark.parametrize("ref", [(0.1,), (0.1, 1.1), (-0.1, 0.5), (float("nan"), 0.5), (0.1, 0.2, 0.3)])
def test_a_wrong_spatial_reference_is_refused(ref: tuple[float, ...]) -> None:
    """user_reports 40."""
    with pytest.raises(InvalidRequestError, match="spatial reference"):
        spatial_tokens([ref], IDS)


# Grammars ------------------------------------------------------------------------------------------------


def test_points_are_pairs_until_the_end() -> None:
    skill = skill_of(Request("point", picture(1), "dog"))
    masks = feed(
        skill, [Token(COORD, 0.1), Token(COORD, 0.2), Token(COORD, 0.3), Token(COORD, 0.4), Token(EOS)]
    )
    assert masks == [Mask.OBJECT_OR_END, Mask.COORD, Mask.OBJECT_OR_END, Mask.COORD, Mask.OBJECT_OR_END]
    assert skill.finished
    assert skill.result() == {"points": [{"x": 0.1, "y": 0.2}, {"x": 0.3, "y": 0.4}]}


def test_boxes_are_triples_of_centre_and_size() -> None:
    skill = skill_of(Request("detect", picture(1), "dog"))
    masks = feed(skill, [Token(COORD, 0.5), Token(COORD, 0.25), Token(SIZE, 0.2, 0.1)])
    assert masks == [Mask.OBJECT_OR_END, Mask.COORD, Mask.SIZE]
    assert skill.mask() == Mask.OBJECT_OR_END
    (box,) = skill.result()["objects"]
    assert box == pytest.approx({"x_min": 0.4, "y_min": 0.2, "x_max": 0.6, "y_max": 0.3})


@pytest.mark.parametrize(("skill", "per_object", "key"), [("point", 2, "points"), ("detect", 3, "objects")])
def test_a_dangling_coordinate_is_no_object(skill: str, per_object: int, key: str) -> None:
    made = skill_of(Request(skill, picture(1), "dog", settings={"max_objects": 2}))
    assert made.max_tokens == 2 * per_object + 1
    for count in range(2 * per_object + 1):
        assert len(made.result()[key]) == count // per_object
        made.consume(Token(COORD, 0.5))


def test_text_never_holds_a_coordinate_and_answers_begin_once() -> None:
    skill = skill_of(Request("query", None, "x"))
    assert feed(skill, words("ab")) == [Mask.FIRST_TEXT, Mask.TEXT][: len(words("ab"))]
    masks = dict(zip(Mask, token_masks(IDS), strict=True))
    assert set(masks[Mask.TEXT].suppressed) == {ANSWER, COORD, SIZE}
    assert set(masks[Mask.FIRST_TEXT].suppressed) == {COORD, SIZE}


def test_reasoning_ends_with_the_answer_id_and_then_text_follows() -> None:
    skill = skill_of(Request("query", picture(1), "x", reasoning=True, settings={"max_tokens": 8}))
    thought = words("see ")[:3]
    masks = feed(skill, [*thought, Token(ANSWER)])
    assert masks == [Mask.ANY, *[Mask.REASONING] * len(thought)]
    assert skill.max_tokens == len(thought) + 1 + 8, "the answer has its own limit"
    assert feed(skill, [*words("a")[:1], Token(EOS)]) == [Mask.FIRST_TEXT, Mask.TEXT]
    assert skill.finished
    assert skill.result()["answer"] == "a"


def test_reasoning_that_does_not_end_is_ended() -> None:
    skill = skill_of(Request("query", None, "x", reasoning=True, settings={"max_tokens": 3}))
    feed(skill, [Token(40)] * 3)
    assert skill.mask() == Mask.ANSWER


def test_an_answer_after_reasoning_that_is_cut_says_so() -> None:
    """Its limit is the answer's, however short the reasoning was."""
    for index in (12, 13, 14):
        result, tokens = oracle(index).result, oracle(index).tokens
        thought = ids_of(list(tokens)).index(ANSWER)
        is_full = len(tokens) - thought - 1 == requests()[index].settings["max_tokens"]
        assert result["truncated"] == is_full


def test_grounded_phrases_point_into_the_text() -> None:
    a, b = words("ab"), words("cd")
    tokens = [*a, Token(7), *b, Token(COORD, 0.1), Token(COORD, 0.2), Token(COORD, 0.9), Token(9), *a]
    result = grounded(tokens, ENCODER, IDS)
    assert result["text"] == "abcdab"
    assert result["grounding"] == [{"start_idx": 2, "end_idx": 4, "points": [(0.1, 0.2)]}]


def test_a_phrase_without_a_whole_point_is_left_out() -> None:
    result = grounded([Token(7), *words("cd"), Token(COORD, 0.1), Token(9)], ENCODER, IDS)
    assert result == {"text": "cd", "grounding": []}


# In the engine ---------------------------------------------------------------------------------------------


class Spy:
    """A grammar that walks through `masks`, over and over, and records every call."""

    is_spatial = True

    def __init__(self, masks: tuple[Mask, ...], count: int, *, ends_itself: bool = True) -> None:
        self.masks, self.count, self.ends_itself = masks, count, ends_itself
        self.max_tokens = count + 10 if ends_itself else count
        self.history: list[Token] = []
        self.asked: list[tuple[Token, ...]] = []
        self.threads: set[int] = set()
        self.calls_after_the_end = 0

    def prompt(self) -> list[Token]:
        return [Token(i) for i in (1, 305, 2, 40, 41 + self.count, 3)]

    def mask(self) -> Mask:
        self._enter()
        self.asked.append(tuple(self.history))
        return self.masks[len(self.history) % len(self.masks)]

    def consume(self, token: Token) -> str:
        self._enter()
        self.history.append(token)
        return ""

    @property
    def finished(self) -> bool:
        return self.ends_itself and len(self.history) >= self.count

    def close(self) -> str:
        return ""

    def result(self) -> dict[str, Any]:
        return {"history": list(self.history)}

    def _enter(self) -> None:
        self.calls_after_the_end += self.finished
        self.threads.add(threading.get_ident())


ALLOWED = {Mask.COORD: {COORD}, Mask.SIZE: {SIZE}, Mask.ANSWER: {ANSWER}, Mask.OBJECT_OR_END: {COORD, EOS}}
CYCLES = [
    (Mask.COORD,),
    (Mask.SIZE,),
    (Mask.ANSWER,),
    (Mask.COORD, Mask.SIZE),
    (Mask.OBJECT_OR_END, Mask.COORD, Mask.SIZE),
]


def spied(spy: Spy) -> Request:
    return Request(lambda params, encoder, ids: spy, settings={"temperature": 1.0, "seed": spy.count})


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("depth", [1, 2])
def test_each_row_has_its_own_mask_and_no_other(depth: int, seed: int) -> None:
    """pipeline_bugs 25, 28, 31: sizes of the batch change all the time, and some rows are unconstrained."""
    spies = [Spy(CYCLES[number % 5], 3 + number) for number in range(12)]
    with build(small(depth=depth, max_batch_size=5, page_size=16), seed=seed) as engine:
        handles = []
        for number, spy in enumerate(spies):
            engine.submit(spied(spy))
            handles.append(engine.submit(requests()[number]))
            tick(engine)
        finish(engine)
        assert [outcome(handle) for handle in handles] == [oracle(number) for number in range(12)]
    for spy in spies:
        wanted = [spy.masks[k % len(spy.masks)] for k in range(spy.count)]
        assert all(token.id in ALLOWED[mask] for token, mask in zip(spy.history, wanted, strict=True))


@pytest.mark.parametrize("ends_itself", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_grammar_sees_each_token_before_it_is_asked_for_the_next(depth: int, ends_itself: bool) -> None:
    """pipeline_bugs 27, 29: exactly t0 .. t(k-1) before tk; nothing after its end; from one thread."""
    spies = [Spy(CYCLES[number % 5], 4 + number, ends_itself=ends_itself) for number in range(6)]
    with build(small(depth=depth, max_batch_size=3)) as engine:
        handles = [engine.submit(spied(spy)) for spy in spies]
        finish(engine)
        tokens = [handle.tokens for handle in handles]
    for spy, mine in zip(spies, tokens, strict=True):
        assert spy.asked == [tuple(spy.history[:k]) for k in range(spy.count)]
        assert tuple(spy.history) == mine
        assert spy.calls_after_the_end == 0
        assert spy.threads == {threading.get_ident()}


def test_a_grammar_of_a_threaded_engine_is_used_on_one_thread() -> None:
    """pipeline_bugs 27."""
    spies = [Spy(CYCLES[number % 5], 4 + number) for number in range(6)]
    with build(threaded=True) as engine:
        for handle in [engine.submit(spied(spy)) for spy in spies]:
            handle.result(timeout=60)
    assert len(set.union(*(spy.threads for spy in spies))) == 1
    assert threading.get_ident() not in spies[0].threads


def test_the_first_token_obeys_the_grammar_and_has_its_value() -> None:
    """pipeline_bugs 31: it is sampled at prefill, on the same path."""
    spies = [Spy((Mask.COORD,), 1), Spy((Mask.SIZE,), 1)]
    with build() as engine:
        run(engine, [spied(spy) for spy in spies])
    coord, size = spies[0].history[0], spies[1].history[0]
    assert (coord.id, size.id) == (COORD, SIZE)
    assert 0 <= coord.x < 1
    assert size.x > 0
    assert size.y > 0
