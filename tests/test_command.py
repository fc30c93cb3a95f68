"""Pins what all commands share: where text, JSON and errors go, and the exit status."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from photon.errors import InvalidRequestError
from photon.measure.command import Answer, run_command


@pytest.mark.parametrize(
    ("found", "status"), [({"ok": True}, 0), ({"ok": False}, 1), ({"gain": 2}, 0), ([{"ok": False}], 0)]
)
def test_only_a_verdict_of_no_is_exit_status_1_and_json_is_the_last_line(
    found: Any, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(argparse.ArgumentParser(), lambda args: (found, "two\nlines"), ["--json"]) == status
    assert capsys.readouterr().out == f"two\nlines\n{json.dumps(found)}\n"


def test_an_error_is_one_sentence_after_the_commands_name(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(args: argparse.Namespace) -> Answer:
        raise InvalidRequestError("Too few.")

    assert run_command(argparse.ArgumentParser(prog="python -m photon.bench"), fail, []) == 2
    assert capsys.readouterr() == ("", "bench: Too few.\n")
