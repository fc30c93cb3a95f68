"""Train the embedded model: `python -m photon.tiny.train --out runs/tiny`.

Three stages. `vision` teaches the encoder through dense labels of every patch; `decoder` teaches the text
model to point, detect, count and describe on frozen image embeddings; `joint` trains all at a low rate.

    process 0   draw batch | forward | backward \\            / update
    process 1   draw batch | forward | backward / mean grads  \\ update

Everything is a function of --seed and the step: a run that was stopped and resumed ends in the same bits.
Killed or finished, `--out` holds checkpoint.pt (to resume) and export/ (what `assets/tiny` holds).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from photon.model.config import ModelConfig
from photon.model.moondream import Moondream
from photon.tiny import setup
from photon.tiny.data import Encoder, Sample
from photon.tiny.export import export
from photon.tiny.forward import Auxiliary, decode, embed
from photon.tiny.losses import count_loss, decoder_loss, patch_loss
from photon.tiny.muon import Muon
from photon.tiny.pool import Source, crops, frozen_embeddings, labels
from photon.tiny.prompts import build_tokenizer
from photon.tiny.schedule import STAGES, Stage


@dataclass
class State:
    """All that a checkpoint holds."""

    model: Moondream
    aux: Auxiliary
    stage: int = 0
    step: int = 0
    cpu_s: float = 0.0


class Trainer:
    """One process of a run."""

    def __init__(
        self,
        out: Path,
        stages: tuple[Stage, ...],
        seed: int,
        *,
        rank: int = 0,
        ranks: int = 1,
        every: int = 200,
        sizes: setup.Sizes = setup.SIZES,
    ) -> None:
        self.out, self.stages, self.seed = out, stages, seed
        self.rank, self.ranks, self.every = rank, ranks, every
        self.tokenizer = build_tokenizer()
        self.raw = setup.raw_config(self.tokenizer, sizes)
        config = ModelConfig.from_dict(self.raw)
        self.encoder = Encoder(self.tokenizer, config.tokenizer)
        torch.manual_seed(seed)
        model = Moondream(config)
        setup.initialise(model, seed)
        self.state = State(model, Auxiliary(config))
        self.optimizers: list[torch.optim.Optimizer] = []

    def run(self) -> State:
        """Train from where the state stands to the end of the last stage."""
        resumed = self._load()
        for number in range(self.state.stage, len(self.stages)):
            self._stage(number, resumed)
            resumed = None
        return self.state

    def _stage(self, number: int, resumed: list[dict[str, Any]] | None) -> None:
        stage, state = self.stages[number], self.state
        state.stage = number
        names = select(stage)
        wanted = [p for n, p in named_parameters(state) if n.startswith(names)]
        for _, p in named_parameters(state):
            p.requires_grad_(any(p is w for w in wanted))
        state.model.region.coord_features.requires_grad_(False)
        state.model.region.size_features.requires_grad_(False)
        self.optimizers = make_optimizers(state, stage)
        for optimizer, saved in zip(self.optimizers, resumed or [], strict=False):
            optimizer.load_state_dict(saved)
        key = f"{self.seed}/{self.rank}/{stage.name}"
        source = Source(state.model.config, self.encoder, stage.supply.share(self.ranks), key)
        while state.step < stage.steps:
            report = self._step(stage, source)
            state.step += 1
            if state.step % 20 == 0:
                self._log(stage, report)
            if state.step % self.every == 0 or state.step == stage.steps:
                self._save()
        state.step = 0

    def _step(self, stage: Stage, source: Source) -> dict[str, float]:
        state, step = self.state, self.state.step
        before = cpu_seconds()
        samples = source.draw(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss, report = self._loss(stage, source, samples)
        loss.backward()
        self._average_gradients()
        for optimizer, rate in zip(self.optimizers, (stage.muon_rate, stage.adam_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * stage.rate(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.cpu_s += (cpu_seconds() - before) * self.ranks
        return report

    def _loss(self, stage: Stage, source: Source, samples: list[Sample]) -> tuple[Tensor, dict[str, float]]:
        model, aux, step = self.state.model, self.state.aux, self.state.step
        truth, sigma = labels(samples), stage.sigma(self.state.step)
        report: dict[str, float] = {}
        loss = torch.zeros(())
        if stage.vision:
            image, early = embed(model.vision, *crops(samples))
            part, seen = patch_loss(model, aux, image, early, truth, sigma)
            loss, report = loss + part * (0.5 if stage.decoder else 1.0), report | seen
        else:
            image = frozen_embeddings(model, samples)
        if stage.decoder:
            batch = source.prompts(step, samples, stage.packing)
            hidden, states = decode(model, image, batch)
            said, told = decoder_loss(model, hidden, batch, sigma)
            alike, known = count_loss(aux, states, truth)
            loss, report = loss + said + 0.5 * alike, report | told | known
        return loss, report

    def _average_gradients(self) -> None:
        params = [p for p in parameters(self.state) if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in params if p.grad is not None])
        if self.ranks > 1:
            dist.all_reduce(flat)
            flat /= self.ranks
        flat *= min(1.0, 1.0 / (float(flat.norm()) + 1e-6))
        start = 0
        for p in params:
            p.grad = flat[start : start + p.numel()].view_as(p)
            start += p.numel()

    def _log(self, stage: Stage, report: dict[str, float]) -> None:
        if self.rank:
            return
        line = {"stage": stage.name, "step": self.state.step, "cpu_s": round(self.state.cpu_s, 1)}
        text = json.dumps(line | {k: round(v, 4) for k, v in report.items()})
        print(text, flush=True)
        with (self.out / "log.jsonl").open("a") as log:
            log.write(text + "\n")

    def _save(self) -> None:
        if self.rank:
            return
        state = self.state
        saved = {
            "model": state.model.state_dict(),
            "aux": state.aux.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
            "where": (state.stage, state.step, state.cpu_s),
        }
        torch.save(saved, self.out / "checkpoint.new")
        os.replace(self.out / "checkpoint.new", self.out / "checkpoint.pt")
        export(state.model, self.raw, self.tokenizer, self.out / "export")

    def _load(self) -> list[dict[str, Any]] | None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return None
        saved = torch.load(path, weights_only=True)
        self.state.model.load_state_dict(saved["model"])
        self.state.aux.load_state_dict(saved["aux"])
        self.state.stage, self.state.step, self.state.cpu_s = saved["where"]
        if self.state.step >= self.stages[self.state.stage].steps:
            self.state.stage, self.state.step = self.state.stage + 1, 0
            return None
        return saved["optimizers"]


def cpu_seconds() -> float:
    """Processor time this process has used."""
    used = os.times()
    return used.user + used.system


def named_parameters(state: State) -> Iterator[tuple[str, nn.Parameter]]:
    yield from state.model.named_parameters()
    for name, p in state.aux.named_parameters():
        yield "aux." + name, p


def parameters(state: State) -> list[nn.Parameter]:
    return [p for _, p in named_parameters(state) if p.requires_grad]


def select(stage: Stage) -> tuple[str, ...]:
    """Name prefixes of what a stage trains."""
    image, text = (("vision.",) if stage.vision else ()), (("text.",) if stage.decoder else ())
    return (*image, *text, "region.", "aux.")


def make_optimizers(state: State, stage: Stage) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of blocks and projection, AdamW for everything else."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in named_parameters(state):
        if p.requires_grad:
            inner = p.ndim == 2 and (".blocks." in name or ".proj_mlp." in name)
            (matrices if inner else rest).append(p)
    adam = torch.optim.AdamW(rest, lr=stage.adam_rate, betas=(0.9, 0.98), weight_decay=0.02)
    return [Muon(matrices, lr=stage.muon_rate), adam]


def work(rank: int, ranks: int, out: Path, stages: tuple[Stage, ...], seed: int) -> None:
    """One process: join the others, train, leave."""
    torch.set_num_threads(1)
    if ranks > 1:
        meet = f"file://{(out / 'rendezvous').resolve()}"
        dist.init_process_group("gloo", meet, timedelta(hours=2), rank=rank, world_size=ranks)
    Trainer(out, stages, seed, rank=rank, ranks=ranks).run()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint, log, export; resumes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="each uses one thread")
    parser.add_argument("--steps", type=int, nargs=len(STAGES), help="of each stage")
    args = parser.parse_args()
    stages = STAGES
    if args.steps:
        stages = tuple(replace(s, steps=n) for s, n in zip(STAGES, args.steps, strict=True))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "rendezvous").unlink(missing_ok=True)
    context = multiprocessing.get_context("fork")
    team = [
        context.Process(target=work, args=(rank, args.processes, args.out, stages, args.seed))
        for rank in range(args.processes)
    ]
    for process in team:
        process.start()
    for process in team:
        process.join()
    if any(process.exitcode for process in team):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
