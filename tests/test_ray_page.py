"""Pins the page in front of many engines: two replicas on a Ray of their own, a real browser, and programs.

Every visitor stays with one replica, whose engine answers and whose steps the timeline shows; another one
takes over when that is killed. Without Ray these tests skip themselves.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from clusters import ROOT, Cluster, running
from gradio_client import Client, handle_file
from served import wait_until
from test_browser import CHROMIUM, Visitor, browser, visiting

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install -e '.[ray]'"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="there is no chromium at /usr/bin/chromium"),
]

__all__ = ["browser"]  # a fixture

STARS = ROOT / "assets" / "samples" / "green_stars.jpg"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as started:
        yield started


@pytest.fixture
def person(cluster: Cluster) -> Iterator[httpx.Client]:
    """A browser without a page: it has the cookie, and no key."""
    with httpx.Client(base_url=cluster.url, timeout=60, trust_env=False) as client:
        client.get("/config")
        yield client


def replica_of(context: Any) -> str:
    """Whom the browser's cookie names."""
    return context.cookies()[0]["value"].partition(".")[0]


def watch(page: Any) -> set[str]:
    """The replicas that answer from now on."""
    seen: set[str] = set()
    page.on("response", lambda response: seen.add(response.headers["x-photon-replica"]))
    return seen


def point(visitor: Visitor) -> None:
    """Run the first example, until this run's window is known and its five points are drawn."""
    window = visitor.page.input_value("#run_window textarea")
    visitor.example("point")
    is_other = f"document.querySelector('#run_window textarea').value != '{window}'"
    visitor.page.wait_for_function(f"{is_other} && document.querySelectorAll('#marks .pw-point').length == 5")


# ---- a visitor


def test_each_replica_has_a_page_whose_visitors_it_serves_alone(cluster: Cluster, browser: Any) -> None:
    met: set[str] = set()
    while len(met) < 2:
        with browser.new_context() as context:
            context.request.get(f"{cluster.url}/config")  # a browser's first request says whom it meets
            if (name := replica_of(context)) in met:
                continue
            visitor = Visitor(context.new_page())
            seen = watch(visitor.page)
            visitor.visit(cluster.url)
            draws = visitor.page.evaluate("photonTimeline.draws")
            visitor.example("query")
            visitor.wait_for("done")
            assert visitor.text("#answer pre") == "4"
            visitor.page.wait_for_function(f"photonTimeline.draws > {draws} && photonTimeline.drawn > 0")
            point(visitor)
            assert (seen, visitor.errors, visitor.hosts) == ({name}, [], {"127.0.0.1"})
            assert cluster.count("photon_steps_total")[name] > 0
            met.add(name)


# ---- what passes through


def test_uploads_in_parts_ranges_and_limits_are_as_without_ray(person: httpx.Client) -> None:
    pictures = [os.urandom(2**21) for _ in range(3)]
    files = [("files", (f"{i}.png", content)) for i, content in enumerate(pictures)]
    paths = person.post("/gradio_api/upload", files=files).json()
    assert [person.get(f"/gradio_api/file={path}").content for path in paths] == pictures
    part = person.get(f"/gradio_api/file={paths[1]}", headers={"Range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, pictures[1][5:10])
    assert person.head("/").status_code == 200
    too_large = {"files": ("a.png", bytes(33 * 2**20))}
    assert person.post("/gradio_api/upload", files=too_large).status_code == 413


def test_the_cookie_names_the_replica_and_is_for_the_server_alone(cluster: Cluster) -> None:
    response = httpx.get(f"{cluster.url}/config")
    name = response.headers["X-Photon-Replica"]
    pattern = rf"photon-replica={name}\.\w+; Path=/; HttpOnly; SameSite=Lax"
    assert re.fullmatch(pattern, response.headers["Set-Cookie"])
    forged = httpx.get(f"{cluster.url}/config", headers={"Cookie": r'photon-replica="a\012b"'})
    assert re.fullmatch(r"photon-replica=\w+\.\w+; .*", forged.headers["Set-Cookie"])


def test_open_pages_take_nothing_from_programs(cluster: Cluster, person: httpx.Client) -> None:
    """More streams than a replica has room for requests to /v1, all at one."""
    limits = httpx.Limits(max_connections=None)
    with ExitStack() as streams:
        pages = streams.enter_context(
            httpx.Client(base_url=cluster.url, cookies=person.cookies, limits=limits)
        )
        for _ in range(140):
            opened = streams.enter_context(pages.stream("GET", "/wb/trace/stream?source=live"))
            assert next(opened.iter_raw())
        answers = [cluster.ask(seed) for seed in range(8)]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["X-Photon-Replica"] for answer in answers}) == 2
    assert person.get("/v1/models").status_code == 401


def test_gradios_client_keeps_the_cookie(cluster: Cluster) -> None:
    for _ in range(4):
        client = Client(cluster.url, verbose=False, analytics_enabled=False)
        result = client.predict(image=handle_file(str(STARS)), object="star", api_name="/point")
        assert result["count"] == {"star": 5}


# ---- who is killed


def test_a_killed_replica_hands_its_visitors_to_the_other(cluster: Cluster, browser: Any) -> None:
    with visiting(browser, cluster.url) as visitor:
        context = visitor.page.context
        killed = replica_of(context)
        os.kill(cluster.process_of(killed), signal.SIGKILL)
        point(visitor)  # an idle page goes on
        visitor.page.reload()
        visitor.page.wait_for_function("window.photonTimeline && photonTimeline.draws > 0")
        assert (other := replica_of(context)) != killed
        point(visitor)
        wait_until(lambda: len(cluster.count("photon_engine_up").keys() - {killed}) == 2, 60)
        seen = watch(visitor.page)
        point(visitor)
        assert seen == {other}, "a replica that starts takes no visitor from another"
