"""Results on disk, by the picture's content and all that was asked: what an interrupted batch goes on from.

home/            a temporary folder of this process, removed with it
  <token>/       one browser; the token is the browser's own and is a secret of it
    <key>.json   one result
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from photon.errors import ImageError
from photon.ui.files import one_sentence

MAX_BROWSERS = 100
MAX_RESULTS = 20_000
_TOKEN = re.compile(r"[0-9a-f]{32}")


class Home:
    """The kept results of every browser; gone when this object is, or the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="photon-batches-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def of(self, token: Any) -> Kept:
        """The results of the browser with this token; of nobody when it is no token. Blocks."""
        name = valid(token)
        _trim(self.path, MAX_BROWSERS)
        kept = Kept(self.path / name)
        _trim(kept.folder, MAX_RESULTS)
        return kept


def valid(token: Any) -> str:
    """The token, or a new one for anything else that a browser may send."""
    is_valid = isinstance(token, str) and _TOKEN.fullmatch(token)
    return token if is_valid else secrets.token_hex(16)


def _trim(folder: Path, max_entries: int) -> None:
    """Remove the oldest entries beyond the limit; others may do the same meanwhile."""
    if not folder.is_dir() or len(entries := list(folder.iterdir())) <= max_entries:
        return

    def age(path: Path) -> float:
        return path.stat().st_mtime if path.exists() else 0.0

    for path in sorted(entries, key=age)[: len(entries) - max_entries]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Kept:
    """The results of one browser. Methods block; threads may share them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def key(self, path: str, asked: Mapping[str, Any]) -> str:
        """Of a picture's bytes and of what is asked about it. Raises ImageError for a file that is gone."""
        digest = hashlib.blake2b(json.dumps(asked, sort_keys=True, default=str).encode(), digest_size=20)
        try:
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            raise ImageError(f"The file cannot be read ({error.strerror}); add it again.") from error
        return digest.hexdigest()

    def get(self, key: str) -> dict[str, Any] | None:
        """The result; None where there is none, or a damaged one."""
        try:
            return json.loads((self.folder / f"{key}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Keep it, whole or not at all. Raises SaveError."""
        part = self.folder / f"{key}.{secrets.token_hex(4)}.part"
        with one_sentence("The results cannot be kept on the server ({}); a stopped batch will start again."):
            self.folder.mkdir(exist_ok=True)
            try:
                part.write_text(json.dumps(result), encoding="utf-8")
                os.replace(part, self.folder / f"{key}.json")
            except OSError:
                part.unlink(missing_ok=True)
                raise
