"""Pins who is told, in one sentence, and who goes on, when something dies: an observer, the commit, the
engine's thread, the device's process, the writer of a response, the disk.

What fails inside a launch, a sample, the device's programs and one request's grammar is pinned in
test_engine_failures.py. pipeline_bugs 17, 23, 61, 63.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
from engines import build, counters, finish, oracle, picture, query, requests, run, small, tiny_model
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from served import data_url, png, serving, serving_model, wait_until
from starlette.applications import Starlette

from photon import Engine, EngineConfig, whatif
from photon.api import ApiConfig, Meter, routes
from photon.device.deferred import DeferredDevice
from photon.errors import EngineDeadError
from photon.model.weights import Model
from photon.observe import Mark, Span, StepRecord
from photon.ui.playground import Playground
from photon.ui.runs import complete, submit
from photon.ui.session import Session

# Observers -----------------------------------------------------------------------------------------------


class Raises:
    """An observer whose method `fault` raises."""

    def __init__(self, fault: str, error: BaseException) -> None:
        self.fault, self.error = fault, error

    def _strike(self, method: str) -> None:
        if method == self.fault:
            raise self.error

    def on_span(self, span: Span) -> None:
        self._strike("on_span")

    def on_mark(self, mark: Mark) -> None:
        self._strike("on_mark")

    def on_step(self, record: StepRecord) -> None:
        self._strike("on_step")


@pytest.mark.parametrize("fault", ["on_span", "on_mark", "on_step"])
def test_an_observer_that_raises_is_dropped_and_every_request_is_answered(fault: str) -> None:
    with build(observers=[Raises(fault, OSError("no space left"))]) as engine:
        start = counters(engine)
        assert run(engine, requests()) == [oracle(index) for index in range(len(requests()))]
        assert counters(engine) == start


# The commit ----------------------------------------------------------------------------------------------


class BrokenClock(DeferredDevice):
    """The clock that the host reads right after its fifth wait is broken: an exception inside a commit."""

    num_waits = 0

    def run_until(self, targets: list[Any]) -> None:
        super().run_until(targets)
        self.num_waits += 1

    def now_ns(self) -> int:
        if self.num_waits == 5:
            self.num_waits += 1
            raise OSError("the clock is broken")
        return super().now_ns()


@pytest.mark.parametrize("depth", [1, 2])
def test_an_exception_in_a_commit_ends_every_request_with_its_cause(depth: int) -> None:
    """pipeline_bugs 23: nothing is held afterwards."""
    engine = build(small(depth=depth), device=BrokenClock())
    start = counters(engine)
    handles = [engine.submit(request) for request in requests()]
    finish(engine)
    errors = [str(handle.error) for handle in handles if handle.error is not None]
    assert len(errors) > len(handles) // 2
    assert set(errors) == {"The engine has ended: the clock is broken"}
    assert counters(engine) == start
    with pytest.raises(EngineDeadError, match="the clock is broken"):
        engine.submit(requests()[0])
    engine.close()


# The engine's thread -------------------------------------------------------------------------------------


def test_a_thread_that_is_made_to_end_tells_every_request() -> None:
    """What ends a thread from outside is no Exception, and may come at any instruction."""
    engine = build(small(max_batch_size=2), threaded=True)
    handles = [
        engine.submit(query("tell me more", max_tokens=60, temperature=1.5, seed=1)) for _ in range(300)
    ]
    thread = engine._worker._thread
    assert thread is not None
    wait_until(lambda: engine.stats()["tokens"] > 20)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
    )
    thread.join(timeout=60)
    assert not thread.is_alive()
    ended = [handle for handle in handles if handle.error is not None]
    assert all(handle.stage == "finished" for handle in handles)
    assert {str(handle.error) for handle in ended} == {"The engine has ended: SystemExit"}
    assert not engine.stats()["alive"]
    engine.close()


def test_a_dead_thread_is_a_503_and_one_sentence_to_all_who_ask() -> None:
    """An observer that calls sys.exit takes the engine along."""
    meter = Meter()
    device, observers = DeferredDevice(0), [Raises("on_step", SystemExit("exit was called")), meter]
    with (
        Engine(tiny_model(), device, observers=observers) as engine,
        serving(engine, meter) as server,
    ):
        answer = server.ask("query", question="go on")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        assert answer.json()["error"]["message"] == "The engine has ended: exit was called."
        assert server.http.get("/healthz").status_code == 503
        assert server.count("photon_engine_up") == 0


# The device's process ------------------------------------------------------------------------------------


def test_a_killed_device_is_one_sentence_to_programs_of_every_kind(golden_model: Model) -> None:
    """Someone who waits, one who reads a stream, one in OpenAI's format; then /healthz says 503."""
    chat = {"messages": [{"role": "user", "content": "go on"}], "stream": True}
    with serving_model(golden_model) as server, ThreadPoolExecutor(3) as people:
        asked = [
            people.submit(server.ask, "query", question="go on"),
            people.submit(server.ask, "caption", image_url=data_url(png()), stream=True),
            people.submit(server.ask, "chat/completions", **chat),
        ]
        wait_until(lambda: server.engine.stats()["schedulable"] == 3)
        os.kill(server.engine.device.pid, signal.SIGKILL)
        bodies = [json.loads(last_line(future.result())) for future in asked]
        assert server.http.get("/healthz").status_code == 503
        assert server.count("photon_engine_up") == 0
        bodies.append(server.ask("query", question="and now?").json())
    for error in (body["error"] for body in bodies):
        assert error["code"] == "engine_dead"
        assert error["message"].startswith("The engine has ended: ")
        assert "died" in error["message"]
        assert error["message"].count(". ") == 0


def last_line(response: httpx.Response) -> str:
    return response.text.strip().splitlines()[-1].removeprefix("data: ")


def test_a_dead_engine_is_one_sentence_to_a_person(golden_model: Model) -> None:
    """The page's run ends with the cause, and a second one is refused with it."""
    from photon.ui.ask import Ask

    with serving_model(golden_model) as server:
        ask = Ask("query", Image.fromarray(picture(1)), "go on")
        started = asyncio.run(submit(server.engine, ask))
        wait_until(lambda: server.engine.stats()["schedulable"] == 1)
        os.kill(server.engine.device.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"The engine has ended: .*died"):
            asyncio.run(complete(started))
        with pytest.raises(EngineDeadError, match="died"):
            asyncio.run(submit(server.engine, ask))


# The writer of a response --------------------------------------------------------------------------------


async def write_until_broken(app: Any, path: str, body: dict[str, Any], num_messages: int) -> None:
    """One request, straight to the app, whose connection breaks at the message after `num_messages`."""
    left = num_messages

    async def receive() -> dict[str, Any]:
        nonlocal text
        if text is None:
            await asyncio.sleep(3600)
        message, text = {"type": "http.request", "body": text, "more_body": False}, None
        return message

    async def send(message: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("broken pipe")

    text: bytes | None = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1"}
    scope |= {"method": "POST", "path": path, "raw_path": path.encode(), "root_path": "", "headers": headers}
    scope |= {"query_string": b"", "scheme": "http", "client": None, "server": None}
    with contextlib.suppress(Exception):  # whatever the framework makes of it
        await app(scope, receive, send)


@pytest.mark.parametrize(
    ("path", "body", "num_messages", "outcome_of_it"),
    [
        ("/v1/query", {"question": "go on", "stream": True}, 1, "cancelled"),
        ("/v1/query", {"question": "go on", "stream": True}, 3, "cancelled"),
        ("/v1/query", {"question": "?", "settings": {"max_tokens": 2}}, 0, "length"),
        ("/v1/query", {"question": "?", "settings": {"max_tokens": 2}}, 1, "length"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "go on"}], "stream": True},
            2,
            "cancelled",
        ),
    ],
)
def test_a_response_that_cannot_be_written_ends_its_request_and_no_other(
    path: str, body: dict[str, Any], num_messages: int, outcome_of_it: str, golden_model: Model
) -> None:
    """pipeline_bugs 63: the place among the open requests comes back, the neighbour is answered."""
    meter = Meter()
    with Engine(golden_model, DeferredDevice(0), EngineConfig(num_pages=400), observers=[meter]) as engine:
        app = Starlette(routes=routes(engine, meter, ApiConfig(lambda: 0, max_open=1)))
        neighbour = engine.submit(query("what?", max_tokens=30))
        asyncio.run(write_until_broken(app, path, body, num_messages))
        assert neighbour.result(timeout=60)["finish_reason"] == "length"
        wait_until(lambda: engine.stats()["resident"] == 0)
        assert ended(meter) == {outcome_of_it: 1}
        asyncio.run(write_until_broken(app, path, body, 0))
        assert sum(ended(meter).values()) == 2, "the first one's place was not given back"


def ended(meter: Meter) -> dict[str, float]:
    """Requests over HTTP, by how they ended."""
    series = text_string_to_metric_families(meter.exposition({}).decode())
    samples = [sample for family in series for sample in family.samples]
    return {s.labels["outcome"]: s.value for s in samples if s.name == "photon_api_requests_total"}


# The disk ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """No byte can be written to any file by this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Gradio's own loops
@pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting' is deprecated")  # Gradio with pandas
def test_a_full_disk_costs_a_person_the_files_and_not_the_result(tmp_path: Path) -> None:
    """The boxes and the JSON are shown, a sentence says what is missing; the next run has its files."""
    Image.fromarray(picture(1)).save(tmp_path / "picture.png")
    with build(threaded=True) as engine, gr.Blocks(analytics_enabled=False):
        playground = Playground(engine, (), "() => {}")
        view = playground.view

        async def last_update() -> dict[Any, Any]:
            file = {"path": str(tmp_path / "picture.png")}
            settings = ["", "", "", "4", "", ""]
            stream = playground.run(Session(), file, "detect", "dog", "normal", "", *settings)
            return [update async for update in stream][-1]

        with full_disk():
            without = asyncio.run(last_update())
        after = asyncio.run(last_update())
    assert "The files cannot be written on the server (File too large)" in without[view.status]
    assert without[view.json]["objects"] == after[view.json]["objects"] != []
    assert all(update["value"] is None for update in (without[v] for v in view.downloads.values()))
    assert "cannot be written" not in after[view.status]
    assert after[view.downloads["coco"]]["value"]
    gc.collect()  # Gradio leaves event loops behind, whose warnings belong here and to no other test


def test_a_full_disk_costs_a_simulation_its_trace_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json.gz").symlink_to("/dev/full")
    arguments = ["--gpu", "b200", "--streams", "1", "--tokens", "4", "--trace", str(tmp_path / "run.json.gz")]
    assert whatif.main(arguments) != 0
    written = capsys.readouterr().err.strip()
    assert "No space left on device" in written
    assert len(written.splitlines()) == 1
