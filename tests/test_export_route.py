"""Pins the download route: each format of the live recorder and of an opened trace, of a window or of the
last seconds, with a file name; and one sentence for what cannot be had."""

from __future__ import annotations

import json

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from traces import recorded

from tracing.files import load
from tracing.recorder import Recorder
from tracing.ui.export_route import export_routes, file_stem
from tracing.ui.sources import Sources


@pytest.fixture
def sources() -> Sources:
    recorder = Recorder(info=lambda: {"device": "cpu"})
    for span in recorded(4).spans:
        recorder.on_span(span)
    return Sources(recorder)


@pytest.fixture
def client(sources: Sources) -> TestClient:
    return TestClient(Starlette(routes=export_routes(sources)))


def get(client: TestClient, **query: object) -> bytes:
    answer = client.get("/wb/trace/export", params=query)
    assert answer.status_code == 200
    return answer.content


def test_an_opened_trace_comes_back_whole(client: TestClient, sources: Sources) -> None:
    trace = load(get(client, source=sources.add(recorded(), "run.json.gz")))
    assert list(map(repr, trace.rows)) == list(map(repr, recorded().rows))
    assert list(trace.spans) == list(recorded().spans)
    assert trace.info == recorded().info


def test_the_live_recorder_is_what_is_meant_without_a_source(client: TestClient) -> None:
    trace = load(get(client))
    assert list(trace.spans) == list(recorded(4).spans)
    assert trace.info == {"device": "cpu"}


def test_the_last_seconds_and_a_window_are_cut_out(client: TestClient) -> None:
    end = int(recorded(4).span_table["end_ns"].max())
    assert load(get(client, last_s=0.002)).window == (end - 2_000_000, end)
    assert load(get(client, start=end - 500, end=end - 100)).window == (end - 500, end - 100)


def test_each_format_has_its_type_and_name(client: TestClient, sources: Sources) -> None:
    source = sources.add(recorded(), "B: depth 2, 8 rows")
    for kind, media_type, name, start in [
        ("chrome", "application/gzip", "b-depth-2-8-rows.json.gz", b"\x1f\x8b"),
        ("csv", "text/csv", "b-depth-2-8-rows-spans.csv", b"track,name"),
        ("json", "application/json", "b-depth-2-8-rows-metrics.json", b"{"),
        ("html", "text/html", "b-depth-2-8-rows.html", b"<!doctype html>"),
    ]:
        answer = client.get("/wb/trace/export", params={"source": source, "format": kind})
        assert answer.headers["content-type"].startswith(media_type)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert answer.content.startswith(start)
    assert json.loads(get(client, source=source, format="json"))["metrics"]["sync_leaks"]["value"] == 1


def test_a_file_name_is_plain_whatever_the_title() -> None:
    assert file_stem('a"; filename="../../etc\r\nX: y.json.gz') == "a-filename-etc-x-y"
    assert file_stem("日本") == "trace"
    assert len(file_stem("x" * 999)) == 60


def test_a_source_that_is_gone_is_not_found(client: TestClient) -> None:
    answer = client.get("/wb/trace/export", params={"source": "nobody's"})
    assert answer.status_code == 404
    assert "not held" in answer.json()["error"]


@pytest.mark.parametrize(
    "query",
    [
        {"last_s": "0"},
        {"last_s": "nan"},
        {"last_s": "soon"},
        {"last_s": ""},
        {"start": "1.5"},
        {"format": "exe"},
        {"start": str(1 << 80)},
    ],
)
def test_a_query_that_cannot_be_meant_gets_one_sentence(client: TestClient, query: dict[str, str]) -> None:
    answer = client.get("/wb/trace/export", params=query)
    assert answer.status_code == 400
    assert answer.json()["error"].endswith(".")
