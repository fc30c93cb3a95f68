"""Pins the app as clients and the command line meet it: flags, ports, endpoints, errors, people at once.

The page's server runs in this process with the real engine on the cpu device; no browser.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from engines import tiny_model
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

import app
from photon import Engine, EngineConfig, open_device
from photon.api import Meter
from photon.api import serving as ports
from photon.api.serving import choose_port
from photon.images import load_image
from photon.model.weights import Model
from tracing.recorder import Recorder
from tracing.ui.sources import Sources

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # see close_gradios_loops
    pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting' is deprecated"),  # Gradio with pandas
]

ENDPOINTS = {
    "/compare": ["image", "task", "prompt", "workload", "sides"],
    "/query": ["image", "question", "settings", "spatial_refs"],
    "/caption": ["image", "length", "settings"],
    "/point": ["image", "object", "settings", "spatial_refs"],
    "/detect": ["image", "object", "settings"],
}


class Server:
    """A running page, a client of it, and the engine behind it."""

    def __init__(self, engine: Engine, recorder: Recorder, url: str) -> None:
        self.engine, self.recorder, self.url = engine, recorder, url
        self.client = Client(url, verbose=False, analytics_enabled=False)

    def ask(self, endpoint: str, image: Any, **arguments: Any) -> dict[str, Any]:
        image = handle_file(str(image)) if isinstance(image, Path) else image
        return self.client.predict(image=image, **arguments, api_name=endpoint)


@contextmanager
def serving(model: Model) -> Iterator[Server]:
    recorder, meter = Recorder(), Meter()
    engine = Engine(model, open_device("cpu"), EngineConfig(max_batch_size=8), observers=[recorder, meter])
    sources = Sources(recorder)
    lab = app.new_lab(engine)
    demo = app.build(engine, sources, lab)
    port = choose_port("127.0.0.1", None)
    app.launch(demo, sources, app.api_routes(engine, meter), server_name="127.0.0.1", server_port=port)
    try:
        yield Server(engine, recorder, f"http://127.0.0.1:{port}")
    finally:
        demo.close(verbose=False)
        lab.close()
        engine.close()
        close_gradios_loops()


def close_gradios_loops() -> None:
    """Gradio makes event loops and leaves them to the garbage collector, which would warn in other tests."""
    for thing in gc.get_objects():
        # type(): isinstance would wake up lazy proxies among the objects.
        if issubclass(type(thing), asyncio.AbstractEventLoop) and not thing.is_running():
            thing.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A minuscule model: answers in milliseconds."""
    with serving(tiny_model()) as running:
        yield running


@pytest.fixture(scope="module")
def talkative(golden_model: Model) -> Iterator[Server]:
    """A model that never ends by itself: 768 tokens and more, seconds of work."""
    with serving(golden_model) as running:
        yield running


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "picture.png"
    pixels = np.random.default_rng(1).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Poll; other work on the machine may make anything slow."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this did not happen in time"
        time.sleep(0.02)


# ---- endpoints


def test_exactly_the_documented_endpoints_are_public(server: Server) -> None:
    """user_reports 62."""
    api = server.client.view_api(return_format="dict", print_info=False)
    assert isinstance(api, dict)
    named = {
        name: [parameter["parameter_name"] for parameter in info["parameters"]]
        for name, info in api["named_endpoints"].items()
    }
    assert (named, api["unnamed_endpoints"]) == (ENDPOINTS, {})


def test_programs_compare_two_settings(server: Server, picture: Path) -> None:
    short = {"copies": 2, "tokens": 6, "rounds": 2}
    result = server.ask("/compare", picture, prompt="dog", workload=short, sides={"b": {"sync_masks": True}})
    assert result["tokens"]["is_equal"] is True
    assert (result["a"]["setting"], len(result["gains_percent"])) == ("depth 1", 2)
    assert result["b"]["info"]["injected"] == "synchronous mask upload"
    assert result["metrics"]["sync_leaks"]["b"] > 0 == result["metrics"]["sync_leaks"]["a"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workload": {"copies": 99}}, "from 1 to 32"),
        ({"sides": {"a": {"deepness": 2}}}, "no field 'deepness'"),
        ({"sides": {"b": {"depth": "x"}}}, "Side B: depth is 'x'"),
        ({"sides": {"c": {}}}, "no side 'c'"),
        ({"workload": 3}, "must be an object"),
    ],
)
def test_a_wrong_comparison_is_one_sentence(
    server: Server, picture: Path, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(AppError, match=words):
        server.ask("/compare", picture, prompt="dog", **wrong)


@pytest.mark.parametrize("endpoint", ["/point", "/detect"])
def test_places_come_normalised_and_in_pixels_with_the_picture_size(
    server: Server, picture: Path, endpoint: str
) -> None:
    """user_reports 27."""
    result = server.ask(endpoint, picture, object="dog", settings={"max_objects": 3})
    assert result["image"] == {"width": 60, "height": 40}
    places = result["points" if endpoint == "/point" else "objects"]
    assert result["count"] == {"dog": len(places)}
    for place in places:
        assert place["label"] == "dog"
        for key, value in place["normalized"].items():
            assert 0 <= value <= 1
            assert place["pixels"][key] == pytest.approx(value * (60 if key[0] == "x" else 40), abs=0.01)


@pytest.mark.parametrize(
    ("endpoint", "key", "arguments"),
    [("/query", "answer", {"question": "what is it?"}), ("/caption", "caption", {"length": "short"})],
)
def test_text_is_the_engines_text(
    server: Server, picture: Path, endpoint: str, key: str, arguments: dict[str, Any]
) -> None:
    settings = {"max_tokens": 12}
    over_http = server.ask(endpoint, picture, **arguments, settings=settings)
    here = getattr(server.engine, endpoint[1:])(load_image(picture), *arguments.values(), settings=settings)
    assert over_http[key] == here[key]
    assert over_http["finish_reason"] == here["finish_reason"]


def test_every_result_carries_its_numbers(server: Server, picture: Path) -> None:
    """user_reports 74."""
    metrics = server.ask("/query", picture, question="why", settings={"max_tokens": 8})["metrics"]
    parts = metrics["queue_ms"] + metrics["preprocess_ms"] + metrics["prefill_ms"] + metrics["decode_ms"]
    assert parts == pytest.approx(metrics["total_ms"], abs=0.01)
    assert metrics["input_tokens"] > 0
    assert metrics["output_tokens"] <= 8


def test_several_labels_are_several_requests_grouped_by_label(server: Server, picture: Path) -> None:
    """user_reports 32."""
    result = server.ask("/detect", picture, object="dog, Cat, DOG", settings={"max_objects": 2})
    assert list(result["count"]) == ["dog", "Cat"]
    assert result["metrics"]["requests"] == 2


def test_references_are_the_engines(server: Server, picture: Path) -> None:
    refs, settings = [[0.2, 0.3], [0.1, 0.2, 0.6, 0.9]], {"max_tokens": 12}
    over_http = server.ask("/query", picture, question="this?", settings=settings, spatial_refs=refs)
    here = server.engine.query(load_image(picture), "this?", settings=settings, spatial_refs=refs)
    assert (over_http["answer"], over_http["spatial_refs"]) == (here["answer"], refs)


def test_settings_may_come_as_text(server: Server, picture: Path) -> None:
    """user_reports 23."""
    as_text = {"temperature": "0.7", "seed": "3", "max_tokens": "9"}
    as_numbers = {"temperature": 0.7, "seed": 3, "max_tokens": 9}
    answers = [
        server.ask("/query", picture, question="why", settings=s)["answer"] for s in (as_text, as_numbers)
    ]
    assert answers[0] == answers[1]


def test_programs_are_served_on_the_pages_port(server: Server) -> None:
    settings = {"max_tokens": 6}
    body = {"question": "go on", "settings": settings}
    answer = httpx.post(f"{server.url}/v1/query", json=body).json()
    assert answer["answer"] == server.engine.query(None, "go on", settings=settings)["answer"]
    assert httpx.get(f"{server.url}/healthz").json() == {"status": "ok"}
    assert "photon_api_requests_total" in httpx.get(f"{server.url}/metrics").text
    assert "/v1/chat/completions" in httpx.get(f"{server.url}/v1/docs").text
    assert "Photon Workbench" in httpx.get(server.url).text


# ---- bad input


@pytest.mark.parametrize(
    ("endpoint", "arguments", "words"),
    [
        ("/point", {"object": "  "}, "prompt|object|empty"),
        ("/query", {"question": "x", "settings": {"temperature": -1}}, "temperature"),
        ("/query", {"question": "x", "settings": {"top_p": 2}}, "top_p"),
        ("/detect", {"object": "x", "settings": {"max_objects": 0}}, "max_objects"),
        ("/detect", {"object": "x", "settings": {"max_objects": 10**9}}, "max_objects"),
        ("/query", {"question": "x", "settings": {"warmth": 1}}, "warmth"),
        ("/query", {"question": "x", "settings": [1]}, "settings"),
        ("/query", {"question": "word " * 3000}, "shorten"),
        ("/caption", {"length": "endless"}, "endless"),
        ("/point", {"object": "x", "spatial_refs": [[0.1, 2]]}, "spatial_refs"),
        ("/query", {"question": "x", "spatial_refs": "here"}, "spatial_refs"),
    ],
)
def test_bad_input_is_one_sentence_that_names_it_and_queues_nothing(
    server: Server, picture: Path, endpoint: str, arguments: dict[str, Any], words: str
) -> None:
    """user_reports 22."""
    before = server.engine.stats()["steps"]
    with pytest.raises(AppError, match=f"(?i){words}") as error:
        server.ask(endpoint, picture, **arguments)
    assert "Traceback" not in str(error.value)
    assert "/tmp" not in str(error.value)
    assert server.engine.stats()["steps"] == before
    assert server.ask("/caption", picture, settings={"max_tokens": 2})["finish_reason"]


def test_a_file_that_is_no_image_is_refused_by_name_of_the_problem(server: Server, tmp_path: Path) -> None:
    text = tmp_path / "notes.png"
    text.write_text("no image")
    with pytest.raises(AppError, match="not an image"):
        server.ask("/caption", text)


def test_a_missing_image_is_said_plainly(server: Server) -> None:
    """user_reports 21."""
    with pytest.raises(AppError, match="no image"):
        server.ask("/caption", None)


@pytest.mark.parametrize("meta", [{}, {"meta": {"_type": "gradio.FileData"}}])
def test_a_caller_cannot_name_a_file_of_the_server(
    server: Server, picture: Path, meta: dict[str, Any]
) -> None:
    body = {"data": [{"path": str(picture), **meta}, "normal", None]}
    event = httpx.post(f"{server.url}/gradio_api/call/caption", json=body).json()["event_id"]
    answer = httpx.get(f"{server.url}/gradio_api/call/caption/{event}", timeout=20).text
    assert "event: error" in answer
    assert "event: complete" not in answer


# ---- several people, and people who leave


def test_requests_of_several_people_share_steps(talkative: Server, picture: Path) -> None:
    """user_reports 47."""

    def ask(seed: int) -> int:
        client = Client(talkative.url, verbose=False, analytics_enabled=False)
        settings = {"max_tokens": 120, "seed": seed}
        result = client.predict(
            image=handle_file(str(picture)), question="?", settings=settings, api_name="/query"
        )
        return result["metrics"]["output_tokens"]

    with ThreadPoolExecutor(4) as people:
        assert list(people.map(ask, range(4))) == [120] * 4
    assert max(talkative.recorder.snapshot().span_table["rows"]) > 1


def test_a_client_that_cancels_frees_the_engine(talkative: Server, picture: Path) -> None:
    job = talkative.client.submit(image=handle_file(str(picture)), question="go on", api_name="/query")
    wait_until(lambda: talkative.engine.stats()["resident"] > 0)
    job.cancel()
    wait_until(lambda: talkative.engine.stats()["resident"] == 0)


def test_a_program_that_hangs_up_frees_the_engine(talkative: Server) -> None:
    with httpx.stream(
        "POST", f"{talkative.url}/v1/query", json={"question": "go on", "stream": True}
    ) as lines:
        assert next(lines.iter_lines()).startswith("data: ")
        assert talkative.engine.stats()["resident"] == 1
    wait_until(lambda: talkative.engine.stats()["resident"] == 0)


# ---- command line


@pytest.mark.parametrize(
    ("text", "words"), [(" ", "empty"), ("@/nowhere", "cannot be read"), ("a\nb", "one line")]
)
def test_an_api_key_that_is_none_ends_the_app_without_showing_it(
    capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert app.main(["--api-key", text]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert "a\nb" not in message


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        app.parse_flags(["--help"])
    shown = capsys.readouterr().out
    for flag in (
        "--model",
        "--device",
        "--depth",
        "--port",
        "--root-path",
        "--max-batch-size",
        "--host",
        "--api-key",
    ):
        assert flag in shown


def test_an_explicit_port_that_is_busy_ends_the_app_with_the_port_and_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """user_reports 59."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert app.main(["--port", str(port)]) == 2
    message = capsys.readouterr().err
    assert str(port) in message
    assert "--port" in message


def test_without_a_port_the_next_free_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """user_reports 59."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST_PORT", port)
        assert choose_port("127.0.0.1", None) > port


def test_a_model_that_is_not_there_is_one_sentence_before_any_port_opens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(["--model", str(tmp_path)]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_an_unknown_device_is_one_sentence(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert app.main(["--model", str(tiny_model().path), "--device", "abacus"]) == 2
    assert "abacus" in capsys.readouterr().err


def test_a_dtype_that_the_device_does_not_compute_in_is_refused_at_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """user_reports 63."""
    flags = ["--model", str(tiny_model().path), "--device", "cpu", "--dtype", "float16"]
    assert app.main(flags) == 2
    assert "float16 needs a CUDA device" in capsys.readouterr().err


def test_the_banner_says_what_runs_where_and_why_not_cuda(server: Server) -> None:
    """user_reports 64."""
    text = app.banner(server.engine, app.parse_flags([]), 1234)
    for word in ("model", "cpu", "float32", "pipelined", "http://127.0.0.1:1234", "CUDA"):
        assert word in text


# ---- the page's own rules


def test_the_page_asks_no_other_host_for_anything(server: Server) -> None:
    """user_reports 58."""
    config = httpx.get(f"{server.url}/config").json()
    html = httpx.get(server.url).text
    assert "fonts.googleapis" not in html + json.dumps(config)
    assert config["analytics_enabled"] is False


def test_an_upload_over_the_limit_is_refused(server: Server) -> None:
    """user_reports 7."""
    too_large = b"0" * (33 * 2**20)
    answer = httpx.post(f"{server.url}/gradio_api/upload", files={"files": ("a.png", too_large)}, timeout=60)
    assert answer.status_code == 413


def test_the_depth_switch_changes_the_whole_engine(server: Server) -> None:
    server.engine.set_depth(1)
    assert server.engine.depth == 1
    server.engine.set_depth(2)
    assert server.engine.depth == 2


def test_a_trace_says_what_ran() -> None:
    engine, recorder, _ = app.load(app.parse_flags(["--device", "cpu", "--depth", "1"]))
    with engine:
        info = recorder.snapshot().info
    assert (info["device"], info["model"], info["depth"]) == ("cpu", "photon-tiny", "1")
