"""The About tab: which model runs where, what it cannot do, versions, licence."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import gradio as gr

from photon import Engine
from photon.ui.markup import escape

_PACKAGES = ("photon-workbench", "torch", "gradio", "pillow", "safetensors")
_NOTICE = (
    "Photon Workbench is an independent project. It is not made, endorsed or supported by Moondream; "
    "“Moondream” and “Photon” are names of their owner and are used here only to say which model "
    "architecture and which way of decoding this is about."
)
_LICENCE = "Apache-2.0. Model weights that you load yourself come with their own licence."


def about(engine: Engine, facts: Sequence[tuple[str, str]], limits: Sequence[tuple[str, str]]) -> None:
    """Build the tab's content inside the current Blocks context."""
    config = engine.model.config
    parts = [
        _section("Running now", _table(facts)),
        _section("What the model can do", _limits(config.limits, config.vocabulary)),
        _section("Limits", _table(limits)),
        _section("Versions", _table([(name, _version(name)) for name in _PACKAGES])),
        _section("Your data", f"<p>{escape(_DATA)}</p>"),
        _section("Licence", f"<p>{escape(_LICENCE)}</p>"),
        _section("Independent of Moondream", f"<p>{escape(_NOTICE)}</p>"),
    ]
    gr.HTML(f'<div class="pw-about">{"".join(parts)}</div>', apply_default_css=False, elem_id="about")


_DATA = (
    "Pictures and prompts stay on this machine and in your session; uploaded files are deleted after a day. "
    "The page loads nothing from any other host."
)


def vocabulary_hint(engine: Engine) -> str:
    """What this model understands, in a line; "" when it speaks ordinary language."""
    config = engine.model.config
    if not config.vocabulary:
        return ""
    return f'<p class="pw-hint">{escape(config.limits)} All words it knows are under About.</p>'


def _limits(limits: str, vocabulary: Sequence[str]) -> str:
    words = "".join(f"<code>{escape(word)}</code>" for word in vocabulary)
    known = f'<p>Words it knows:</p><div class="pw-words">{words}</div>' if words else ""
    return f"<p>{escape(limits or 'Ordinary language and photographs.')}</p>{known}"


def _section(title: str, body: str) -> str:
    return f"<section><h3>{escape(title)}</h3>{body}</section>"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f"<dl>{cells}</dl>"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"
