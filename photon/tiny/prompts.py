"""What is asked about a scene, in which words, and what the right answer is. Also the tokenizer.

Text prompts have text answers; point and detect prompts have the list of things meant, in target order.
Prompts are plain strings here; `data.py` wraps them into the templates of `template_ids`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from photon.tiny.scenes import Kind, Scene, Thing
from photon.tiny.shapes import COLORS, SHAPES

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SKILL_WORDS = ("describe", "short", "normal", "long", "query", "detect", "point")
SPECIALS = ("<|endoftext|>", *(f"<|s{i}|>" for i in range(1, 10)))
MAX_COUNT = 10
GENERIC = ("shape", "object", "thing")


@dataclass(frozen=True)
class Phrase:
    """A description such as 'red circle', 'stars' or 'shapes'. None leaves that property open."""

    text: str
    plural: str
    shape: str | None
    color: str | None

    def match(self, things: Iterable[Thing]) -> list[Thing]:
        """The things meant, in their given order."""
        return [t for t in things if self.shape in (None, t.shape) and self.color in (None, t.color)]


@dataclass(frozen=True)
class Ask:
    """One prompt and its answer: `text` for query and caption, `things` for point and detect.

    `skill` is query, point, detect, or a caption length (short, normal, long), whose prompt is empty.
    `topic` names what is tested: count, color, shape, exists, caption, point, detect.
    """

    skill: str
    prompt: str
    topic: str
    text: str = ""
    things: tuple[Thing, ...] = ()


def plural(noun: str) -> str:
    return noun + ("es" if noun in ("cross",) else "s")


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def phrase(shape: str | None, color: str | None, noun: str = "shape") -> Phrase:
    """Words for things of a shape, a colour, both or neither."""
    head, heads = shape or noun, plural(shape or noun)
    lead = f"{color} " if color else ""
    return Phrase(lead + head, lead + heads, shape, color)


def any_phrase(rng: Random, things: Sequence[Thing], absent: float) -> Phrase:
    """A random description: of something present, or with probability `absent` perhaps of nothing."""
    noun = rng.choice(GENERIC)
    if not things or rng.random() < absent:
        shape, color = rng.choice(SHAPES), rng.choice(COLORS)
        if things and rng.random() < 0.5:
            shape, color = rng.choice(things).shape, rng.choice(things).color
        elif things and rng.random() < 0.4:
            keep = rng.choice(things)
            shape, color = (keep.shape, color) if rng.random() < 0.5 else (shape, keep.color)
    else:
        shape, color = rng.choice(things).kind
    roll = rng.random()
    if roll < 0.5:
        return phrase(shape, color)
    if roll < 0.74:
        return phrase(shape, None)
    if roll < 0.88:
        return phrase(None, color, noun)
    return phrase(None, None, noun)


def listing(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def census(things: Iterable[Thing]) -> list[tuple[Kind, int]]:
    """Kinds with their numbers, in canonical order: by shape, then by colour."""
    counts = Counter(t.kind for t in things)
    return sorted(counts.items(), key=lambda item: (SHAPES.index(item[0][0]), COLORS.index(item[0][1])))


def counted(number: int, one: str, many: str) -> str:
    return f"{article(one)} {one}" if number == 1 else f"{NUMBERS[min(number, MAX_COUNT)]} {many}"


def caption(things: Sequence[Thing], length: str) -> str:
    """The caption of a scene: short lists what is there, normal is a sentence, long gives the total first."""
    parts = [counted(n, f"{c} {s}", f"{c} {plural(s)}") for (s, c), n in census(things)]
    body = listing(parts) if parts else "nothing"
    if length == "short":
        return body
    if length == "normal":
        return f"a picture of {body}."
    return f"this picture shows {counted(len(things), 'shape', 'shapes')}: {body}." if parts else body


def parse_caption(text: str) -> Counter[Kind] | None:
    """Kinds and numbers that a caption names, or None where it does not parse."""
    words = text.lower().split(":")[-1].replace(",", " ").replace(".", " ").split()
    names = {w: s for s in SHAPES for w in (s, plural(s))}
    found: Counter[Kind] = Counter()
    number: int | None = None
    color: str | None = None
    for word in words:
        if word in ("a", "an"):
            number = 1
        elif word in NUMBERS:
            number = NUMBERS.index(word)
        elif word in COLORS:
            color = word
        elif word in names:
            if number is None or color is None or (names[word], color) in found:
                return None
            found[names[word], color] = number
            number = color = None
    return found


def ask_caption(rng: Random, scene: Scene) -> Ask:
    """A caption task, or its free-form question."""
    if rng.random() < 0.2:
        words = ("what is in the {}?", "describe the {}.", "what do you see in this {}?", "what is this?")
        prompt = rng.choice(words).format(rng.choice(("picture", "image")))
        return Ask("query", _style(rng, prompt), "caption", caption(scene.things, "normal"))
    length = rng.choice(("short", "normal", "normal", "long"))
    return Ask(length, "", "caption", caption(scene.things, length))


def ask_count(rng: Random, scene: Scene) -> Ask:
    """How many of something; larger numbers are preferred because they are rarer."""
    options = [any_phrase(rng, scene.things, 0.22) for _ in range(2)]
    counts = [len(o.match(scene.things)) for o in options]
    pick = counts.index(max(counts)) if rng.random() < 0.4 else 0
    words = (
        "how many {} are there?",
        "how many {}?",
        "how many {} are in the picture?",
        "how many {} are in this image?",
        "how many {} do you see?",
        "how many {} can you see?",
        "count the {}.",
        "count {}.",
        "number of {}",
        "what is the number of {}?",
    )
    prompt = rng.choices(words, weights=(5, 3, 1, 1, 1, 1, 2, 1, 1, 1))[0].format(options[pick].plural)
    return Ask("query", _style(rng, prompt), "count", str(min(counts[pick], MAX_COUNT)))


def ask_color(rng: Random, scene: Scene) -> Ask:
    """Colours of the things of one shape; 'none' where there are none."""
    shape = rng.choice(scene.things).shape if scene.things and rng.random() < 0.88 else rng.choice(SHAPES)
    found = {t.color for t in scene.things if t.shape == shape}
    words = (
        "what color is the {}?",
        "what colour is the {}?",
        "which color is the {}?",
        "what is the color of the {}?",
        "what color are the {}?",
        "what colour are the {}?",
    )
    choice = rng.randrange(len(words))
    prompt = words[choice].format(plural(shape) if choice > 3 else shape)
    answer = listing([c for c in COLORS if c in found]) if found else "none"
    return Ask("query", _style(rng, prompt), "color", answer)


def ask_shape(rng: Random, scene: Scene) -> Ask:
    """Shapes of the things of one colour; 'none' where there are none."""
    color = rng.choice(scene.things).color if scene.things and rng.random() < 0.88 else rng.choice(COLORS)
    found = {t.shape for t in scene.things if t.color == color}
    words = (
        "what shape is {}?",
        "which shape is {}?",
        "what is the {} shape?",
        "what shape is the {} object?",
        "what shape is the {} thing?",
        "what is the shape of the {} object?",
        "what is {}?",
    )
    answer = listing([s for s in SHAPES if s in found]) if found else "none"
    return Ask("query", _style(rng, rng.choice(words).format(color)), "shape", answer)


def ask_exists(rng: Random, scene: Scene) -> Ask:
    """Is something there: yes or no, each about half the time."""
    absent = rng.random() < 0.55
    item = any_phrase(rng, scene.things, 1.0 if absent else 0.0)
    one = f"{article(item.text)} {item.text}"
    words = (
        f"is there {one}?",
        f"is there any {item.text}?",
        f"are there any {item.plural}?",
        f"are there {item.plural}?",
        f"do you see {one}?",
        f"can you see {one}?",
        f"is there {one} in the picture?",
    )
    answer = "yes" if item.match(scene.things) else "no"
    return Ask("query", _style(rng, rng.choice(words)), "exists", answer)


def ask_where(rng: Random, scene: Scene, skill: str, absent: float = 0.24) -> Ask:
    """A point or detect task for a random description."""
    item = any_phrase(rng, scene.things, absent)
    one = f"{article(item.text)} {item.text}"
    forms = [item.text, item.plural, f"the {item.text}", f"all {item.plural}", one]
    if item.color and not item.shape:
        forms[2] = item.color
    prompt = rng.choices(forms, weights=(10, 8, 1, 1, 1))[0]
    return Ask(skill, prompt, skill, things=tuple(item.match(scene.things)))


def _style(rng: Random, prompt: str) -> str:
    """As people type: sometimes a capital, sometimes no mark at the end."""
    if rng.random() < 0.25:
        prompt = prompt[0].upper() + prompt[1:]
    return prompt[:-1] if prompt[-1] in "?." and rng.random() < 0.15 else prompt


def _templates_text() -> list[str]:
    """Enough sampled prompts and answers to meet every word there is."""
    rng = Random(0)
    kinds = [(s, c) for s in SHAPES for c in COLORS]
    texts = ["0 1 2 3 4 5 6 7 8 9 10", "yes no none nothing"]
    for _ in range(4000):
        picked = [rng.choice(kinds) for _ in range(rng.randint(0, 9))]
        things = tuple(Thing(s, c, 0, 0, 0, 0, None) for s, c in picked)  # type: ignore[arg-type]
        scene = Scene(None, things)  # type: ignore[arg-type]
        asks = (ask_caption, ask_count, ask_color, ask_shape, ask_exists)
        made = [ask(rng, scene) for ask in asks] + [ask_where(rng, scene, "point")]
        texts += [text for a in made for text in (a.prompt, a.text) if text]
    return texts


def _words(texts: Iterable[str]) -> set[str]:
    return {w.strip("?.,:") for text in texts for w in text.split()} - {""}


def vocabulary() -> list[str]:
    """Every word, lower case, that a prompt to this model may use."""
    return sorted({w.lower() for w in _words(_templates_text())} | set(NUMBERS))


def build_tokenizer() -> Tokenizer:
    """Byte-level BPE in which each known word is one token, with and without a leading space."""
    words = _words(_templates_text()) | set(SKILL_WORDS) | set(NUMBERS) | {"?", ".", ",", ":"}
    lower = sorted(w for w in words if w[0].islower())
    corpus = sorted(words) * 3 + [" " + w for w in lower] * 2
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2048,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def template_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    """Prompt templates in the layout of the reference's config."""
    ids = {w: tokenizer.encode(w).ids[0] for w in SKILL_WORDS}
    return {
        "caption": {n: [1, ids["describe"], 2, ids[n], 3] for n in ("short", "normal", "long")},
        "query": {"prefix": [1, ids["query"], 2], "suffix": [3]},
        "detect": {"prefix": [1, ids["detect"], 2], "suffix": [3]},
        "point": {"prefix": [1, ids["point"], 2], "suffix": [3]},
    }
