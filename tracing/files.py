"""load, save: the one door for trace files. What is read is ours, or refused in one sentence.

    save(trace, "run.json.gz")          Chrome Trace Event JSON, gzip: Perfetto opens it, load loses nothing
    load("run.json.gz"), load(data)     gzip or plain; a path, or the bytes of a file

A file is read in pieces and no further than it makes sense: another program's file is refused by its
first bytes, and one that unpacks to more than MAX_BYTES, or to more objects than MAX_OBJECTS, before any
of it is parsed. So a small file cannot fill the memory.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from pathlib import Path

from tracing.chrome import FORMAT, dumps, from_chrome, to_chrome
from tracing.trace import Trace

MAX_BYTES = 512 << 20  # unpacked; a full recorder of 32 MB is less than half of it
MAX_OBJECTS = 8 << 20  # brackets in the text: what a hostile file could multiply in memory
PIECE = 1 << 20
HEAD = 64 << 10  # our own files say what they are in far less
_OURS = re.compile(rb'"format"\s*:\s*"' + re.escape(FORMAT.encode()) + b'"')
_OTHER_VERSION = re.compile(rb'"format"\s*:\s*"photon-workbench-trace/')
_MAGIC = {b"\x89PNG": "a PNG picture", b"\xff\xd8\xff": "a JPEG picture", b"PK\x03\x04": "a zip archive"}
_MAGIC |= {b"%PDF": "a PDF document", b"SQLite": "a database"}


class TraceFileError(ValueError):
    """A file that is not a trace of ours; one sentence with cause and remedy."""


def save(trace: Trace, path: str | Path) -> None:
    """Write the trace; gzip when the name ends in .gz. OSError as `open` raises it."""
    data = dumps(to_chrome(trace)).encode()
    Path(path).write_bytes(pack(data) if str(path).endswith(".gz") else data)


def pack(data: bytes) -> bytes:
    """Gzip whose bytes depend on the data alone."""
    return gzip.compress(data, compresslevel=6, mtime=0)


def load(source: str | Path | bytes, *, max_bytes: int = MAX_BYTES) -> Trace:
    """The trace in a file, or in its bytes.

    Raises:
        TraceFileError: it is not a trace of ours, or is damaged or too large.
    """
    try:
        if isinstance(source, bytes):
            return _parse(_read(io.BytesIO(source), max_bytes))
        with open(source, "rb") as file:
            return _parse(_read(file, max_bytes))
    except OSError as error:
        raise TraceFileError(
            f"The file cannot be read: {error.strerror or error}; check its path."
        ) from error


def _read(file: io.BufferedIOBase, max_bytes: int) -> bytes:
    """The text of the file, unpacked."""
    magic = file.read(6)
    file.seek(0)
    if not magic:
        raise TraceFileError("The file is empty; save the trace again.")
    for start, what in _MAGIC.items():
        if magic.startswith(start):
            raise TraceFileError(f"The file is {what}, not a trace; open a .json.gz that was saved here.")
    if not magic.startswith(b"\x1f\x8b"):
        return _bounded(file, max_bytes)
    try:
        with gzip.open(file) as unpacked:
            return _bounded(unpacked, max_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceFileError("The file is cut off or damaged; copy or save it again.") from error


def _bounded(file: io.BufferedIOBase, max_bytes: int) -> bytes:
    """All of it, if its head says that it is ours and its size is within the limit."""
    pieces = [file.read(HEAD)]
    _check_head(pieces[0])
    size = len(pieces[0])
    while piece := file.read(PIECE):
        size += len(piece)
        if size > max_bytes:
            raise TraceFileError(
                f"The trace is larger than {max_bytes >> 20} MB unpacked; save fewer seconds of it."
            )
        pieces.append(piece)
    return b"".join(pieces)


def _check_head(head: bytes) -> None:
    if _OURS.search(head):
        return
    if _OTHER_VERSION.search(head):
        raise TraceFileError(
            f"The trace was saved by another version: this one reads {FORMAT}; save it again with this one."
        )
    if b'"traceEvents"' in head or (head.lstrip().startswith(b"[") and b'"ph"' in head):
        raise TraceFileError(
            "The file is a Chrome trace of another program, without what the metrics need; "
            "open it in Perfetto, or open a .json.gz that was saved here."
        )
    what = "JSON of something else" if head.lstrip()[:1] in (b"{", b"[") else "not a trace"
    raise TraceFileError(f"The file is {what}; open a .json.gz that was saved here.")


def _parse(data: bytes) -> Trace:
    if data.count(b"{") + data.count(b"[") > MAX_OBJECTS:
        raise TraceFileError(f"The trace has more than {MAX_OBJECTS:,} records; save fewer seconds of it.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TraceFileError(f"The file is cut off or damaged ({error}); copy or save it again.") from error
    try:
        return from_chrome(document)
    except ValueError as error:
        raise TraceFileError(f"{str(error)[:200]}; save the trace again.") from error
