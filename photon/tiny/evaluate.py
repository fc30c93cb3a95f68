"""Measure a model on fixed held-out scenes: `python -m photon.tiny.evaluate --model assets/tiny`.

Two tables: scenes of one crop, and scenes of other sizes and aspect ratios that take several. Scenes,
prompts and their wording follow from --seed; training uses other random numbers of the same generator.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import torch

from photon.model.config import ModelConfig
from photon.tiny import prompts
from photon.tiny.data import Sample, prepare
from photon.tiny.pool import crops
from photon.tiny.prompts import Ask
from photon.tiny.reader import Box, Reader, load
from photon.tiny.scenes import Scene, Style, draw_scene

STYLES = {
    "one crop": Style(),
    "several crops": Style(short_side=(130, 720), aspect=(1.0, 2.2), min_radius=0.055),
}
BARS = {
    "point recall": 0.96,
    "point precision": 0.96,
    "detect F1": 0.95,
    "count exact": 0.92,
    "color": 0.98,
    "shape": 0.98,
    "absent: no point": 0.97,
    "absent: no box": 0.97,
    "caption exact": 0.80,
}
DISTANCE = 0.05
OVERLAP = 0.5

Tally = dict[str, list[float]]
"""Numerators and denominators by metric: [right, out of]."""


def questions(seed: int, number: int, scene: Scene) -> list[Ask]:
    """What is asked about one held-out scene."""
    rng = Random(f"evaluate/{seed}/{number}")
    asks = [prompts.ask_count(rng, scene) for _ in range(2)]
    asks += [prompts.ask_color(rng, scene), prompts.ask_shape(rng, scene), prompts.ask_exists(rng, scene)]
    asks += [prompts.ask_caption(rng, scene)]
    for skill in ("point", "detect"):
        asks += [_where(rng, scene, skill, present) for present in (True, True, False)]
    return asks


def _where(rng: Random, scene: Scene, skill: str, present: bool) -> Ask:
    """A point or detect task about something that is there, or that is not."""
    while True:
        ask = prompts.ask_where(rng, scene, skill, 0.0 if present else 1.0)
        if bool(ask.things) == present or (present and not scene.things):
            return ask


def matches(found: Sequence[Box], truth: Sequence[Box], score: Callable[[Box, Box], float]) -> int:
    """Pairs of a greedy one-to-one matching, best score first; a negative score never matches."""
    scored = ((score(f, t), i, j) for i, f in enumerate(found) for j, t in enumerate(truth))
    pairs = sorted(scored, reverse=True)
    left, right = set(range(len(found))), set(range(len(truth)))
    for value, i, j in pairs:
        if value >= 0 and i in left and j in right:
            left.discard(i)
            right.discard(j)
    return len(truth) - len(right)


def closeness(found: Box, truth: Box) -> float:
    """DISTANCE minus the distance of two points."""
    return DISTANCE - math.dist(found[:2], truth[:2])


def overlap(found: Box, truth: Box) -> float:
    """Intersection over union of two boxes (x, y, w, h), minus OVERLAP."""
    sides = [
        min(a + s / 2, b + t / 2) - max(a - s / 2, b - t / 2)
        for a, b, s, t in zip(found[:2], truth[:2], found[2:], truth[2:], strict=True)
    ]
    both = max(0.0, sides[0]) * max(0.0, sides[1])
    union = found[2] * found[3] + truth[2] * truth[3] - both
    return both / union - OVERLAP if union > 0 else -OVERLAP


def judge(tally: Tally, scene: Scene, ask: Ask, answer: str | list[Box]) -> None:
    """Add one answer to the tally."""

    def add(name: str, right: float, total: float = 1) -> None:
        tally[name][0] += right
        tally[name][1] += total

    if isinstance(answer, str):
        if ask.topic == "caption":
            right = prompts.parse_caption(answer) == Counter(dict(prompts.census(scene.things)))
            add("caption exact", right)
            add(f"caption, {min(len(scene.things), 7)} things", right)
            return
        add(_text_metric(ask), answer == ask.text)
        if ask.topic == "count":
            add(f"count, truth {ask.text}", answer == ask.text)
        return
    truth = [(t.x, t.y, t.w, t.h) for t in ask.things]
    if not truth:
        add("absent: no point" if ask.skill == "point" else "absent: no box", not answer)
    elif ask.skill == "point":
        hits = matches(answer, truth, closeness)
        add("point recall", hits, len(truth))
        add("point precision", hits, len(answer))
        add("point list exact", hits == len(truth) == len(answer))
    else:
        add("detect F1", 2 * matches(answer, truth, overlap), len(truth) + len(answer))


def _text_metric(ask: Ask) -> str:
    """Which row an answer in words belongs to."""
    if ask.topic in ("color", "shape"):
        if ask.text == "none":
            return "absent: none"
        return f"{ask.topic}, several" if " and " in ask.text else ask.topic
    return {"count": "count exact", "exists": "yes or no"}[ask.topic]


def measure(reader: Reader, config: ModelConfig, style: Style, count: int, seed: int) -> dict[str, float]:
    """Metrics over `count` scenes of a style; 'count, truth n' and 'caption, n things' are breakdowns."""
    tally: Tally = defaultdict(lambda: [0.0, 0.0])
    for start in range(0, count, 32):
        numbers = range(start, min(count, start + 32))
        scenes = [draw_scene(Random(f"held out/{seed}/{n}").getrandbits(60), style) for n in numbers]
        samples: list[Sample] = [prepare(scene, config) for scene in scenes]
        images = torch.cat([reader.see(*crops([sample])) for sample in samples])
        asks = [(i, ask) for i, n in enumerate(numbers) for ask in questions(seed, n, scenes[i])]
        for (i, ask), answer in zip(asks, reader.answer(images, asks), strict=True):
            judge(tally, scenes[i], ask, answer)
    return {name: right / total for name, (right, total) in sorted(tally.items()) if total}


def table(results: dict[str, dict[str, float]]) -> str:
    """Metrics as rows, styles as columns, the bar beside them."""
    names = [*BARS, "absent: none", "yes or no", "color, several", "shape, several", "point list exact"]
    names += sorted({n for r in results.values() for n in r} - set(names))
    lines = [f"{'metric':<22}{'bar':>7}" + "".join(f"{style:>16}" for style in results)]
    for name in names:
        bar = f"{BARS[name]:.2f}" if name in BARS else ""
        values = (f"{r[name]:.3f}" if name in r else "-" for r in results.values())
        lines.append(f"{name:<22}{bar:>7}" + "".join(f"{value:>16}" for value in values))
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, default=Path("assets/tiny"), help="folder of the model")
    parser.add_argument("--scenes", type=int, default=500, help="scenes per table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = load(args.model)
    reader, weights = Reader(model, tokenizer), args.model / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    print(f"{weights}: {weights.stat().st_size / 1e6:.2f} MB, sha256 {digest[:16]}")
    print(f"{args.scenes} held-out scenes per column, seed {args.seed}\n")
    results = {n: measure(reader, model.config, s, args.scenes, args.seed) for n, s in STYLES.items()}
    print(table(results))
    if args.json:
        found = {"weights": str(weights), "sha256": digest, "scenes": args.scenes, "seed": args.seed}
        print(json.dumps(found | {"results": results}))


if __name__ == "__main__":
    main()
