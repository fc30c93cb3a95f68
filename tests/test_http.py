"""Pins the Moondream routes on a real socket: the official client, plain HTTP, limits, and who is cancelled.

The official client is tested where it is installed. It needs nothing but Pillow to talk to a server, but
requires another inference engine with its GPU kernels: `pip install --no-deps moondream` leaves that out.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import engines
import httpx
import pytest
from served import Server, data_url, picture, png, serving, serving_model, wait_until
from starlette.applications import Starlette
from starlette.testclient import TestClient

from photon import Engine, EngineConfig
from photon.api import ApiConfig, Meter, routes
from photon.device.deferred import DeferredDevice
from photon.model.weights import Model

SHORT = {"max_tokens": 12}
IMAGE = data_url(png())


@pytest.fixture(scope="module")
def server(golden_model: Model) -> Iterator[Server]:
    """A model that never ends by itself: 768 tokens and more, seconds of work."""
    with serving_model(golden_model) as running:
        yield running


@pytest.fixture
def idle() -> Iterator[Server]:
    """An engine that takes requests and does nothing about them until it is told to."""
    meter = Meter()
    device = DeferredDevice(0)
    config = EngineConfig(max_waiting=2)
    with (
        Engine(engines.tiny_model(), device, config, observers=[meter], threaded=False) as engine,
        serving(engine, meter, max_open=4, max_image_bytes=2**20, max_open_bytes=3 * 2**20 - 2) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def quick() -> Iterator[Server]:
    """A minuscule model: answers in milliseconds."""
    meter = Meter()
    with (
        Engine(engines.tiny_model(), DeferredDevice(0), observers=[meter]) as engine,
        serving(engine, meter) as running,
    ):
        yield running


@pytest.fixture
def client(server: Server) -> Any:
    """The official client."""
    moondream = pytest.importorskip("moondream", reason="pip install --no-deps moondream")
    return moondream.vl(endpoint=f"{server.url}/v1")


def sent(client: Any) -> bytes:
    """The picture as the client encodes it."""
    return base64.b64decode(client.encode_image(picture()).image_url.partition(",")[2])


def sentence(response: httpx.Response) -> str:
    """The message of an error, which has one sentence and no path of this machine."""
    error = response.json()["error"]
    assert error["message"].endswith(".")
    assert len(error["message"]) < 300
    assert "Traceback" not in error["message"]
    assert "/tmp" not in error["message"]
    return f"{error['code']}: {error['message']}"


# ---- the official client


def test_the_official_client_asks_and_streams(server: Server, client: Any) -> None:
    image = sent(client)
    wanted = server.engine.query(image, "what is it?", settings=SHORT)["answer"]
    assert client.query(picture(), "what is it?", settings=SHORT) == {"answer": wanted}
    pieces = list(client.query(picture(), "what is it?", settings=SHORT, stream=True)["answer"])
    assert "".join(pieces) == wanted


@pytest.mark.parametrize("length", ["short", "normal", "long"])
def test_the_official_client_captions_and_streams(server: Server, client: Any, length: str) -> None:
    image = sent(client)
    wanted = server.engine.caption(image, length, settings=SHORT)["caption"]
    assert client.caption(picture(), length, settings=SHORT) == {"caption": wanted}
    assert "".join(client.caption(picture(), length, stream=True, settings=SHORT)["caption"]) == wanted


def test_the_official_client_points_and_detects(server: Server, client: Any) -> None:
    image, few = sent(client), {"max_objects": 3}
    for task, key in (("point", "points"), ("detect", "objects")):
        wanted = getattr(server.engine, task)(image, "dog", settings=few)[key]
        found = getattr(client, task)(picture(), "dog", settings=few)[key]
        assert found == [{name: min(1, max(0, value)) for name, value in place.items()} for place in wanted]


def test_the_official_client_sends_spatial_references(server: Server, client: Any) -> None:
    image, refs = sent(client), [[0.25, 0.75], [0.1, 0.2, 0.6, 0.9]]
    wanted = server.engine.query(image, "where?", spatial_refs=refs, settings=SHORT)["answer"]
    assert client.query(picture(), "where?", spatial_refs=refs, settings=SHORT)["answer"] == wanted


def test_the_official_client_reads_the_reasoning(server: Server, client: Any) -> None:
    image = sent(client)
    wanted = server.engine.query(image, "why?", reasoning=True, settings=SHORT)
    found = client.query(picture(), "why?", reasoning=True, settings=SHORT)
    grounding = json.loads(json.dumps(wanted["reasoning"]))  # pairs of numbers are lists in JSON
    assert found == {"answer": wanted["answer"], "reasoning": grounding}


def test_the_official_client_asks_without_an_image_and_chats(server: Server, client: Any) -> None:
    wanted = server.engine.query(None, "what?", settings=SHORT)
    assert client.query(question="what?", settings=SHORT)["answer"] == wanted["answer"]
    client.model = server.engine.model.config.name
    messages = [{"role": "user", "content": "what?"}]
    found = client.chat(messages, settings=SHORT)
    assert found["message"]["content"] == wanted["answer"]
    assert found["finish_reason"] == "length"
    assert "".join(client.chat(messages, stream=True, settings=SHORT)["message"]) == wanted["answer"]


# ---- plain HTTP


def test_a_stream_is_lines_of_chunks_and_one_that_is_completed(server: Server) -> None:
    response = server.ask("caption", image_url=IMAGE, stream=True, settings=SHORT)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(set(chunk) == {"chunk", "completed"} and not chunk["completed"] for chunk in chunks)
    assert last["completed"]
    assert (last["chunk"], last["finish_reason"]) == ("", "length")
    assert last["metrics"]["output_tokens"] == 12


def test_an_answer_says_how_it_ended_and_what_it_took(server: Server) -> None:
    body = server.ask("query", image_url=IMAGE, question="why", settings=SHORT).json()
    assert body["finish_reason"] == "length"
    assert body["metrics"]["output_tokens"] == 12
    assert 0 < body["metrics"]["prefill_time_ms"] <= body["metrics"]["ttft_ms"]


def test_settings_may_come_as_text(quick: Server) -> None:
    """user_reports 23."""
    as_text, as_numbers = {"temperature": "0.7", "seed": "3"}, {"temperature": 0.7, "seed": 3}
    answers = [quick.ask("query", question="why", settings=s).json()["answer"] for s in (as_text, as_numbers)]
    assert answers[0] == answers[1]


def test_sixty_four_at_once_get_their_own_answers(quick: Server) -> None:
    def settings(seed: int) -> dict[str, float]:
        return {"max_tokens": 6, "temperature": 1, "seed": seed}

    def ask(seed: int) -> str:
        body = quick.ask("query", image_url=IMAGE, question="?", settings=settings(seed)).json()
        return body["answer"]

    with ThreadPoolExecutor(64) as people:
        answers = list(people.map(ask, range(64)))
    assert answers == [
        quick.engine.query(png(), "?", settings=settings(seed))["answer"] for seed in range(64)
    ]
    assert len(set(answers)) > 8


@pytest.mark.parametrize(
    ("task", "body", "words"),
    [
        ("query", {}, "'question' is missing"),
        ("query", {"question": 5}, "'question' is wrong.*string"),
        ("query", {"question": " "}, "prompt is empty"),
        ("query", {"question": "x", "answer": "y"}, "'answer' is not supported"),
        ("query", {"question": "x", "settings": [1]}, "'settings' is wrong"),
        ("query", {"question": "x", "settings": {"warmth": 1}}, "no setting 'warmth'"),
        ("query", {"question": "x", "settings": {"temperature": "hot"}}, "temperature"),
        ("query", {"question": "x", "settings": {"max_tokens": 0}}, "max_tokens"),
        (
            "query",
            {"question": "x", "model": "moondream3-preview"},
            "not_found: .*model 'moondream3-preview'",
        ),
        ("query", {"question": "x", "spatial_refs": [[0.5, 0.5]]}, "spatial_refs"),
        ("query", {"question": "x", "image_url": IMAGE, "spatial_refs": [[0.5]]}, "2 or 4 numbers"),
        ("query", {"question": "x", "image_url": IMAGE, "spatial_refs": [[0.5, "a"]]}, "spatial_refs"),
        ("query", {"question": "word " * 3000}, "shorten"),
        ("query", {"question": "x" * 2**20}, "1048576 characters.*shorten"),
        ("caption", {}, "'image_url' is missing"),
        ("caption", {"image_url": None}, "'image_url' is wrong"),
        ("caption", {"image_url": IMAGE, "length": "endless"}, "endless"),
        ("caption", {"image_url": "http://127.0.0.1:9/cat.jpg"}, "Web addresses are not fetched"),
        ("caption", {"image_url": "file:///etc/passwd"}, "Web addresses are not fetched"),
        ("caption", {"image_url": "/etc/passwd"}, "Web addresses are not fetched"),
        ("caption", {"image_url": "data:image/png,abc"}, "no base64"),
        ("caption", {"image_url": "data:image/png;base64,a!b"}, "base64 is broken"),
        ("caption", {"image_url": "data:image/png;base64,"}, "not an image"),
        ("caption", {"image_url": data_url(b"no image")}, "invalid_image: .*not an image"),
        ("caption", {"image_url": data_url(png()[:200])}, "damaged"),
        ("point", {"image_url": IMAGE, "object": ""}, "prompt is empty"),
        ("point", {"image_url": IMAGE, "object": "x", "spatial_refs": [[0.5]]}, "2 or 4 numbers"),
        ("point", {"image_url": IMAGE, "object": "x", "stream": True}, "does not stream"),
        ("detect", {"image_url": IMAGE, "object": ["a"]}, "'object' is wrong"),
        ("detect", {"image_url": IMAGE, "object": "x", "settings": {"max_objects": 10**9}}, "max_objects"),
        ("segment", {"image_url": IMAGE, "object": "x"}, "not_found: There is no POST /v1/segment"),
    ],
)
def test_a_bad_request_is_refused_in_one_sentence(
    server: Server, task: str, body: dict[str, Any], words: str
) -> None:
    steps = server.engine.stats()["steps"]
    response = server.ask(task, **body)
    assert response.status_code == (404 if "not_found" in words else 400)
    assert re.search(words, sentence(response)), sentence(response)
    assert server.engine.stats()["steps"] == steps


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (b"{", "application/json", "not valid JSON"),
        (b"", "application/json", "body must be a JSON object|body is missing"),
        (b"[1]", "application/json", "JSON object"),
        (b"\xff\xfe", "application/json", "pars|JSON"),
        (b"[" * 100_000, "application/json", "pars|JSON"),
        (b'{"question": "x"}', "text/plain", "Content-Type: application/json"),
        (b'{"question": "x", "settings": {"temperature": NaN}}', "application/json", "temperature"),
        (b'{"question": "x", "settings": {"seed": 1e999}}', "application/json", "seed"),
    ],
)
def test_a_body_that_is_no_request_is_refused_in_one_sentence(
    server: Server, text: bytes, kind: str, words: str
) -> None:
    response = server.http.post("/v1/query", content=text, headers={"Content-Type": kind})
    assert response.status_code == 400
    assert re.search(words, sentence(response)), sentence(response)


def test_a_get_of_a_task_is_refused(server: Server) -> None:
    response = server.http.get("/v1/query")
    assert response.status_code == 405
    assert "no GET /v1/query" in sentence(response)


# ---- limits


def test_an_image_above_the_limit_is_refused(idle: Server) -> None:
    response = idle.ask("caption", image_url=data_url(bytes(2**20 + 3)))
    assert response.status_code == 400
    assert "larger than 1 MB" in sentence(response)


@pytest.mark.parametrize("has_length", [True, False])
def test_a_huge_body_is_refused(idle: Server, has_length: bool) -> None:
    body = b'{"question": "' + b"x" * 2**22 + b'"}'
    content = body if has_length else iter([body[: 2**21], body[2**21 :]])
    response = idle.http.post("/v1/query", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert "too_large" in sentence(response)


@pytest.mark.parametrize("has_length", [True, False])
def test_bodies_too_large_together_are_told_to_come_back(idle: Server, has_length: bool) -> None:
    body = b" " * 2**20
    head = "POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", idle.port)) as slow:
        slow.sendall(f"{head}Content-Length: {2**21}\r\n\r\n".encode() + b" " * (2**21 - 1))

        def ask() -> httpx.Response:
            content = body if has_length else iter([body])
            return idle.http.post("/v1/query", content=content, headers={"Content-Type": "application/json"})

        wait_until(lambda: ask().status_code == 429)
        assert "too large together" in sentence(ask())
    wait_until(lambda: ask().status_code == 400)


def test_one_request_too_many_is_told_to_come_back(idle: Server) -> None:
    """user_reports 48."""
    with ThreadPoolExecutor(3) as people:
        waiting = [people.submit(idle.ask, "query", question="?", settings=SHORT) for _ in range(2)]
        wait_until(lambda: idle.engine.stats()["waiting"] + pending(idle.engine) == 2)
        refused = idle.ask("query", question="?")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert "busy: 2 requests are waiting" in sentence(refused)
        idle.engine.run_until_idle()
        assert [future.result().status_code for future in waiting] == [200, 200]


def pending(engine: Engine) -> int:
    """Requests handed over to an engine that has not looked yet."""
    return engine._worker.num_pending


def test_more_open_connections_than_allowed_are_told_to_come_back(idle: Server) -> None:
    head = (
        b"POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    slow = [socket.create_connection(("127.0.0.1", idle.port)) for _ in range(4)]
    try:
        for connection in slow:
            connection.sendall(head)  # and never a body
        wait_until(lambda: idle.ask("query", question="").status_code == 429)
        assert "busy: 4 requests are open" in sentence(idle.ask("query", question=""))
    finally:
        for connection in slow:
            connection.close()
    wait_until(lambda: idle.ask("query", question="").status_code == 400)


def test_a_key_is_needed_where_one_was_set_and_is_never_shown() -> None:
    meter = Meter()
    device = DeferredDevice(0)
    with (
        Engine(engines.tiny_model(), device, observers=[meter], threaded=False) as engine,
        serving(engine, meter, api_key="open sesame") as running,
    ):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Moondream-Auth": "\xf6"}):
            raw = {name: value.encode() for name, value in headers.items()}
            response = running.http.post("/v1/query", json={"question": ""}, headers=raw)
            assert response.status_code == 401
            assert "sesame" not in sentence(response)
        for headers in ({"Authorization": "Bearer open sesame"}, {"X-Moondream-Auth": "open sesame"}):
            response = running.http.post("/v1/query", json={"question": ""}, headers=headers)
            assert response.status_code == 400
        assert running.http.get("/v1/models").status_code == 401
        assert [running.http.get(path).status_code for path in ("/v1/docs", "/healthz", "/metrics")] == [
            200
        ] * 3


# ---- who hangs up


def hang_up(server: Server, body: dict[str, Any]) -> None:
    """Send a request, wait until the engine runs it, and close the connection without a word."""
    text = json.dumps(body).encode()
    head = "POST /v1/query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
    wait_until(lambda: server.engine.stats()["resident"] > 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_dropped_connection_ends_its_request_and_no_other(server: Server, stream: bool) -> None:
    """user_reports 46."""
    cancelled = 'photon_api_requests_total{outcome="cancelled",task="query"}'
    before = server.count(cancelled)
    with ThreadPoolExecutor(1) as other:
        hang_up(server, {"question": "go on", "image_url": IMAGE, "stream": stream})
        neighbour = other.submit(server.ask, "query", question="?", settings=SHORT)
        wait_until(lambda: server.count(cancelled) == before + 1)
        assert neighbour.result().json()["finish_reason"] == "length"
    wait_until(lambda: server.engine.stats()["resident"] == 0)


def test_who_hangs_up_while_the_request_waits_leaves_the_queue(idle: Server) -> None:
    with pytest.raises(httpx.ReadTimeout):
        idle.http.post("/v1/query", json={"question": "?"}, timeout=0.2)
    wait_until(lambda: idle.count('photon_api_requests_total{outcome="cancelled",task="query"}') == 1)
    idle.engine.run_until_idle()
    assert idle.engine.stats()["steps"] == 0


# ---- failures


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_fails_in_the_engine_says_so_and_the_next_is_answered(stream: bool) -> None:
    meter, device = Meter(), engines.FlakyDevice("decode", 1)
    with (
        Engine(engines.tiny_model(), device, observers=[meter]) as engine,
        serving(engine, meter) as running,
    ):
        failed = running.ask("query", question="go on", stream=stream)
        text = failed.text.strip().splitlines()[-1].removeprefix("data: ")
        assert failed.status_code == (200 if stream else 500)
        assert json.loads(text)["error"]["code"] == "request_failed"
        assert running.count('photon_api_requests_total{outcome="failed",task="query"}') == 1
        assert running.ask("query", question="go on", settings=SHORT).status_code == 200


# ---- the rest


def test_the_one_model_is_listed(server: Server) -> None:
    name = server.engine.model.config.name
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["id"] == name
    assert server.http.get(f"/v1/models/{name}").json() == model
    assert server.http.get("/v1/models/gpt").status_code == 404
    assert server.ask("query", question="?", model=name, settings=SHORT).status_code == 200


def test_the_openapi_document_and_its_page_name_every_route(server: Server) -> None:
    document = server.http.get("/v1/openapi.json").json()
    tasks = {"/v1/query", "/v1/caption", "/v1/point", "/v1/detect", "/v1/chat/completions"}
    assert tasks < set(document["paths"])
    page = server.http.get("/v1/docs").text
    assert all(f"POST {path}<" in page for path in tasks)
    assert "http://" not in page
    assert "https://" not in page


@pytest.mark.parametrize("prefix", ["", "/vlm"])
def test_a_proxy_may_strip_its_path_or_not(quick: Server, prefix: str) -> None:
    """user_reports 61."""
    app = Starlette(routes=routes(quick.engine, Meter(), ApiConfig(lambda: 0)))

    async def behind_a_proxy(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": "/vlm"}, receive, send)

    with TestClient(behind_a_proxy) as client:
        assert client.get(f"{prefix}/v1/models").status_code == 200
        assert client.get(f"{prefix}/v1/docs").status_code == 200
        assert client.get(f"{prefix}/v1/openapi.json").json()["servers"] == [{"url": "/vlm"}]


def test_health_follows_the_engine(idle: Server) -> None:
    assert idle.http.get("/healthz").status_code == 200
    idle.engine.close()
    assert idle.http.get("/healthz").status_code == 503
    refused = idle.ask("query", question="?")
    assert refused.status_code == 503
    assert "engine_dead" in sentence(refused)


def test_requests_of_an_engine_that_dies_are_told_so(idle: Server) -> None:
    with ThreadPoolExecutor(2) as people:
        whole = people.submit(idle.ask, "query", question="?")
        streamed = people.submit(idle.ask, "query", question="?", stream=True)
        wait_until(lambda: pending(idle.engine) == 2)
        idle.engine.close()
        assert whole.result().status_code == 503
        *_, last = streamed.result().text.strip().splitlines()
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
