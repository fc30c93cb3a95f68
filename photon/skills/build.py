"""From a request to its skill: the one place where prompts are checked and templates filled.

`build` raises InvalidRequestError with a sentence the page shows as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from photon.errors import InvalidRequestError
from photon.model.config import TokenizerConfig
from photon.sequence import Request, SamplingParams
from photon.skills.base import Skill, TextEncoder, Token
from photon.skills.spatial import DetectSkill, PointSkill
from photon.skills.text import ReasoningSkill, TextSkill

SKILLS = ("query", "caption", "point", "detect")
_WITH_REFS = ("query", "point")


def build(request: Request, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    """The skill of a request.

    Raises:
        InvalidRequestError: unknown skill or length, empty prompt, missing image, bad spatial reference.
    """
    if callable(request.skill):
        return request.skill(params, encoder, ids)
    if request.skill not in SKILLS:
        raise InvalidRequestError(f"There is no task {request.skill!r}; use one of {', '.join(SKILLS)}.")
    if request.image is None and request.skill != "query":
        raise InvalidRequestError(f"The task {request.skill} needs an image; add one.")
    if request.spatial_refs and (request.skill not in _WITH_REFS or request.image is None):
        raise InvalidRequestError("spatial_refs go with a query or a point about an image; leave them out.")
    if request.skill == "caption":
        return _caption(request, params, encoder, ids)
    prompt = request.prompt.strip()
    if not prompt:
        wanted = "a question" if request.skill == "query" else "the name of an object"
        raise InvalidRequestError(f"The prompt is empty; the task {request.skill} needs {wanted}.")
    if request.skill == "query":
        return _query(request, prompt, params, encoder, ids)
    return _spatial(request, prompt, params, encoder, ids)


def _caption(request: Request, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig) -> Skill:
    lengths = ids.templates["caption"]
    if request.length not in list(lengths):
        raise InvalidRequestError(f"There is no caption length {request.length!r}; use {', '.join(lengths)}.")
    prompt = [Token(i) for i in lengths[request.length]]
    return TextSkill(encoder, ids, prompt, key="caption", max_tokens=params.max_tokens, stop=params.stop)


def _query(
    request: Request, question: str, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig
) -> Skill:
    template = ids.templates["query"]
    head = [Token(i) for i in template["prefix"]] + spatial_tokens(request.spatial_refs, ids)
    body = head + [Token(i) for i in (*encoder.encode(question), *template["suffix"])]
    if request.reasoning:
        prompt = [*body, Token(ids.thinking_id)]
        return ReasoningSkill(encoder, ids, prompt, max_tokens=params.max_tokens, stop=params.stop)
    # The answer id stands twice: a training artefact that the reference reproduces.
    prompt = [*body, *(Token(i) for i in template["suffix"])]
    return TextSkill(encoder, ids, prompt, key="answer", max_tokens=params.max_tokens, stop=params.stop)


def _spatial(
    request: Request, target: str, params: SamplingParams, encoder: TextEncoder, ids: TokenizerConfig
) -> Skill:
    cls, name = (PointSkill, "point") if request.skill == "point" else (DetectSkill, "detect")
    template = ids.templates[name]
    head = [Token(i) for i in template["prefix"]] + spatial_tokens(request.spatial_refs, ids)
    prompt = head + [Token(i) for i in (*encoder.encode(" " + target), *template["suffix"])]
    return cls(ids, prompt, max_objects=params.max_objects, max_tokens=params.max_tokens)


def spatial_tokens(refs: Iterable[tuple[float, ...]], ids: TokenizerConfig) -> list[Token]:
    """A point becomes coord, coord; a box becomes coord, coord (centre), size."""
    tokens: list[Token] = []
    for ref in refs:
        if not _is_reference(ref):
            raise InvalidRequestError(f"The spatial reference {ref} must be 2 or 4 numbers from 0 to 1.")
        if len(ref) == 2:
            tokens += [Token(ids.coord_id, ref[0]), Token(ids.coord_id, ref[1])]
            continue
        x_min, y_min, x_max, y_max = ref
        if x_min > x_max or y_min > y_max:
            raise InvalidRequestError(f"The box {ref} must be x_min, y_min, x_max, y_max in that order.")
        tokens += [Token(ids.coord_id, (x_min + x_max) / 2), Token(ids.coord_id, (y_min + y_max) / 2)]
        tokens.append(Token(ids.size_id, x_max - x_min, y_max - y_min))
    return tokens


def _is_reference(ref: Any) -> bool:
    try:
        return len(ref) in (2, 4) and all(0 <= value <= 1 for value in ref)
    except TypeError:
        return False
