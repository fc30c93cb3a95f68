"""How the page's events are registered, and how their failures are said."""

from __future__ import annotations

import logging
from typing import Any

from photon.errors import InvalidRequestError, PhotonError, QueueFullError

log = logging.getLogger(__name__)

# A page event: hidden from API clients, no spinner over its outputs. preprocess=False because Gradio's own
# image decoding drops alpha, clips 16 bit and knows no limits; photon.images gets the file as uploaded.
PAGE: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private", "preprocess": False}
AT_ONCE: dict[str, Any] = {**PAGE, "queue": False}


def headline(error: Exception) -> str:
    """What became of a run that ended so."""
    if isinstance(error, QueueFullError):
        return "Busy, try again"
    return "Not run" if isinstance(error, InvalidRequestError) else "Failed"


def sentence(error: Exception) -> str:
    """What to tell the person; the details of anything unexpected go to the log only."""
    if isinstance(error, PhotonError):
        return str(error)
    log.exception("a run failed unexpectedly", exc_info=error)
    return "Something unexpected went wrong with this run; the server's log has the details. Try again."
