"""The public HTTP endpoint /compare: the Compare tab for programs.

No `from __future__ import annotations` here: Gradio derives the endpoint's schema from these hints.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import gradio as gr

from photon.errors import InvalidRequestError, PhotonError
from photon.ui.comparisons import Comparisons, Rounds, Turn
from photon.ui.endpoints import uploaded_path
from photon.ui.lab_controls import Form, SideValues
from photon.ui.session import Session

log = logging.getLogger(__name__)


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
        a: dict | None = None,
        b: dict | None = None,
    ) -> dict:
        """Run one workload at two settings and compare every metric and token. workload: length, copies,
        arrival, rate, answers, tokens, early, seed, rounds, as in the Compare tab; a, b: depth, copies,
        host_us, commit_us, sync_masks; without them depth 1 and depth 2.
        """
        session = Session()
        turn = Turn(session, session.begin())
        try:
            form = form_of({"path": uploaded_path(image)}, task, prompt, (workload, a, b))
            rounds = await comparisons.measure(turn, form)
            assert rounds is not None, "nobody can stop it but by hanging up, which cancels this task"
            return await asyncio.to_thread(document, rounds)
        except Exception as error:
            raise gr.Error(error_sentence(error), print_exception=False) from None
        finally:
            session.end(turn.number)

    gr.api(compare, api_name="compare", concurrency_limit=None)


def form_of(image: Any, task: str, prompt: str, given: tuple[Any, Any, Any]) -> Form:
    """The form as a program fills it: (workload, a, b), each an object or None.

    Raises:
        InvalidRequestError: one of them is no object, or names a field that does not exist.
    """
    shared, a, b = (_texts(name, value) for name, value in zip(("workload", "a", "b"), given, strict=True))
    try:
        sides = SideValues(**{"depth": 1, **a}), SideValues(**{"depth": 2, **b})
        return Form(image, task, prompt, **shared, a=sides[0], b=sides[1])
    except TypeError as error:
        field = str(error).rpartition(" argument ")[2] or str(error)
        raise InvalidRequestError(
            f"There is no field {field} here; see this endpoint's description."
        ) from None


def _texts(name: str, value: Any) -> dict[str, Any]:
    """As typed: the form reads text; switches stay switches."""
    if not isinstance(value, dict | None):
        raise InvalidRequestError(f"{name} must be an object, as in {{'copies': 8}}.")
    given = (value or {}).items()
    return {str(key): item if isinstance(item, bool) else str(item) for key, item in given}


def error_sentence(error: Exception) -> str:
    """What to tell the caller; the details of anything unexpected go to the log only."""
    if isinstance(error, (PhotonError, ValueError)):
        return str(error)
    log.exception("a comparison failed unexpectedly", exc_info=error)
    return "Something unexpected went wrong; the server's log has the details. Try again."
