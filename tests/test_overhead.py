"""The overhead check listens in half of its rounds, with the observer it was given."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from photon import selfcheck
from photon.measure import overhead
from photon.model.weights import Model
from photon.observe import Mark, Span, StepRecord

HEARD: Counter[str] = Counter()


class Counting:
    """The observer that the check makes by name."""

    def on_span(self, span: Span) -> None:
        HEARD["spans"] += 1

    def on_mark(self, mark: Mark) -> None:
        HEARD["marks"] += 1

    def on_step(self, record: StepRecord) -> None:
        HEARD["rows"] += len(record.rows)


def test_half_of_the_rounds_are_observed(golden_model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    HEARD.clear()
    args = ["--overhead", "--device", "deferred", "--model", str(golden_model.path), "--tokens", "5"]
    status = selfcheck.main([*args, "--rounds", "4", "--observer", f"{__name__}:Counting", "--json"])
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert HEARD["rows"] == 4 * overhead.ROWS * 5
    assert HEARD["marks"] == 4 * overhead.ROWS * 5  # arrival, admitted, first_token, finish, release
    assert result["tokens_per_s"]["on"] > 0
    assert status == (0 if result["ok"] else 1)


@pytest.mark.parametrize("name", ["nothing", "photon.observe", "photon.observe:Nobody", "no.such:Thing"])
def test_an_observer_that_is_not_there_is_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert selfcheck.main(["--overhead", "--observer", name]) == 2
    assert capsys.readouterr().err.startswith(f"selfcheck: There is no observer {name!r} (")
