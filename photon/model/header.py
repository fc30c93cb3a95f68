"""The header of a safetensors file: what it holds, and whether it can be what it says.

    8 bytes          JSON               tensor data
    [header length] [name -> dtype, shape, data_offsets] [...]

Nothing but the header is read. Every way a download goes wrong is named.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from photon.errors import CheckpointError

Header = dict[str, dict[str, Any]]
"""Tensor name -> {"dtype": str, "shape": list[int], "data_offsets": [begin, end]}."""

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_FLOATS = ("F32", "F16", "BF16")


def read_header(path: Path) -> Header:
    """Read and check the header.

    Raises:
        CheckpointError: unreadable, not safetensors, a Git LFS pointer, truncated, or not floating point.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(64)
            length = int.from_bytes(start[:8], "little")
            _check_start(path.name, start, length, size)
            file.seek(8)
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            _check_tensors(path.name, header, 8 + length, size)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror}); check the path.") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{path.name} has a damaged header; download it again.") from error
    return header


def _check_start(file: str, start: bytes, length: int, size: int) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{file} is a Git LFS pointer, not the weights; run `git lfs pull` to get them."
        )
    if start[8:9] != b"{" or not 2 <= length <= _MAX_HEADER_BYTES:
        raise CheckpointError(f"{file} is not a safetensors file; download or convert the weights to that.")
    if 8 + length > size:
        raise CheckpointError(f"{file} is truncated inside its header; download it again.")


def _check_tensors(file: str, header: Header, start: int, size: int) -> None:
    end = start + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if end > size:
        raise CheckpointError(f"{file} is truncated: {size:,} of {end:,} bytes; download it again.")
    if end < size:
        raise CheckpointError(f"{file} is longer than its header says; download it again.")
    for name, entry in header.items():
        if entry["dtype"] not in _FLOATS:
            raise CheckpointError(
                f"{file} stores {name} as {entry['dtype']}; use weights in one of {', '.join(_FLOATS)}."
            )
