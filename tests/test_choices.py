"""Where the reference and Kestrel differ: one test per row of the README's table, in its order.

engine_facts 1.13.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch
from engines import ANSWER, COORD, EOS, SIZE, build, picture, query, small, tiny_model
from torch.nn import functional as F

from photon import Engine, Request
from photon.errors import InvalidRequestError
from photon.model.config import RegionConfig
from photon.model.region import Region
from photon.sequence import SamplingParams
from photon.skills.base import Mask, Skill, Token, token_masks
from photon.skills.build import build as build_skill

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
IDS, ENCODER = tiny_model().config.tokenizer, tiny_model().tokenizer
MASKS = dict(zip(Mask, token_masks(IDS), strict=True))


def skill(name: str, prompt: str = "x", **options: object) -> Skill:
    request = Request(name, picture(1), prompt, **options)  # type: ignore[arg-type]
    return build_skill(request, SamplingParams.from_settings(request.settings), ENCODER, IDS)


def region(coord_bin: int = 0, size_bins: tuple[int, int] = (0, 0)) -> Region:
    """In bfloat16, with heads that always decide for these bins."""
    config = RegionConfig(dim=16, coord_feat_dim=8, size_feat_dim=8, inner_dim=24)
    module = Region(config).requires_grad_(False).to(torch.bfloat16)
    module.coord_decoder.fc2.weight.zero_()
    module.size_decoder.fc2.weight.zero_()
    module.coord_decoder.fc2.bias[coord_bin] = 9
    module.size_decoder.fc2.bias[size_bins[0]] = module.size_decoder.fc2.bias[1024 + size_bins[1]] = 9
    return module


@pytest.mark.parametrize(("coord_bin", "value"), [(289, 0.2822265625), (326, 0.318359375), (0, 0.0)])
def test_a_coordinate_is_its_bin_over_1024_in_float32(coord_bin: int, value: float) -> None:
    """The first two are values that the reference was seen to give."""
    assert region(coord_bin).decode_coord(torch.zeros(1, 16, dtype=torch.bfloat16)).item() == value


def test_a_size_is_a_power_of_two_in_float32() -> None:
    sizes = region(size_bins=(1000, 513)).decode_size(torch.zeros(1, 16, dtype=torch.bfloat16))
    assert sizes.dtype == torch.float32
    assert sizes[0].tolist() == pytest.approx([2 ** (n / 1023 * 10 - 10) for n in (1000, 513)], rel=1e-6)


def test_the_region_heads_use_the_tanh_gelu() -> None:
    torch.manual_seed(0)
    head, x = Region(RegionConfig(dim=16, inner_dim=24)).coord_decoder, torch.randn(4, 16)
    inner = head.fc1(x)
    assert torch.equal(head(x), head.fc2(F.gelu(inner, approximate="tanh")))
    assert not torch.equal(head(x), head.fc2(F.gelu(inner)))


def test_whether_there_is_another_object_is_between_a_coordinate_and_the_end() -> None:
    assert skill("point").mask() == skill("detect").mask() == Mask.OBJECT_OR_END
    assert MASKS[Mask.OBJECT_OR_END].allowed == (COORD, EOS)


def test_the_first_token_may_be_what_later_ones_may_not() -> None:
    answer, thought = skill("query"), skill("query", reasoning=True)
    assert ANSWER not in MASKS[answer.mask()].suppressed
    assert not MASKS[thought.mask()].suppressed
    answer.consume(Token(40))
    thought.consume(Token(40))
    assert ANSWER in MASKS[answer.mask()].suppressed
    assert set(MASKS[thought.mask()].suppressed) == {EOS, SIZE}


def test_one_answer_id_stands_between_reasoning_and_answer() -> None:
    made = skill("query", reasoning=True)
    for token in (Token(40), Token(ANSWER)):
        made.consume(token)
    assert MASKS[made.mask()].allowed is None, "what follows is sampled, not forced to be a second one"


@pytest.mark.parametrize(("name", "per_object"), [("point", 2), ("detect", 3)])
def test_both_spatial_skills_end_at_50_objects(name: str, per_object: int) -> None:
    assert skill(name).max_tokens == 50 * per_object + 1


def test_a_box_may_reach_over_the_edge() -> None:
    made = skill("detect")
    for token in (Token(COORD, 0.25), Token(COORD, 0.5), Token(SIZE, 1.0, 0.5)):
        made.consume(token)
    assert made.result() == {"objects": [{"x_min": -0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}]}


def test_prompts_are_stripped_and_must_not_be_empty() -> None:
    assert skill("point", "  dog \n").prompt() == skill("point", "dog").prompt()
    for name in ("query", "point", "detect"):
        with pytest.raises(InvalidRequestError, match="The prompt is empty"):
            skill(name, " \n")


def test_without_being_asked_there_is_no_reasoning() -> None:
    assert inspect.signature(Engine.query).parameters["reasoning"].default is False
    assert Request("query").reasoning is False


def test_without_being_asked_the_most_likely_token_is_taken() -> None:
    params = SamplingParams.from_settings({})
    assert (params.temperature, params.top_p, params.max_tokens) == (0, 1, 768)


def test_the_end_is_not_counted_as_an_output_token() -> None:
    with build(small()) as engine:
        handle = engine.submit(query("is there a dog in the picture?", picture(1), max_tokens=90))
        engine.run_until_idle()
        assert handle.result(0)["finish_reason"] == "stop"
        assert handle.metrics.output_tokens == len([token for token in handle.tokens if token.id != EOS])


def test_the_table_has_a_row_for_each() -> None:
    section = README.split("## Where the reference and Kestrel differ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!topic|---)", section, re.M)
    tests = re.findall(r"^def (test_(?!the_table)\w+)", Path(__file__).read_text(), re.M)
    assert len(rows) == len(tests)
