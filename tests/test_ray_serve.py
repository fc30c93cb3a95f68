"""Pins many engines behind one address, on a Ray of its own: two replicas of the embedded model, as the
command starts them. Which replica answers whom, streams, who hangs up, a replica that is killed, the end.

Ray is large and an extra: without it these tests skip themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import data_url, png, wait_until

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install -e '.[ray]'"),
    # Ray's own use of pydantic, when it is imported.
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning"),
]

ROOT = Path(__file__).resolve().parents[1]
KEY = "open sesame"
QUESTION = "how many circles are there?"
LONG = {"temperature": 10, "max_tokens": 400}
"""So hot that the answer is noise, which ends where it must: a second of work."""


class Cluster:
    """The command in a process of its own, and a client of it. All of its processes know `folder`."""

    def __init__(self, folder: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.folder, self.log = folder, Path(folder, "log")
        env = {
            "RAY_TMPDIR": folder,
            "HOME": folder,  # where Ray keeps the token of its own ports
            "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's word for: loopback only
        }
        command = [sys.executable, "-m", "photon.api.ray_serve", "--replicas", "2", "--port", str(port)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--api-key", KEY], env=os.environ | env, cwd=ROOT, stdout=log, stderr=log
            )
        headers = {"Authorization": f"Bearer {KEY}"}
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, trust_env=False
        )

    def wait(self) -> None:
        """Until the replicas answer, or the command gave up."""
        wait_until(lambda: "2 replicas at" in self.log.read_text() or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.log.read_text()

    def ask(self, seed: int, **more: Any) -> httpx.Response:
        """A question about picture number `seed`."""
        body = {"question": QUESTION, "image_url": data_url(png(seed)), **more}
        return self.http.post("/v1/query", json=body)

    def count(self, series: str) -> dict[str, float]:
        """A series of /metrics, by replica."""
        text = self.http.get("/metrics").text
        found = re.findall(rf'^{series}{{.*replica="(\w+)".*}} (\S+)$', text, re.MULTILINE)
        return {replica: float(value) for replica, value in found}

    def processes(self) -> set[int]:
        """Of the command and of all that came of it and lives."""
        return {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self._owns(path)}

    def _owns(self, path: Path) -> bool:
        try:
            return f"RAY_TMPDIR={self.folder}\0".encode() in path.read_bytes()
        except OSError:  # it has ended
            return False

    def process_of(self, replica: str) -> int:
        """The one that writes the replica's log."""
        for pid in self.processes():
            for file in Path(f"/proc/{pid}/fd").iterdir():
                if file.readlink().name.endswith(f"_{replica}.log"):
                    return pid
        raise AssertionError(f"no process has the log of {replica} open")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        running = Cluster(folder)
        try:
            running.wait()
            yield running
        finally:
            running.http.close()
            for pid in running.processes():
                os.kill(pid, signal.SIGKILL)
            running.process.wait()


def replica(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.headers["X-Photon-Replica"]


def pictures(cluster: Cluster) -> dict[str, int]:
    """One picture's number for each replica."""
    found: dict[str, int] = {}
    for seed in range(100):
        found.setdefault(replica(cluster.ask(seed)), seed)
        if len(found) == 2:
            break
    return found


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n") if line]


def text(stream: list[dict[str, Any]]) -> str:
    assert stream[-1]["completed"], stream[-1]
    return "".join(event["chunk"] for event in stream)


def sentence(error: dict[str, Any]) -> str:
    assert error["message"].endswith(".")
    assert len(error["message"]) < 300
    return f"{error['code']}: {error['message']}"


# ---- who answers


def test_both_replicas_answer_and_an_image_stays_with_the_one_that_knows_it(cluster: Cluster) -> None:
    found = pictures(cluster)
    assert len(found) == 2
    for name, seed in found.items():
        again = cluster.ask(seed, question="is there a star?")
        assert replica(again) == name
        assert again.json()["metrics"]["cached_tokens"] > 0
        image = {"type": "image_url", "image_url": {"url": data_url(png(seed))}}
        parts = [{"type": "text", "text": QUESTION}, image]
        body = {"messages": [{"role": "user", "content": parts}]}
        chat = cluster.http.post("/v1/chat/completions", json=body)
        assert replica(chat) == name
        assert chat.json()["choices"][0]["message"]["content"] == cluster.ask(seed).json()["answer"]


def test_a_stream_comes_through(cluster: Cluster) -> None:
    whole = cluster.ask(1, settings=LONG | {"seed": 1}).json()
    streamed = cluster.ask(1, settings=LONG | {"seed": 1}, stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *chunks, last = events(streamed)
    assert len(chunks) > 2
    assert text([*chunks, last]) == whole["answer"]
    assert last["finish_reason"] == whole["finish_reason"]


def test_who_hangs_up_takes_the_request_along(cluster: Cluster) -> None:
    cancelled = r'photon_api_requests_total{outcome="cancelled",.* [1-8]\.0$'

    def hang_up(seed: int) -> None:
        body = {"question": QUESTION, "image_url": data_url(png()), "stream": True}
        settings = LONG | {"seed": seed}
        with cluster.http.stream("POST", "/v1/query", json=body | {"settings": settings}) as response:
            next(response.iter_bytes())

    with ThreadPoolExecutor(8) as people:  # in company each takes longer
        list(people.map(hang_up, range(8)))
    wait_until(lambda: re.search(cancelled, cluster.http.get("/metrics").text, re.MULTILINE) is not None)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "invalid_request: The field 'question' is missing"),
        ({"question": "?", "image_url": "data:image/png;base64,AAAA"}, 400, "invalid_image: .*not an image"),
        ({"question": "?", "model": "gpt"}, 404, "not_found: There is no model 'gpt'"),
    ],
)
def test_an_error_is_one_sentence(cluster: Cluster, body: dict[str, Any], status: int, words: str) -> None:
    response = cluster.http.post("/v1/query", json=body)
    assert response.status_code == status
    assert re.match(words, sentence(response.json()["error"]))


def test_the_front_asks_for_the_key(cluster: Cluster) -> None:
    response = cluster.http.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert response.status_code == 401
    assert sentence(response.json()["error"]).startswith("unauthorized")


def test_figures_come_by_replica_and_health_from_any(cluster: Cluster) -> None:
    assert list(cluster.count("photon_engine_up").values()) == [1, 1]
    assert sum(cluster.count("photon_tokens_total").values()) > 0
    assert cluster.http.get("/healthz").json() == {"status": "ok"}


# ---- who is killed


def test_a_killed_replica_is_told_to_its_people_and_the_rest_carry_on(cluster: Cluster) -> None:
    (killed, its), (_, others) = pictures(cluster).items()
    pid = cluster.process_of(killed)

    def stream(seed: int, picture: int) -> list[dict[str, Any]]:
        return events(cluster.ask(picture, settings=LONG | {"seed": seed}, stream=True))

    wanted = stream(1, others)
    with ThreadPoolExecutor(10) as people:
        streams = [people.submit(stream, seed, its) for seed in range(8)]
        whole = people.submit(cluster.ask, its, settings=LONG)
        unharmed = people.submit(stream, 1, others)
        wait_until(lambda: cluster.count("photon_rows_live").get(killed, 0) > 0)
        os.kill(pid, signal.SIGKILL)
        ends = [future.result()[-1] for future in streams]
        assert text(unharmed.result()) == text(wanted)
    told = [end for end in ends if "error" in end]
    assert told
    assert all("error" in end or end["completed"] for end in ends)  # one that had not begun is a plain 503
    assert {sentence(end["error"]) for end in told} == {
        "engine_dead: The replica that worked on this request has ended; ask again."
    }
    assert whole.result().status_code in (200, 503)
    assert replica(cluster.ask(others))
    wait_until(lambda: cluster.ask(its).status_code == 200, 60)
    assert replica(cluster.ask(its)) != killed
    wait_until(lambda: len(cluster.count("photon_engine_up").keys() - {killed}) == 2, 60)


# ---- the end


def test_interrupted_it_leaves_no_process_behind(cluster: Cluster) -> None:
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(150) == 0, cluster.log.read_text()
    wait_until(lambda: not cluster.processes(), 30)


# ---- without a cluster


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replicas", "0"], "--replicas is '0': .* greater than or equal to 1"),
        (["--replicas", "two"], "--replicas is 'two': .*integer"),
        (["--model", "/nowhere"], "no nowhere in /"),
        (["--device", "tpu"], "--device is 'tpu'"),
        (["--api-key", "@/nowhere"], "key file /nowhere cannot be read"),
        (["--port", "0", "--address", "127.0.0.1:1"], "No Ray answers at 127.0.0.1:1"),
    ],
)
def test_a_bad_flag_is_one_sentence(capsys: pytest.CaptureFixture[str], flags: list[str], words: str) -> None:
    assert importlib.import_module("photon.api.ray_serve").main(flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"photon.api.ray_serve: .*{words}", line)
    assert line.endswith(".")


def test_a_busy_port_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert importlib.import_module("photon.api.ray_serve").main(["--port", port]) == 2
    assert re.search(rf"Port {port} is busy", capsys.readouterr().err)
