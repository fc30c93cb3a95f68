"""How much memory of the host is free: of the machine, and of its container if it has one."""

from __future__ import annotations

from pathlib import Path


def free_host_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that this process and its children may still take; None where the system does not say.

    The lesser of what Linux calls available and what is left of the limit of cgroup v2. File cache counts
    as free.
    """
    meminfo = _fields(root / "proc/meminfo")
    if "MemAvailable:" not in meminfo:
        return None
    free = meminfo["MemAvailable:"] * 1024
    group = root / "sys/fs/cgroup"
    limit, current = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is not None and current is not None:
        free = min(free, limit - current + _fields(group / "memory.stat").get("inactive_file", 0))
    return max(0, free)


def _fields(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[1]) for line in lines if line}


def _number(path: Path) -> int | None:
    """A file that holds one number; None where it is missing or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
