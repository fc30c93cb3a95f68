"""Engine: pipelined decoding of many requests on one device. Read this second, after `pipeline.py`.

One tick (`advance`) is three verbs on three different steps:

    commit t-1   wait for its results, hand the tokens out, free its slot
    sample t     its masks need what the commit has just learned
    launch t+1   its inputs are gathered on the device, so it needs neither

Depth 1 is the same three verbs with nothing left in flight between ticks.

Owns: the tick, on one thread; other threads reach it through the worker's inbox.
Does not own: who is where (`roster.py`), what they hold (`residency.py`), which rows go next
(`scheduler.py`), buffers and streams (`runtime.py`), grammars (`skills/`).

Invariants asserted here: I3 0 <= inflight_refs <= 2, changed by launch and commit alone. I6 commit
before sample before launch. I8 nothing is launched past max_tokens, context or pages. I9 a zombie is
never streamed, counted or fed to its grammar.

Failure domains: an exception in one request's skill ends that request; one in launch or sample ends the
requests of that step; one in commit, where the device reports its failures, ends all and the engine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence as Items
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from photon.admission import Admission, EncodedImage
from photon.client import Client
from photon.config import EngineConfig
from photon.device.base import Device
from photon.errors import EngineDeadError, QueueFullError
from photon.handle import Handle
from photon.memory import choose_dtype
from photon.model.weights import Model, load_adapter
from photon.observe import Observer
from photon.pipeline import Pipeline, Step
from photon.residency import Residency
from photon.roster import Roster
from photon.runtime import Runtime
from photon.scheduler import Scheduler, StepPlan
from photon.sequence import FinishReason, Request, Sequence
from photon.tracer import Tracer
from photon.worker import Worker

log = logging.getLogger(__name__)


class Engine(Client):
    """Serves requests on one device.

    Args:
        model: from `load_model`; its weights are loaded onto the device here, which blocks.
        device: from `open_device`; the engine closes it.
        observers: receive spans, marks and step records on the engine's thread.
        dtype: of weights and KV cache: a torch name, or "auto", as `choose_dtype` takes it.
        threaded: run `advance` on an own thread. False: for callers of `run_until_idle`, as tests are.

    Raises:
        DeviceError: the model or the dtype does not fit the device, or the device failed.
    """

    def __init__(
        self,
        model: Model,
        device: Device,
        config: EngineConfig | None = None,
        *,
        observers: Items[Observer] = (),
        dtype: str = "auto",
        threaded: bool = True,
    ) -> None:
        self.model, self.device = model, device
        self.config, self.dtype = config or EngineConfig(), choose_dtype(dtype, device)
        self._runtime = Runtime(model, device, self.config, self.dtype)
        self._pipeline = Pipeline()
        self._scheduler = Scheduler(
            self.config,
            num_pages=self._runtime.num_pages,
            max_context=model.config.text.max_context,
            crop_budget=self._runtime.crop_budget,
        )
        self._tracer = Tracer(observers, device, model.config.tokenizer)
        self._residency = Residency(self._runtime)
        self._roster = Roster(
            self._residency,
            self._scheduler,
            self._tracer,
            eos_id=model.config.tokenizer.eos_id,
            now_ns=device.now_ns,
        )
        self._admission = Admission(model, self._scheduler, max_crops=self._runtime.shapes.crops)
        self._depth = self.config.depth
        self._num_steps = self._num_zombie_rows = self._max_in_flight = 0
        self._worker = Worker(self.advance, self._end, threaded=threaded)

    # One tick ------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Commit, sample, launch. Returns False when nothing is left to do."""
        if step := self._pipeline.oldest_sampled:
            self._commit(step)
        if step := self._pipeline.launched:
            self._sample(step)
        if self._pipeline.can_launch():
            self._launch()
        if self._depth == 1:
            self._finish_in_flight()
        return self._roster.has_work or not self._pipeline.is_empty

    def _finish_in_flight(self) -> None:
        """The tail of a blocking tick: the host waits for the device, and then the device for the host.

        The oldest first: in the tick after a change of depth two steps are in flight (I6).
        """
        while not self._pipeline.is_empty:
            if step := self._pipeline.oldest_sampled:
                self._commit(step)
            elif step := self._pipeline.launched:
                self._sample(step)

    def _launch(self) -> None:
        """Plan the next step and enqueue its forward."""
        plan_start = self._tracer.start()
        plan = self._scheduler.plan(self._roster.waiting, self._roster.running, self._residency.capacity())
        if plan is None:
            self._resolve_stall()
            return
        step = self._new_step(plan)
        self._tracer.host("plan", plan_start, step)
        launch_start = self._tracer.start(may_wait=False)
        self._roster.hold(step)
        try:
            self._roster.equip(step, plan)
            self._runtime.launch(step)
        except Exception as error:
            self._abandon(step, error)
            return
        self._pipeline.launch(step)
        self._scheduler.launched(plan)
        self._roster.launched(step)
        self._max_in_flight = max(self._max_in_flight, len(self._pipeline.in_flight))
        self._tracer.host("launch", launch_start, step)

    def _sample(self, step: Step) -> None:
        """Masks from the state that the last commit left, then sampling and the copy to the host."""
        start = self._tracer.start(may_wait=False)
        try:
            self._runtime.sample(step, self._roster.masks(step))
        except Exception as error:
            self._pipeline.abandon(step)
            self._abandon(step, error)
            return
        self._pipeline.sample(step)
        self._tracer.host("sample", start, step)

    def _commit(self, step: Step) -> None:
        """Wait for the step's tokens and hand them out; zombies are dropped and released."""
        self._pipeline.begin_commit(step)
        wait_start = self._tracer.start()
        self._runtime.wait(step)
        self._tracer.host("wait", wait_start, step)
        now, tokens = self.device.now_ns(), self._runtime.results(step)
        commit = self._tracer.before_commit(step, self._runtime.slots[step.slot], tokens, now)
        num_zombies = step.num_zombies
        self._num_zombie_rows += num_zombies
        self._residency.keep_prefixes(step)
        delivered = self._roster.deliver(step, tokens, now)
        if commit:
            self._tracer.after_commit(commit, delivered)
        self._pipeline.end_commit(step)
        self._tracer.host("commit", now, step, num_zombies)

    def _new_step(self, plan: StepPlan) -> Step:
        slot, count = self._pipeline.free_slot(), len(plan.rows)
        assert slot is not None, "I5: no free slot"
        self.device.host_phase("plan", count)
        padded = self._runtime.buckets.rows(count) if plan.kind == "decode" else count
        self._num_steps += 1
        return Step(self._num_steps, slot, plan.kind, plan.rows, padded)

    def _resolve_stall(self) -> None:
        """The youngest gives way or the last ends; here alone, so no page is fenced by a step in flight."""
        if not self._pipeline.is_empty or not self._roster.has_work:
            return
        assert self._roster.running, "I11: the first waiting request does not fit an empty pool"
        if len(self._roster.running) > 1:
            self._roster.preempt_youngest()
        else:
            self._roster.finish(self._roster.running[0], FinishReason.LENGTH)

    def _abandon(self, step: Step, error: BaseException) -> None:
        """A step that will not be committed. The fence comes first: part of it may be enqueued already."""
        log.error("step %d failed", step.step_id, exc_info=error)
        self._runtime.fence()
        self._roster.drop(step, error)

    # For callers ---------------------------------------------------------------------------------

    def submit(self, request: Request) -> Handle:
        """Check, decode and queue a request; returns when it waits for admission.

        Raises:
            InvalidRequestError: it is wrong or, as QueueFullError, too many wait; nothing was queued.
            EngineDeadError: the engine has ended.
        """
        return self.submit_all([request])[0]

    def submit_all(self, requests: Items[Request]) -> list[Handle]:
        """As `submit`, for several that arrive at once: they are batched alike each time. All or none."""
        arrival_ns, most = self.device.now_ns(), self.config.max_waiting
        if (num_ahead := self._roster.num_ahead) + len(requests) > most:
            remedy = "try again later" if len(requests) <= most else "submit fewer at once"
            raise QueueFullError(f"{num_ahead} requests are waiting, and only {most} may; {remedy}.")
        sequences = [self._admission.prepare(request) for request in requests]
        handles = [Handle(s, arrival_ns, self.device.now_ns(), partial(self._cancel, s)) for s in sequences]
        with self._roster.arrival(sequences):
            self._worker.post(lambda: self._roster.accept(sequences, handles))
        return list(handles)  # the caller's own: the engine reads its list at the next tick

    def _cancel(self, sequence: Sequence) -> None:
        with contextlib.suppress(EngineDeadError):
            self._worker.post(lambda: self._roster.cancel(sequence))

    def encode_image(self, image: Any) -> EncodedImage:
        """Decode and crop an image once, for several requests. Raises ImageError."""
        return self._admission.encode_image(image)

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Make a LoRA file usable as settings={"adapter": name}; blocks.

        A name loaded again means the new file for later requests; earlier ones keep theirs.
        Raises CheckpointError when the file does not fit the model.
        """
        adapter = load_adapter(path, self.model.config, self.config.max_lora_rank)
        adapter_id = self._admission.new_adapter_id()
        self._worker.call(lambda: self._runtime.register_adapter(adapter_id, adapter))
        self._admission.adapter_ids[name] = adapter_id

    @property
    def depth(self) -> int:
        """Steps in flight: 1 blocking, 2 pipelined."""
        return self._depth

    def set_depth(self, depth: int) -> None:
        """Change the depth between two ticks, for all requests; blocks until done.

        `stats()["max_in_flight"]` starts anew: it is the most since the last change.
        """
        replace(self.config, depth=depth)  # checks the value

        def change() -> None:
            self._depth, self._max_in_flight = depth, 0

        self._worker.call(change)

    def stats(self) -> dict[str, Any]:
        """One consistent snapshot, taken between two ticks; blocks until then. Works on a dead engine."""
        try:
            return self._worker.call(self._snapshot)
        except EngineDeadError:
            return self._snapshot()

    def _snapshot(self) -> dict[str, Any]:
        return {
            "alive": self._worker.death is None,
            "depth": self._depth,
            "steps": self._num_steps,
            "zombie_rows": self._num_zombie_rows,
            "in_flight_steps": len(self._pipeline.in_flight),
            "max_in_flight": self._max_in_flight,
            **self._roster.stats(),
        }

    def _end(self, cause: BaseException) -> None:
        """On the worker's death: nothing will be committed any more."""
        self._pipeline = Pipeline()
        self._roster.fail_all(cause)

    def check(self) -> None:
        """Assert the invariants that span several objects; for tests, between two ticks."""
        self._residency.check(self._roster.resident)
        held = [sequence for step in self._pipeline.in_flight for sequence in step.rows]
        for sequence in self._roster.resident:
            assert sequence.inflight_refs == held.count(sequence), "I3: refs differ from the steps in flight"

    def run_until_idle(self, *, max_ticks: int | None = None) -> int:
        """Only with threaded=False: tick until nothing is left to do; returns the number of ticks."""
        return self._worker.run_until_idle(max_ticks=max_ticks)

    def close(self) -> None:
        """End the engine: open requests fail, the device is closed; idempotent, blocks."""
        self._worker.stop(EngineDeadError("it was closed"))
        self.device.close()
