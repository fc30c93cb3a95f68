"""The public HTTP endpoint /compare: the Compare tab for programs.

No `from __future__ import annotations` here: Gradio derives the endpoint's schema from these hints.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import gradio as gr

from photon.errors import InvalidRequestError
from photon.ui.comparisons import Comparisons, Rounds, Turn
from photon.ui.endpoints import uploaded_path
from photon.ui.events import sentence
from photon.ui.lab_controls import Form, SideValues
from photon.ui.session import Session


def compare_endpoint(comparisons: Comparisons, document: Callable[[Rounds], dict[str, Any]]) -> None:
    """Register the endpoint in the current Blocks context.

    Args:
        document: A and B of every round -> plain JSON values; called on a worker thread.
    """

    async def compare(
        image: gr.FileData,
        task: str = "detect",
        prompt: str = "",
        workload: dict | None = None,
        sides: dict | None = None,
    ) -> dict:
        """Run one workload at two settings and compare every metric and token. workload: length, copies,
        arrival, rate, answers, tokens, early, seed, rounds, as in the Compare tab. sides: {"a": {...},
        "b": {...}} with depth, copies, host_us, commit_us, sync_masks; without them depth 1 and depth 2.
        """
        session = Session()
        turn = Turn(session, session.begin())
        try:
            form = form_of({"path": uploaded_path(image)}, task, prompt, workload, sides)
            rounds = await comparisons.measure(turn, form)
            assert rounds is not None, "nobody can stop it but by hanging up, which cancels this task"
            return await asyncio.to_thread(document, rounds)
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from None
        finally:
            session.end(turn.number)

    gr.api(compare, api_name="compare", concurrency_limit=None)


def form_of(image: Any, task: str, prompt: str, workload: Any, sides: Any) -> Form:
    """The form as a program fills it; `workload` and `sides` are objects or None.

    Raises:
        InvalidRequestError: one of them is no object, or names a field that does not exist.
    """
    both = _object("sides", sides)
    if unknown := both.keys() - {"a", "b"}:
        raise InvalidRequestError(f"There is no side {min(unknown)!r}; the two are 'a' and 'b'.")
    try:
        a = SideValues(**{"depth": "1", **_texts("a", both.get("a"))})
        b = SideValues(**{"depth": "2", **_texts("b", both.get("b"))})
        return Form(image, task, prompt, **_texts("workload", workload), a=a, b=b)
    except TypeError as error:
        field = str(error).rpartition(" argument ")[2] or str(error)
        raise InvalidRequestError(
            f"There is no field {field} here; see this endpoint's description."
        ) from None


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise InvalidRequestError(f"{name} must be an object, as in {{'copies': 8}}.")
    return {str(key): item for key, item in (value or {}).items()}


def _texts(name: str, value: Any) -> dict[str, Any]:
    """As typed: the form reads text; switches stay switches."""
    given = _object(name, value).items()
    return {key: item if isinstance(item, bool) else str(item) for key, item in given}


def error_sentence(error: Exception) -> str:
    """As `sentence`; a ValueError is the view's word on traces that it cannot hold."""
    return str(error) if isinstance(error, ValueError) else sentence(error)
