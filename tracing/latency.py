"""Metrics of requests: latency and throughput as their callers see them; formulas as in metrics.py."""

from __future__ import annotations

from itertools import pairwise

from tracing.requests import RequestLife, request_lives
from tracing.trace import Trace
from tracing.values import Value, inside, length, percentile, ratio


def tokens_per_s(trace: Trace) -> Value:
    """tokens committed in W to requests not cancelled / |W|. Excludes zombies and padding."""
    lives = request_lives(trace)
    tokens = sum(inside(trace, t) for r in lives if not r.is_cancelled for t in r.tokens_ns)
    return ratio(tokens * 1e9, length(trace)) if lives else None


def slo_requests_per_s(trace: Trace, ttft_ms: float = 200.0, tpot_ms: float = 50.0) -> Value:
    """requests finished in W, not cancelled, with TTFT <= 200 ms and TPOT <= 50 ms / |W|."""
    lives = request_lives(trace)
    done = [r for r in lives if r.end_ns is not None and inside(trace, r.end_ns) and not r.is_cancelled]
    good = sum(_meets(r, ttft_ms, tpot_ms) for r in done)
    return ratio(good * 1e9, length(trace)) if lives else None


def ttft_p50_ms(trace: Trace) -> Value:
    """median over requests of (first token committed - arrival)."""
    return percentile([_ttft_ms(r) for r in _started(trace)], 50)


def ttft_p99_ms(trace: Trace) -> Value:
    """99th percentile over requests of (first token committed - arrival)."""
    return percentile([_ttft_ms(r) for r in _started(trace)], 99)


def queue_p50_ms(trace: Trace) -> Value:
    """median over requests of (admitted - arrival)."""
    return percentile([_ms(r.arrival_ns, r.admitted_ns) for r in _started(trace)], 50)


def prefill_p50_ms(trace: Trace) -> Value:
    """median over requests of (first token committed - admitted)."""
    return percentile([_ms(r.admitted_ns, r.first_token_ns) for r in _started(trace)], 50)


def itl_p50_ms(trace: Trace) -> Value:
    """median of the gaps between consecutive commits of one request, pooled. TTFT excluded."""
    return percentile(_itl_ms(trace), 50)


def itl_p99_ms(trace: Trace) -> Value:
    """99th percentile of the gaps between consecutive commits of one request, pooled."""
    return percentile(_itl_ms(trace), 99)


def tpot_p50_ms(trace: Trace) -> Value:
    """median over requests of (last commit - first commit) / (tokens - 1)."""
    return percentile([_tpot_ms(r) for r in _started(trace)], 50)


def _started(trace: Trace) -> list[RequestLife]:
    """Requests whose first token was committed in W."""
    lives = request_lives(trace)
    return [r for r in lives if r.first_token_ns is not None and inside(trace, r.first_token_ns)]


def _itl_ms(trace: Trace) -> list[Value]:
    lives = request_lives(trace)
    return [_ms(a, b) for r in lives for a, b in pairwise(r.tokens_ns) if inside(trace, b)]


def _ttft_ms(r: RequestLife) -> Value:
    return _ms(r.arrival_ns, r.first_token_ns)


def _tpot_ms(r: RequestLife) -> Value:
    return (r.tokens_ns[-1] - r.tokens_ns[0]) / 1e6 / (len(r.tokens_ns) - 1) if r.tokens_ns[1:] else None


def _ms(start: int | None, end: int | None) -> Value:
    return None if start is None or end is None else (end - start) / 1e6


def _meets(r: RequestLife, ttft_ms: float, tpot_ms: float) -> bool:
    """A request of one token has no TPOT and fails no limit on it; one without TTFT fails."""
    ttft, tpot = _ttft_ms(r), _tpot_ms(r)
    return ttft is not None and ttft <= ttft_ms and (tpot is None or tpot <= tpot_ms)
