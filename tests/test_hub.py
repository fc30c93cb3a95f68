"""Published weights by name: cached ones without a network, others asked for once, then fetched; a local path
touches no network at all.

Against a server of this machine that speaks as much of the hub's protocol as a download needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

FETCH = """
from photon.errors import CheckpointError
from photon.model import hub
try:
    print(hub.fetch_weights(), hub.fetch_tokenizer(), sep="\\n")
except CheckpointError as error:
    print(error)
"""
# An audit hook sees every connection, whichever library makes it.
OPEN_LOCAL = """
import sys
from photon import load_model
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"{event} {args}")
sys.addaudithook(hook)
print(load_model(sys.argv[1]).config.name, "huggingface_hub" in sys.modules)
"""
FILES = {
    "/vikhyatk/moondream2/resolve/2025-06-21/model.safetensors": b"weights" * 1000,
    "/moondream/starmie-v1/resolve/main/tokenizer.json": b"{}",
}


class Hub(BaseHTTPRequestHandler):
    """Answers HEAD and GET of FILES; every other path, or all of them when down, with an error."""

    requests: list[str]
    is_down: bool

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        body = FILES.get(self.path)
        if body is None or self.is_down:
            self.send_error(503 if self.is_down else 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Hub], str]]:
    handler = type("OneHub", (Hub,), {"requests": [], "is_down": False})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield handler, f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def fetch(home: Path, **environment: str) -> tuple[list[str], str]:
    """stdout lines and stderr of a process that fetches both files into an empty or filled cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", FETCH],
        env={**kept, "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def test_a_name_is_downloaded_once_at_its_pinned_release(
    server: tuple[type[Hub], str], tmp_path: Path
) -> None:
    """user_reports 56."""
    hub, url = server
    shown = {"TQDM_POSITION": "-1"}  # as on a terminal
    (weights, tokenizer), progress = fetch(tmp_path, HF_ENDPOINT=url, **shown)
    assert [Path(weights).read_bytes(), Path(tokenizer).read_bytes()] == list(FILES.values())
    assert "model.safetensors" in progress
    hub.requests.clear()
    assert fetch(tmp_path, HF_ENDPOINT=url)[0] == [weights, tokenizer]
    assert hub.requests == [], "what is cached needs no network"
    assert fetch(tmp_path, HF_HUB_OFFLINE="1")[0] == [weights, tokenizer]


def test_offline_by_choice_is_one_sentence(tmp_path: Path) -> None:
    (message,), _ = fetch(tmp_path, HF_HUB_OFFLINE="1")
    assert message.startswith(
        "vikhyatk/moondream2 is not in the Hugging Face cache and HF_HUB_OFFLINE forbids"
    )
    assert message.endswith("unset it, or give a local folder or file with --model.")


def test_no_connection_is_one_sentence_and_no_retry(tmp_path: Path) -> None:
    """user_reports 55."""
    (message,), stderr = fetch(tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert "the hub cannot be reached (" in message
    assert "connect to the internet for the first start, or give a local folder" in message
    assert stderr == ""


def test_the_app_says_it_and_ends(tmp_path: Path) -> None:
    app = Path(__file__).resolve().parents[1] / "app.py"
    done = subprocess.run(
        [sys.executable, str(app), "--model", "moondream2"],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("app.py: vikhyatk/moondream2 is not in the Hugging Face cache and HF_HUB")
    assert done.stderr.count("\n") == 1


def test_a_hub_that_fails_is_asked_once(server: tuple[type[Hub], str], tmp_path: Path) -> None:
    hub, url = server
    hub.is_down = True
    (message,), _ = fetch(tmp_path, HF_ENDPOINT=url)
    assert "the hub refuses it (" in message
    assert [request for request in hub.requests if "/resolve/" in request] == [
        "HEAD /vikhyatk/moondream2/resolve/2025-06-21/model.safetensors"
    ]


def test_a_local_path_opens_no_connection_and_loads_no_hub_library(
    golden: dict[str, Any], golden_dir: Path, tmp_path: Path
) -> None:
    """user_reports 55."""
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(golden_dir / name)
    (tmp_path / "config.json").write_text(json.dumps({**golden["config"], "name": "golden"}))
    command = [sys.executable, "-c", OPEN_LOCAL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["golden", "False"]
