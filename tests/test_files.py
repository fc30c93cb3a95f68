"""Pins the door for trace files: what was saved is loaded with nothing lost, and everything else is refused
in one sentence, however large, without filling the memory."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from traces import recorded

from tracing import files
from tracing.chrome import FORMAT, dumps, to_chrome
from tracing.files import TraceFileError, load, pack, save
from tracing.trace import Trace

GOOD = pack(dumps(to_chrome(recorded())).encode())


def held(trace: Trace) -> list[object]:
    parts = [list(map(repr, records)) for records in (trace.spans, trace.marks, trace.rows)]
    return [*parts, trace.window, trace.dropped, dict(trace.info)]


@pytest.mark.parametrize("name", ["run.json.gz", "run.json"])
def test_what_was_saved_is_loaded_with_nothing_lost(tmp_path: Path, name: str) -> None:
    save(recorded(), tmp_path / name)
    assert held(load(tmp_path / name)) == held(recorded())
    assert held(load((tmp_path / name).read_bytes())) == held(recorded())


def test_only_a_name_in_gz_is_packed(tmp_path: Path) -> None:
    save(recorded(), tmp_path / "a.json")
    save(recorded(), tmp_path / "a.json.gz")
    assert json.loads((tmp_path / "a.json").read_text())["otherData"]["format"] == FORMAT
    assert (tmp_path / "a.json.gz").stat().st_size < (tmp_path / "a.json").stat().st_size / 5


def test_the_same_trace_is_the_same_file() -> None:
    assert pack(b"x") == pack(b"x")


OTHERS_TRACE = b'{"traceEvents":[{"ph":"X","ts":1,"dur":2,"name":"f","pid":1,"tid":1}]}'
REFUSED = {
    "empty": (b"", "is empty"),
    "cut off gzip": (GOOD[: len(GOOD) // 2], "cut off or damaged"),
    "gzip of nothing more": (GOOD[:12], "cut off or damaged"),
    "broken gzip": (GOOD[:200] + b"xx" + GOOD[202:], "cut off or damaged"),
    "cut off text": (gzip.decompress(GOOD)[:3000], "cut off or damaged"),
    "another program's": (OTHERS_TRACE, "Chrome trace of another program"),
    "another program's list": (b'[{"ph":"X","ts":1}]', "Chrome trace of another program"),
    "another program's, packed": (gzip.compress(OTHERS_TRACE), "Chrome trace of another program"),
    "other JSON": (b'{"name": "photon"}', "JSON of something else"),
    "text": (b"step,slot\n1,0\n", "not a trace"),
    "bytes": (bytes(range(256)), "not a trace"),
    "picture": (b"\x89PNG\r\n\x1a\n" + bytes(99), "PNG picture"),
    "archive": (b"PK\x03\x04" + bytes(99), "zip archive"),
    "another version": (b'{"otherData":{"format":"photon-workbench-trace/9"}}', "another version"),
    "nothing in it": (b'{"otherData":{"format":"%s"}}' % FORMAT.encode(), "damaged: KeyError"),
    "not where it belongs": (b'[{"format":"%s"}]' % FORMAT.encode(), "not a trace of Photon"),
    "deep": (b'{"otherData":{"format":"%s"},"x":%s' % (FORMAT.encode(), b"[" * 100_000), "damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_trace_of_ours_is_refused_in_one_sentence(case: str) -> None:
    data, says = REFUSED[case]
    with pytest.raises(TraceFileError, match=says) as error:
        load(data)
    sentence = str(error.value)
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert len(sentence) < 300


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(TraceFileError, match="cannot be read"):
            load(path)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused_by_its_first_bytes() -> None:
    bomb = gzip.compress(bytes(200 << 20))
    tracemalloc.start()
    with pytest.raises(TraceFileError, match="not a trace"):
        load(bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_a_huge_file_with_our_head_is_refused_where_the_limit_is() -> None:
    head = b'{"otherData":{"format":"%s","x":"' % FORMAT.encode()
    with pytest.raises(TraceFileError, match="larger than 4 MB"):
        load(gzip.compress(head + b"x" * (64 << 20)), max_bytes=4 << 20)


def test_a_file_of_too_many_objects_is_refused_before_it_is_parsed() -> None:
    head = b'{"otherData":{"format":"%s"},"x":[' % FORMAT.encode()
    with pytest.raises(TraceFileError, match="records"):
        load(head + b"{}," * (files.MAX_OBJECTS + 1) + b"1]}")
