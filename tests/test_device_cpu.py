"""Pins what only a worker process can get wrong: asynchrony, death, leftovers, what it imports."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from photon.device.base import Work
from photon.device.cpu import CpuDevice
from photon.errors import DeviceError


class Gate:
    """A runner whose `wait` blocks until the host opens a FIFO for writing."""

    def __init__(self, fifo: str, buffers: tuple[torch.Tensor, ...]) -> None:
        self.fifo, self.buffers = fifo, buffers
        self.count = 0

    def wait(self) -> None:
        Path(self.fifo).read_bytes()

    def add(self) -> None:
        self.count += 1

    def burn(self, cpu_ns: int) -> None:
        burn(cpu_ns)

    def result(self) -> int:
        return self.count

    def write(self, index: int, value: int) -> None:
        self.buffers[index][...] = value

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def num_threads(self) -> int:
        return torch.get_num_threads()

    def unpicklable(self) -> Any:
        return lambda: None


@dataclass
class GateSpec:
    fifo: str
    buffers: tuple[torch.Tensor, ...] = ()

    def build(self, torch_device: str) -> Gate:
        return Gate(self.fifo, self.buffers)


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


@pytest.fixture(scope="module")
def loaded() -> Iterator[CpuDevice]:
    """One loaded device for the tests that leave it as it was: a worker takes seconds to start."""
    device = CpuDevice()
    device.load(GateSpec(""))
    yield device
    device.close()


def enqueue(device: CpuDevice, program: str, *args: Any) -> None:
    device.compute.enqueue(Work(program, args), label="test")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_host_goes_on_while_the_worker_is_busy(device: CpuDevice, fifo: Path) -> None:
    device.load(GateSpec(str(fifo)))
    event = device.event()
    enqueue(device, "wait")
    for _ in range(3000):  # far more than two steps ever have outstanding, and more than 64 KiB
        enqueue(device, "add")
    device.compute.record_event(event)
    assert not event.query()
    fifo.write_bytes(b"")  # blocks until the worker reads: the program was running all the while
    event.synchronize()
    assert device.call(Work("result")) == 3000


def test_a_wait_blocked_before_the_work_ran_is_woken(device: CpuDevice, fifo: Path) -> None:
    device.load(GateSpec(str(fifo)))
    event = device.event()
    enqueue(device, "wait")
    device.compute.record_event(event)
    opener = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r}, 'wb').close()"])
    event.synchronize()
    assert opener.wait() == 0


def test_a_killed_worker_is_a_device_error_at_the_wait(device: CpuDevice, fifo: Path) -> None:
    device.load(GateSpec(str(fifo)))
    event = device.event()
    enqueue(device, "wait")
    device.compute.record_event(event)
    os.kill(device.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"cpu worker process died \(exit code -9\)"):
            event.synchronize()
    enqueue(device, "add")
    with pytest.raises(DeviceError, match="died"):
        device.compute.synchronize()
    with pytest.raises(DeviceError, match="died"):
        device.call(Work("result"))


def test_close_ends_the_process_even_in_the_middle_of_a_program(device: CpuDevice, fifo: Path) -> None:
    device.load(GateSpec(str(fifo)))
    enqueue(device, "wait")
    device.close()
    assert not is_alive(device.pid)


def test_a_forgotten_device_leaves_no_process_and_no_open_file() -> None:
    gc.collect()
    open_files = set(os.listdir("/dev/fd"))
    device = CpuDevice()
    pid, buffer = device.pid, device.host_buffer(10)
    del device
    gc.collect()
    assert not is_alive(pid)
    buffer[:] = 1  # outlives the device
    del buffer
    gc.collect()
    assert set(os.listdir("/dev/fd")) == open_files


def test_the_worker_ends_when_its_host_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, signal; from photon.device.cpu import CpuDevice; device = CpuDevice();"
        "print(device.pid, flush=True); device.compute.synchronize(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment())
    assert host.stdout is not None
    output = host.stdout.read()  # ends when the last process that holds the pipe is gone: the worker
    host.stdout.close()
    assert output.strip().isdigit()
    assert host.wait() == -signal.SIGKILL


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_several_host_buffers_and_views_of_them_are_the_workers_too(device: CpuDevice, fifo: Path) -> None:
    first, second = device.host_buffer(5), device.host_buffer(10_000)
    views = (first, second[8:24].view(torch.int32)[1::2], torch.zeros(2))
    device.load(GateSpec(str(fifo), views))
    for index, value in enumerate((7, -2, 9)):
        enqueue(device, "write", index, value)
    device.compute.synchronize()
    assert first.tolist() == [7] * 5
    assert second[8:24].view(torch.int32).tolist() == [0, -2, 0, -2]
    assert int(second.count_nonzero()) == 8
    assert views[2].tolist() == [0, 0]  # an ordinary tensor travels as a copy


def test_what_the_worker_is_made_of(loaded: CpuDevice) -> None:
    """One torch thread; nothing of the host's main module, whatever that is."""
    assert loaded.call(Work("num_threads")) == 1
    modules = loaded.call(Work("modules"))
    assert not {"gradio", "plotly", "app"} & set(modules)


def test_a_result_that_cannot_be_sent_is_the_callers_error(loaded: CpuDevice) -> None:
    with pytest.raises(DeviceError, match="unpicklable"):
        loaded.call(Work("unpicklable"))
    assert loaded.call(Work("num_threads")) == 1


def test_an_argument_that_is_not_plain_is_refused_at_the_enqueue(loaded: CpuDevice) -> None:
    with pytest.raises(ValueError, match="unmarshallable"):
        enqueue(loaded, "add", torch.int64)
    loaded.compute.synchronize()  # nothing was sent, nothing is waited for


def test_timing_events_are_bounded_and_the_bound_is_named() -> None:
    device = CpuDevice()
    events = [device.event(timing=True) for _ in range(4095)]
    assert len({event.cell for event in events}) == 4095
    with pytest.raises(DeviceError, match="4095 timing events"):
        device.event(timing=True)
    device.event()
    device.close()


def burn(cpu_ns: int) -> None:
    """Keep this thread's core busy for so long."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        pass


def test_a_metered_device_tells_working_from_waiting(fifo: Path) -> None:
    """The CPU clock of its events stands still while the worker is blocked."""
    device = CpuDevice(is_metered=True)
    device.load(GateSpec(str(fifo)))
    events = [device.event(timing=True) for _ in range(3)]
    device.compute.record_event(events[0])
    device.compute.enqueue(Work("wait"), label="test")
    device.compute.record_event(events[1])
    device.compute.enqueue(Work("burn", (20_000_000,)), label="test")
    device.compute.record_event(events[2])
    burn(20_000_000)
    fifo.write_bytes(b"")
    events[-1].synchronize()
    waited, worked = (device.cpu_ns(end) - device.cpu_ns(start) for start, end in itertools.pairwise(events))
    assert waited < device.time_ns(events[1]) - device.time_ns(events[0])
    assert waited < 20_000_000 <= worked
    device.close()


def test_no_thread_is_too_few() -> None:
    with pytest.raises(DeviceError, match="cannot run on 0 threads"):
        CpuDevice(num_threads=0)
