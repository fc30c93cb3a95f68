"""The prefix-cache check asks about each picture twice and finds the second answer equal, from the cache."""

from __future__ import annotations

import json

import pytest

from photon import selfcheck
from photon.model.weights import Model


def test_the_second_question_is_answered_from_the_cache_with_the_same_tokens(
    golden_model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--prefix-cache", "--device", "deferred", "--model", str(golden_model.path), "--tokens", "4"]
    status = selfcheck.main([*args, "--rounds", "2", "--json"])
    *text, last = capsys.readouterr().out.splitlines()
    result = json.loads(last)
    assert result["tokens_equal"]
    assert result["cached_tokens"] == golden_model.config.text.prefix_attn
    assert result["crops"] > 1
    assert text[3].startswith("first")
    assert text[4].startswith("second")
    assert status == (0 if result["ok"] else 1)
