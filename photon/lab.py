"""Lab: an engine of its own for comparisons, with knobs that make a pipeline's costs visible.

    Injected.host_us      before every launch the host works this much longer       "injected: host time"
    Injected.commit_us    after every commit the host works this much longer        "injected: slow commit"
    Injected.sync_masks   before every sample the host waits for the device         "sync: ..."
                          as a blocking upload of masks makes it: a sync leak

LabEngine is the engine everybody uses, its verbs lengthened; what is injected is a span of its own and
part of the facts of every trace. Tokens never change. Nobody else's request meets the lab's engine: it
has its own device, which is opened at the first comparison and kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from photon.config import MAX_ROWS, EngineConfig
from photon.device import open_device
from photon.device.simulated import SimulatedDevice
from photon.engine import Engine
from photon.errors import DeviceError
from photon.memory import engine_bytes
from photon.model.weights import Model
from photon.observe import Observer
from photon.pipeline import Step
from photon.workload import Workload, WorkloadRun, check_whole

MAX_INJECTED_US = 50_000
_WARM_UP_TOKENS = 12
# no images are cached: both sides of a comparison do all of the work, whoever comes first
_CONFIG = EngineConfig(max_batch_size=MAX_ROWS, max_cached_images=0)


@dataclass(frozen=True)
class Injected:
    """Host work added to every step, in microseconds, and the sync leak. Checked once.

    Raises:
        InvalidRequestError: one sentence that names the value and its limits.
    """

    host_us: int = 0
    commit_us: int = 0
    sync_masks: bool = False

    def __post_init__(self) -> None:
        check_whole("host_us", self.host_us, 0, MAX_INJECTED_US)
        check_whole("commit_us", self.commit_us, 0, MAX_INJECTED_US)

    def __str__(self) -> str:
        """In words, for labels and traces; "" for nothing."""
        parts = [f"host time +{self.host_us} us a step"] if self.host_us else []
        parts += [f"slow commit +{self.commit_us} us a step"] if self.commit_us else []
        parts += ["synchronous mask upload"] if self.sync_masks else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Setting:
    """How one side of a comparison runs the workload; copies None = as many as the workload says."""

    depth: int = 2
    copies: int | None = None
    injected: Injected = Injected()

    def __post_init__(self) -> None:
        check_whole("depth", self.depth, 1, 2)

    def __str__(self) -> str:
        parts = [f"depth {self.depth}"]
        parts += [f"{self.copies} {'copy' if self.copies == 1 else 'copies'}"] if self.copies else []
        parts += [f"injected: {self.injected}"] if str(self.injected) else []
        return ", ".join(parts)


class LabEngine(Engine):
    """The engine with its verbs lengthened by what is injected; see `Engine` for its arguments."""

    injected = Injected()

    def inject(self, injected: Injected) -> None:
        """From the next tick on; blocks until then."""

        def change() -> None:
            self.injected = injected
            self._runtime.sync_masks = injected.sync_masks

        self._worker.call(change)

    def _launch(self) -> None:
        if self.injected.host_us:
            plan = self._scheduler.plan(
                self._roster.waiting, self._roster.running, self._residency.capacity()
            )
            slot = self._pipeline.free_slot()
            if plan is not None and slot is not None:  # only before a step that will be: planning is pure
                step = Step(self._num_steps + 1, slot, plan.kind, plan.rows, len(plan.rows))
                self._work("injected: host time", self.injected.host_us, step)
        super()._launch()

    def _commit(self, step: Step) -> None:
        super()._commit(step)
        if self.injected.commit_us:
            self._work("injected: slow commit", self.injected.commit_us, step)

    def _work(self, name: str, duration_us: int, step: Step) -> None:
        """Keep the host busy; sleeping would give away its core, which planning and committing do not."""
        start = self.device.now_ns()
        end = start + 1000 * duration_us
        if isinstance(self.device, SimulatedDevice):
            self.device.wait_until(end)
        while self.device.now_ns() < end:
            pass
        self._tracer.host(name, start, step)


def facts(engine: Engine) -> dict[str, str]:
    """What runs where, for the recorder of this engine's traces."""
    return {
        "device": engine.device.name,
        "model": engine.model.config.name,
        "dtype": engine.dtype,
        "depth": str(engine.depth),
        "clock_uncertainty_ns": str(engine.device.clock_uncertainty_ns),
    }


class Lab:
    """Runs workloads at one setting after the other, on one engine; one run at a time.

    Args:
        model: shared with the page's engine: its weights are on disk until the lab opens.
        device_name: as `open_device` takes it.

    Attributes:
        observers: those that are in the list when the engine opens hear of its steps.
    """

    def __init__(self, model: Model, device_name: str, dtype: str) -> None:
        self.model, self.device_name, self.dtype = model, device_name, dtype
        self.observers: list[Observer] = []
        self._lock = threading.Lock()
        self._engine: LabEngine | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        return self._engine is not None

    @property
    def memory_bytes(self) -> int:
        """What weights and KV pages of the lab's engine take on the device, about, once it is open."""
        return engine_bytes(self.model, _CONFIG, self.dtype)

    def facts(self) -> dict[str, str]:
        """What runs where and what is injected, for the recorder."""
        engine = self._engine
        if engine is None:
            return {}
        return facts(engine) | ({"injected": str(engine.injected)} if str(engine.injected) else {})

    def open(self) -> LabEngine:
        """The lab's engine; opened, which blocks, if it is not open yet or has died.

        Raises:
            DeviceError: it cannot be opened, or the lab is closed.
        """
        with self._lock:
            if self._engine is not None and not self._engine.stats()["alive"]:
                self._engine.close()
                self._engine = None
            if self._engine is None:
                self._engine = self._new_engine()
            return self._engine

    def _new_engine(self) -> LabEngine:
        if self._is_closed:
            raise DeviceError("The comparison engine is closed; start the app again.")
        device = open_device(self.device_name)
        try:
            return LabEngine(self.model, device, _CONFIG, observers=self.observers, dtype=self.dtype)
        except BaseException:
            device.close()
            raise

    def run(self, workload: Workload, setting: Setting) -> WorkloadRun:
        """The workload at a setting, ready to `finish`; blocks until the engine has the setting.

        Raises as `open` does, and InvalidRequestError for more copies than a workload may have.
        """
        workload = replace(workload, copies=setting.copies or workload.copies)
        engine = self.open()
        engine.set_depth(setting.depth)
        engine.inject(setting.injected)
        return WorkloadRun(engine, workload)

    def warm_up(self, workload: Workload, setting: Setting) -> WorkloadRun:
        """A short burst of the same work, ready to `finish`: the first steps of a shape are slow."""
        tokens = min(workload.num_tokens or _WARM_UP_TOKENS, _WARM_UP_TOKENS)
        short = replace(workload, rate_per_s=0.0, num_tokens=tokens, early_stops_percent=0.0)
        return self.run(short, replace(setting, injected=Injected()))

    def close(self) -> None:
        """End the engine, if it was opened, and refuse to open another; idempotent."""
        with self._lock:
            self._is_closed = True
            if self._engine is not None:
                self._engine.close()
                self._engine = None
