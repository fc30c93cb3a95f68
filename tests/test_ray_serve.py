"""Pins many engines behind one address, on a Ray of its own: two replicas of the embedded model, as the
command starts them. Which replica answers whom, streams, who hangs up, a replica that is killed, the end.

Ray is large and an extra: without it these tests skip themselves.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from clusters import QUESTION, Cluster, running
from served import data_url, png, wait_until
from starlette.responses import StreamingResponse

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install -e '.[ray]'"),
    # Ray's own use of pydantic, when it is imported.
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning"),
]

LONG = {"temperature": 10, "max_tokens": 400}
"""So hot that the answer is noise, which ends where it must: a second of work."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running("--page", "none") as started:
        yield started


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


def test_without_a_page_there_are_the_routes_for_programs_alone(cluster: Cluster) -> None:
    response = cluster.http.get("/")
    assert response.status_code == 404
    assert sentence(response.json()["error"])


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
    assert cluster.process.wait(60) == 0, cluster.log.read_text()
    wait_until(lambda: not cluster.processes(), 30)


# ---- without a cluster


def test_an_app_is_told_that_its_client_has_left() -> None:
    exchange = importlib.import_module("photon.api.relay").Exchange("replica", {"type": "http.request"})
    has_ended = False

    async def endless() -> AsyncIterator[bytes]:
        nonlocal has_ended
        try:
            while True:
                yield b"more"
                await asyncio.sleep(0)
        finally:
            has_ended = True

    async def watch() -> None:
        scope = {"type": "http", "asgi": {"spec_version": "2.3"}}
        answer = asyncio.create_task(StreamingResponse(endless())(scope, exchange.receive, exchange.send))
        assert await exchange.messages.get()
        assert (await exchange.messages.get())["body"] == b"more"
        exchange.leave()
        await asyncio.wait_for(answer, 20)

    asyncio.run(watch())
    assert has_ended


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--replicas", "0"], "--replicas is '0': .* greater than or equal to 1"),
        (["--replicas", "two"], "--replicas is 'two': .*integer"),
        (["--model", "/nowhere"], "no nowhere in /"),
        (["--device", "tpu"], "--device is 'tpu'"),
        (["--page", "nowhere:Page"], "page nowhere:Page cannot be imported .*No module named 'nowhere'"),
        (["--page", "app:Nothing"], "page app:Nothing cannot be imported .*'Nothing'"),
        (["--page", "app"], "page app cannot be imported .*no class"),
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
