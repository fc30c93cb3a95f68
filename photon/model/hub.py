"""The published weights by name: from the Hugging Face cache, else downloaded there once, with progress.

What is cached is never asked for again. What is not is asked for once, briefly and without retries, before
a download begins, so that a machine without internet learns so in seconds. `HF_HOME`, `HF_HUB_OFFLINE`
and the other variables of huggingface_hub mean what they always mean; it is imported only here.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from photon.errors import CheckpointError

REPO = "vikhyatk/moondream2"
REVISION = "2025-06-21"
"""The tag of the release whose prompts and tokenizer this engine knows (engine_facts 1.1)."""
TOKENIZER_REPO = "moondream/starmie-v1"
NAMES = ("moondream2", REPO)

_ANSWER_S = 8.0
_REMEDY = "give a local folder or file with --model"


def is_name(path: str | Path) -> bool:
    """Whether this means the published weights. A folder or file of that name comes first."""
    return str(path) in NAMES and not Path(path).exists()


def fetch_weights() -> Path:
    """model.safetensors of the pinned release; blocks while it downloads (3.9 GB).

    Raises:
        CheckpointError: it is not cached and cannot be had, within 10 seconds; or the download broke off.
    """
    return _fetch(REPO, "model.safetensors", REVISION)


def fetch_tokenizer() -> Path:
    """tokenizer.json that belongs to the release; it lies in a repository without tags. Raises as above."""
    return _fetch(TOKENIZER_REPO, "tokenizer.json", None)


def _fetch(repo: str, file: str, revision: str | None) -> Path:
    import huggingface_hub

    # Not hf_hub_download with local_files_only, which goes online for a list of its own.
    cached = huggingface_hub.try_to_load_from_cache(repo, file, revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    _ask(huggingface_hub.hf_hub_url(repo, file, revision=revision), repo)
    try:
        return Path(huggingface_hub.hf_hub_download(repo, file, revision=revision))
    except Exception as error:  # what comes out depends on the HTTP library below
        raise CheckpointError(
            f"The download of {repo} broke off ({_reason(error)}); start again to continue it."
        ) from error


def _ask(url: str, repo: str) -> None:
    """Whether the file is there to be had. On a thread, because a name server may not answer for minutes."""
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put(huggingface_hub.get_hf_file_metadata(url, timeout=_ANSWER_S / 2))
        except Exception as error:
            answer.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        error = answer.get(timeout=_ANSWER_S)
    except queue.Empty:
        error = TimeoutError("no answer")
    missing = f"{repo} is not in the Hugging Face cache"
    if isinstance(error, OfflineModeIsEnabled):
        raise CheckpointError(f"{missing} and HF_HUB_OFFLINE forbids a download; unset it, or {_REMEDY}.")
    if isinstance(error, HfHubHTTPError):
        raise CheckpointError(f"{missing} and the hub refuses it ({_reason(error)}); {_REMEDY}.") from error
    if isinstance(error, Exception):
        raise CheckpointError(
            f"{missing} and the hub cannot be reached ({_reason(error)}); connect to the internet for the "
            f"first start, or {_REMEDY}."
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of a message, without its end mark."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")
