"""Pins the engine's thread: commands run in order between ticks, nobody waits for ever when it ends."""

from __future__ import annotations

import gc
import threading

import pytest

from photon.errors import EngineDeadError
from photon.worker import Worker


class Machine:
    """Something to tick: `work` ticks are left; `log` has what happened."""

    def __init__(self, *, threaded: bool = False) -> None:
        self.work = 0
        self.log: list[str] = []
        self.fault: BaseException | None = None
        self.died = threading.Event()
        self.worker = Worker(self.tick, self.on_death, threaded=threaded)

    def tick(self) -> bool:
        self.log.append("tick")
        if self.fault is not None:
            raise self.fault
        self.work -= 1
        return self.work > 0

    def on_death(self, error: BaseException) -> None:
        self.log.append(f"death: {error}")
        self.died.set()

    def add(self, count: int) -> None:
        self.log.append(f"add {count}")
        self.work += count


def test_commands_run_before_the_next_tick_in_their_order() -> None:
    machine = Machine()
    machine.worker.post(lambda: machine.add(2))
    machine.worker.post(lambda: machine.add(1))
    assert machine.log == []
    machine.worker.run_until_idle()
    assert machine.log == ["add 2", "add 1", "tick", "tick", "tick"]


def test_ticks_can_be_counted_out() -> None:
    machine = Machine()
    machine.add(5)
    assert machine.worker.run_until_idle(max_ticks=2) == 2
    assert machine.work == 3


def test_a_tick_that_raises_is_the_end() -> None:
    machine = Machine()
    machine.fault = OSError("gone")
    machine.worker.run_until_idle()
    assert machine.log == ["tick", "death: gone"]
    with pytest.raises(EngineDeadError, match="gone"):
        machine.worker.post(lambda: None)
    with pytest.raises(EngineDeadError, match="gone"):
        machine.worker.call(lambda: 1)
    assert machine.worker.run_until_idle() == 0


def test_a_command_that_raises_is_the_end_and_those_behind_it_run_before_anybody_hears_of_it() -> None:
    """A request accepted in the very tick in which the engine dies must hear of it with the others."""
    machine = Machine()

    def fail() -> None:
        raise OSError("gone")

    machine.worker.post(fail)
    machine.worker.post(lambda: machine.add(1))
    machine.worker.run_until_idle()
    assert machine.log == ["add 1", "death: gone"]


def test_a_call_returns_and_raises_what_the_function_does() -> None:
    machine = Machine(threaded=True)
    assert machine.worker.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        machine.worker.call(lambda: 1 // 0)
    with pytest.raises(TimeoutError, match="mine"):
        machine.worker.call(raise_timeout)
    assert machine.worker.death is None
    machine.worker.stop(OSError("stopped"))


def raise_timeout() -> None:
    raise TimeoutError("mine")


def test_a_call_from_the_workers_own_thread_runs_at_once() -> None:
    machine = Machine(threaded=True)
    assert machine.worker.call(lambda: machine.worker.call(lambda: 5)) == 5
    machine.worker.stop(OSError("stopped"))


def test_stop_is_idempotent_and_says_why() -> None:
    machine = Machine(threaded=True)
    machine.worker.stop(OSError("first"))
    machine.worker.stop(OSError("second"))
    assert machine.log.count("death: first") == 1
    assert str(machine.worker.death) == "first"


def test_a_dying_worker_answers_the_calls_behind_its_death() -> None:
    """The command that kills it is followed by calls of eight threads: each returns or raises."""
    machine, hold = Machine(threaded=True), threading.Event()

    def fail() -> None:
        hold.wait()
        raise OSError("gone")

    machine.worker.post(fail)
    refused: list[EngineDeadError] = []

    def ask() -> None:
        try:
            machine.worker.call(lambda: 1)
        except EngineDeadError as error:
            refused.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    while machine.worker.num_pending < 8:
        pass
    hold.set()
    for thread in threads:
        thread.join(timeout=30)
    assert len(refused) == 8


class Trap:
    """Posts when it is collected, as a stream that nobody reads any more does."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.me = worker, self

    def __del__(self) -> None:
        self.worker.post(lambda: None)


def test_a_post_during_a_post_does_not_block() -> None:
    """The collector may run anywhere, so also inside `post`, on the same thread."""
    machine = Machine()

    def collect() -> None:
        Trap(machine.worker)
        with machine.worker._lock:
            gc.collect()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert machine.worker.num_pending == 1
