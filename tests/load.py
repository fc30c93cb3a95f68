"""Load: 1, 8, 32 and 64 clients for 30 s each against an app that is started here, over loopback HTTP.

    python tests/load.py [--seconds 30] [--clients 1 8 32 64]

Each client asks one question after another, query and caption as streams. First every question is asked
alone; under load each answer must be the same. Printed per number of clients, for answers that were right:

    goodput   requests and tokens per second
    TTFT      sent to first piece of text, as the client sees it; and arrival to first token, in the engine
    ITL       between two tokens of one request, in the engine (pieces reach a client up to 40 ms later)

The engine's are quantiles of its /metrics histograms, interpolated within a bucket. Exit status 1 if an
answer differs or a request fails.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run by hand, from anywhere

from photon.tiny.pool import MULTI, SINGLE  # noqa: E402
from photon.tiny.scenes import draw_scene  # noqa: E402

CLIENTS = (1, 8, 32, 64)
NUM_PICTURES = 96  # more than the prefix cache holds
ASKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("query", {"question": "how many circles are there?", "stream": True}),
    ("caption", {"length": "normal", "stream": True}),
    ("point", {"object": "circle"}),
    ("detect", {"object": "star"}),
)
START_S = 120


@dataclass(frozen=True)
class Question:
    """One body for one route, and what it was answered alone."""

    route: str
    body: dict[str, Any]
    alone: Any = None

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass
class Tally:
    """What the clients of one round got. Right answers only, but for the errors."""

    num_answers: int = 0
    num_tokens: int = 0
    first_s: list[float] = field(default_factory=list)
    """From sending to the first piece of a stream."""
    total_s: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


def questions() -> list[Question]:
    """One about every picture."""
    made = []
    for seed in range(NUM_PICTURES):
        file = io.BytesIO()
        draw_scene(seed, SINGLE if seed % 3 else MULTI).image.save(file, "PNG")
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        task, body = ASKS[seed % len(ASKS)]
        made.append(Question(f"/v1/{task}", {**body, "image_url": url}))
    return made


async def ask(http: httpx.AsyncClient, question: Question) -> tuple[Any, int, float]:
    """The answer, its number of tokens, and the time to the first piece of it.

    Raises RuntimeError with what the server said.
    """
    start, first_s, last = time.perf_counter(), 0.0, {}
    text = ""
    async with http.stream("POST", question.route, json=question.body) as response:
        async for line in response.aiter_lines():
            if line:
                first_s = first_s or time.perf_counter() - start
                last = json.loads(line.removeprefix("data: "))
                text += last.get("chunk", "")
    if "error" in last:
        raise RuntimeError(f"{response.status_code} {last['error']['code']}")
    content = text if question.is_streamed else last.get("points", last.get("objects"))
    return content, last["metrics"]["output_tokens"], first_s


async def client(http: httpx.AsyncClient, line: Iterator[Question], tally: Tally, end: float) -> None:
    """One question after another until `end`."""
    while (start := time.perf_counter()) < end:
        question = next(line)
        try:
            content, num_tokens, first_s = await ask(http, question)
        except (RuntimeError, httpx.HTTPError) as error:
            tally.errors[str(error) or type(error).__name__] += 1
            continue
        if content != question.alone:
            tally.errors["differs from the answer alone"] += 1
            continue
        tally.num_answers += 1
        tally.num_tokens += num_tokens
        tally.total_s.append(time.perf_counter() - start)
        if question.is_streamed:
            tally.first_s.append(first_s)


async def play(url: str, asked: list[Question], num_clients: int, seconds: float) -> Tally:
    """So many clients for so long; they share one endless line of questions."""
    tally, line = Tally(), itertools.cycle(asked)
    limits = httpx.Limits(max_connections=num_clients)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as http:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(http, line, tally, end) for _ in range(num_clients)))
    return tally


async def alone(url: str, asked: list[Question]) -> list[Question]:
    """Each with its answer when nobody else asks."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        return [replace(question, alone=(await ask(http, question))[0]) for question in asked]


Buckets = dict[float, float]


def buckets(url: str, name: str) -> Buckets:
    """Cumulative counts of a histogram by upper bound, in seconds."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {float(s.labels["le"]): s.value for s in samples if s.name == f"{name}_bucket"}


def quantile_ms(before: Buckets, after: Buckets, share: float) -> float:
    """Of what was counted in between, linear within a bucket, as Prometheus does it."""
    low = counted = 0.0
    wanted = share * (after[float("inf")] - before[float("inf")])
    for bound, count in after.items():
        more = count - before[bound] - counted
        if more and counted + more >= wanted:
            return 1e3 * (low if bound == float("inf") else low + (bound - low) * (wanted - counted) / more)
        low, counted = bound, counted + more
    return float("nan")


def line_of(num_clients: int, tally: Tally, seconds: float, engine_ms: dict[str, str]) -> str:
    """One round in one line."""

    def both(times_s: list[float]) -> str:
        return " / ".join(f"{1e3 * np.percentile(times_s, q):.0f}" for q in (50, 99)) if times_s else "-"

    return "  ".join(
        (
            f"{num_clients:>3} clients",
            f"{tally.num_answers / seconds:6.1f} requests/s",
            f"{tally.num_tokens / seconds:6.0f} tokens/s",
            f"TTFT client {both(tally.first_s)}",
            *(f"{name} {value}" for name, value in engine_ms.items()),
            f"whole {both(tally.total_s)}",
            f"errors {dict(tally.errors) or 0}",
        )
    )


@contextmanager
def app() -> Iterator[str]:
    """The address of an app of our own, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(ROOT / "app.py"), "--port", str(port)], cwd=ROOT)
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while not is_up(url):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("The app did not start.")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients over loopback HTTP: goodput, TTFT, ITL, errors.")
    parser.add_argument("--seconds", type=float, default=30, help="of each round")
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="of each round, at most 128")
    flags = parser.parse_args()
    num_errors = 0
    with app() as url:
        asked = asyncio.run(alone(url, questions()))
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; p50 / p99 in ms", flush=True)
        for num_clients in flags.clients:
            names = {"TTFT engine": "photon_ttft_seconds", "ITL engine": "photon_itl_seconds"}
            before = {name: buckets(url, metric) for name, metric in names.items()}
            tally = asyncio.run(play(url, asked, num_clients, flags.seconds))
            after = {name: buckets(url, metric) for name, metric in names.items()}
            engine_ms = {
                name: " / ".join(f"{quantile_ms(before[name], after[name], q):.3g}" for q in (0.5, 0.99))
                for name in names
            }
            print(line_of(num_clients, tally, flags.seconds, engine_ms), flush=True)
            num_errors += tally.errors.total()
        print(f"load average {os.getloadavg()[0]:.1f}")
    return int(num_errors > 0)


if __name__ == "__main__":
    sys.exit(main())
