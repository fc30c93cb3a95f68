"""Devices behind one protocol (`base.py`): cuda, cpu, deferred and simulated."""

from __future__ import annotations

from photon.device.base import Device
from photon.errors import DeviceError

NAMES = ("cpu", "cuda", "deferred", "sim:b200")


def open_device(name: str = "auto", *, num_threads: int = 1) -> Device:
    """Open a device by name: "cpu", "cuda" (or "cuda:1"), "deferred", "sim:b200" (a simulated GPU; see
    `cost.PRESETS`), or "auto" (cuda where there is one).

    Args:
        num_threads: torch threads of the cpu device's worker.

    Raises:
        DeviceError: the name is unknown, or the device is not there; the message says what is.
    """
    if name == "auto":
        from photon.device.cuda import is_available

        name = "cuda" if is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind == "cpu":
        from photon.device.cpu import CpuDevice

        return CpuDevice(num_threads=num_threads)
    if kind == "cuda":
        from photon.device.cuda import CudaDevice

        return CudaDevice(name)
    if kind == "deferred":
        from photon.device.deferred import DeferredDevice

        return DeferredDevice()
    if kind == "sim":
        from photon.device.cost import preset
        from photon.device.simulated import SimulatedDevice

        return SimulatedDevice(preset(name.partition(":")[2]))
    raise DeviceError(f"There is no device {name!r}; use one of {', '.join(NAMES)} or auto.")
