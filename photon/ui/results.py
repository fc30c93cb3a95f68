"""An Outcome as JSON and as plain sentences. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from photon.ui.ask import RESULT_KEY, SPATIAL, Ask
from photon.ui.runs import Outcome, Part

_ORDER = ("stop", "length", "cancelled", "error")
_TIMES = ("queue_ms", "preprocess_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms")
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "zombie_rows")


def tidy(place: dict[str, float]) -> dict[str, float]:
    """Clamp to the picture and put minimum before maximum; raw values stay in the trace."""
    clamped = {key: min(1.0, max(0.0, float(value))) for key, value in place.items()}
    for axis in ("x", "y"):
        low, high = f"{axis}_min", f"{axis}_max"
        if low in clamped and clamped[low] > clamped[high]:
            clamped[low], clamped[high] = clamped[high], clamped[low]
    return clamped


def in_pixels(place: dict[str, float], size: tuple[int, int]) -> dict[str, float]:
    """Normalised coordinates times width or height."""
    width, height = size
    return {key: round(value * (width if key[0] == "x" else height), 2) for key, value in place.items()}


def finish_reason(outcome: Outcome) -> str:
    """The reason of the whole run: the least regular one of its requests."""
    return max((part.finish_reason for part in outcome.parts), key=_ORDER.index)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The result as the page shows it, the download holds it and the endpoints return it."""
    ask = outcome.ask
    width, height = ask.size
    head: dict[str, Any] = {
        "model": outcome.model,
        "task": ask.task,
        "image": {"width": width, "height": height},
    }
    if ask.task == "caption":
        head["length"] = ask.length
    else:
        head["prompt"] = ask.prompt
    if ask.task in SPATIAL:
        head["labels"] = list(ask.labels)
    if ask.spatial_refs:
        head["spatial_refs"] = [list(ref) for ref in ask.spatial_refs]
    return head | _body(outcome) | _tail(outcome)


def _body(outcome: Outcome) -> dict[str, Any]:
    key = RESULT_KEY[outcome.ask.task]
    if outcome.ask.task not in SPATIAL:
        return {key: outcome.text}
    places = [
        {"label": label, "normalized": tidy(place), "pixels": in_pixels(tidy(place), outcome.ask.size)}
        for label, found in outcome.found.items()
        for place in found
    ]
    return {"count": {label: len(found) for label, found in outcome.found.items()}, key: places}


def _tail(outcome: Outcome) -> dict[str, Any]:
    tail: dict[str, Any] = {
        "finish_reason": finish_reason(outcome),
        "truncated": any(part.truncated for part in outcome.parts),
        "metrics": merged_metrics(outcome.parts),
    }
    if outcome.errors:
        tail["errors"] = {part.label: part.error for part in outcome.parts if part.error}
    return tail


@dataclass(frozen=True)
class _Window:
    start_ns: int
    end_ns: int


def merged_metrics(parts: tuple[Part, ...]) -> dict[str, Any]:
    """Numbers of a run: those of its request; of several, the longest of each time and sums of counts."""
    known = [part.metrics for part in parts if part.metrics is not None]
    window = run_window(parts)
    if window is None:
        return {}
    times = {name: round(max(getattr(m, name) for m in known), 3) for name in _TIMES}
    counts = {name: sum(getattr(m, name) for m in known) for name in _COUNTS}
    speed = known[0].tokens_per_s
    if len(known) > 1:
        speed = counts["output_tokens"] * 1e9 / max(1, window.end_ns - window.start_ns)
    speed = None if speed is None else round(speed, 2)
    return times | counts | {"tokens_per_s": speed, "requests": len(known)}


def run_window(parts: tuple[Part, ...]) -> _Window | None:
    """First arrival to last finish, on the device's host clock; None where nothing finished."""
    known = [part.metrics for part in parts if part.metrics is not None]
    if not known:
        return None
    return _Window(min(m.arrival_ns for m in known), max(m.finished_ns for m in known))


def counts(outcome: Outcome) -> dict[str, str]:
    """The result in one plain sentence per label; empty for text tasks."""
    return {label: f"{len(found)} found for '{label}'" for label, found in outcome.found.items()}


def amount(outcome: Outcome) -> str:
    """How much there is of a text."""
    tokens = f"{outcome.num_tokens} token{'' if outcome.num_tokens == 1 else 's'}"
    return f"{tokens} in {outcome.elapsed_ms / 1000:.1f} s"


def why_it_ended(outcome: Outcome) -> str:
    """What ended the run, in words."""
    if outcome.errors:
        return " ".join(outcome.errors)
    reason, task = finish_reason(outcome), outcome.ask.task
    if reason == "cancelled":
        return "What had been decoded by then is kept."
    if reason == "length":
        limit = "max_objects or max_tokens" if task in SPATIAL else "max_tokens"
        return f"Cut off at the limit ({limit}); raise it under Settings to see more."
    if task in SPATIAL:
        return "Complete: the model has nothing more to mark."
    return "Complete: the model ended its text."


def progress(outcome: Outcome) -> str:
    """What the engine is doing with the run right now."""
    words = {"queued": _queued(outcome.num_ahead), "prefill": "Prefill: reading picture and prompt"}
    stage = words.get(outcome.stage, f"Decoding: token {outcome.num_tokens}")
    return f"{stage} · {outcome.elapsed_ms / 1000:.1f} s"


def _queued(num_ahead: int) -> str:
    return f"Queued: {num_ahead} request{'s' * (num_ahead > 1)} before this one" if num_ahead else "Queued"


def python_call(ask: Ask) -> str:
    """The same run as Python, for the engine in this process and for this page's HTTP API."""
    settings = {key: value for key, value in ask.settings.items() if value is not None}
    extra = f", settings={settings!r}" if settings else ""
    if ask.spatial_refs:
        extra += f", spatial_refs={[list(ref) for ref in ask.spatial_refs]!r}"
    key = RESULT_KEY[ask.task]
    if ask.task == "caption":
        calls = [f'engine.caption(image, length="{ask.length}"{extra})["{key}"]']
        remote = f'length="{ask.length}"'
    else:
        calls = [f'engine.{ask.task}(image, {label!r}{extra})["{key}"]' for label in ask.labels]
        remote = f"{'question' if ask.task == 'query' else 'object'}={ask.prompt!r}"
    lines = [
        "from photon import Engine, load_model, open_device",
        "",
        'engine = Engine(load_model("assets/tiny"), open_device("cpu"))',
        'image = "picture.png"',
        *calls,
        "",
        "# or over HTTP",
        "from gradio_client import Client, handle_file",
        "",
        'client = Client("http://127.0.0.1:7860")',
        'image = handle_file("picture.png")',
        f'client.predict(image=image, {remote}{extra}, api_name="/{ask.task}")',
    ]
    return "\n".join(lines)
