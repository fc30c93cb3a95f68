"""What the commands of `photon` share: flags in, a text for people or one JSON line out, an exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from photon.errors import PhotonError

Answer = tuple[Any, str]
"""What was found, as plain JSON values, and that for people."""


def run_command(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Answer], argv: list[str] | None
) -> int:
    """Parse the flags, run, print; with --json the last line is one JSON value.

    Returns:
        The exit status: 1 if what was found says "ok": false, 2 after a PhotonError, else 0.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")
    args = parser.parse_args(argv)
    try:
        found, text = run(args)
    except PhotonError as error:
        print(f"{parser.prog.rpartition('.')[2]}: {error}", file=sys.stderr)
        return 2
    print(text)
    if args.json:
        print(json.dumps(found))
    return int(isinstance(found, dict) and not found.get("ok", True))
