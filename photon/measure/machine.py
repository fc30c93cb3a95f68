"""What a figure was measured on: processor, cores, card, versions, and how busy the machine was."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from photon.device.base import Device

PACKAGE = "photon-workbench"


def facts(device: Device) -> dict[str, Any]:
    """As plain JSON values. "load" is that of the last minute, at this moment."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": device.name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "photon": _package_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe(found: dict[str, Any]) -> str:
    """The facts in one line for people."""
    versions = ", ".join(f"{name} {found[name]}" for name in ("photon", "torch", "python"))
    return (
        f"{found['device']} on {found['cpu']}, {found['cores']} cores; {versions}; load {found['load']:.2f}"
    )


def _package_version() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "not installed"
