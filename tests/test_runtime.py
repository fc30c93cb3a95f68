"""What a verb enqueues: masks travel when they change, and only then."""

from __future__ import annotations

from engines import FlakyDevice, build, picture, run, sequential, small

from photon import Request
from photon.device.base import Work
from photon.device.deferred import DeferredDevice
from photon.measure.rounds import EndlessSkill, endless
from photon.skills.base import Mask, Skill, Token

NEVER = 10**6


class AlternatingSkill(EndlessSkill):
    """Every second token must be a coordinate, the others a size."""

    is_spatial = True
    num_tokens = 0

    def mask(self) -> Mask:
        return (Mask.COORD, Mask.SIZE)[self.num_tokens % 2]

    def consume(self, token: Token) -> str:
        self.num_tokens += 1
        return ""


def alternating(params: object, encoder: object, ids: object) -> Skill:
    prompt = [Token(1)]
    return AlternatingSkill(encoder, ids, prompt, key="caption", max_tokens=12)  # type: ignore[arg-type]


def mask_uploads(request: Request, depth: int) -> tuple[int, int]:
    """Uploads of masks, and steps, of one request alone."""
    device = FlakyDevice("upload_masks", NEVER)
    with build(small(depth=depth), device=device) as engine:
        run(engine, [request])
        return NEVER - device.copy.countdown, engine.stats()["steps"]


def test_masks_that_stay_are_uploaded_once_per_slot() -> None:
    request = Request(endless, settings={"max_tokens": 12})
    assert mask_uploads(request, depth=1) == (1, 12)
    assert mask_uploads(request, depth=2) == (2, 12)


def test_masks_that_alternate_are_uploaded_unless_the_slot_holds_them() -> None:
    """Blocking, the one slot sees both in turn; pipelined, each slot sees always the same one."""
    request = Request(alternating)
    assert mask_uploads(request, depth=1) == (12, 12)
    assert mask_uploads(request, depth=2) == (2, 12)


class Captured(DeferredDevice):
    """Takes note of what is prepared before serving."""

    fixed_shapes = True

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Work] = []
        self.called: list[Work] = []

    def capture(self, work: Work, *, begun: object = None) -> None:
        assert not self.called, "a capture gives back the memory that was warmed up"
        self.captured.append(work)

    def call(self, work: Work) -> object:
        self.called.append(work)
        return super().call(work)


def test_what_is_not_captured_runs_once_at_its_largest_before_serving_and_changes_no_token() -> None:
    device, request = Captured(), Request("query", picture(1), "what is it?", settings={"max_tokens": 9})
    with build(small(max_lora_slots=0), device=device) as engine:
        assert [work.program for work in device.called] == ["project", "prefill", "sample"]
        assert not set(device.captured) & set(device.called)
        assert run(engine, [request]) == [sequential(request)]
