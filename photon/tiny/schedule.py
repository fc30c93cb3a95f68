"""What is trained when: stages, learning rates, target widths."""

from __future__ import annotations

from dataclasses import dataclass

from photon.tiny.pool import Supply

WARMUP = 60


@dataclass(frozen=True)
class Stage:
    """One part of the schedule. Rates rise over WARMUP steps, hold, then fall linearly to floor * rate."""

    name: str
    steps: int
    supply: Supply
    vision: bool
    decoder: bool
    muon_rate: float
    adam_rate: float
    hold: float = 0.4
    floor: float = 0.02
    widen: bool = False
    """Start with wider targets around coordinate bins."""
    tokens: int = 112

    def rate(self, step: int) -> float:
        """Factor on both learning rates."""
        fall = (step - self.hold * self.steps) / max(1.0, (1 - self.hold) * self.steps)
        return min(1.0, (step + 1) / WARMUP) * min(1.0, 1 - (1 - self.floor) * fall)

    def sigma(self, step: int) -> float:
        """Width of coordinate targets, in bins of 1/1024."""
        done = step / self.steps
        wide = (8, 4, 2)[min(2, int(done / 0.03))] if self.widen and done < 0.09 else 1
        return 4.5 * wide


STAGES: tuple[Stage, ...] = (
    Stage(
        name="vision",
        steps=2400,
        supply=Supply(9, 1, 2.5, 0.3, 1500, 300, crowded=0.8),
        vision=True,
        decoder=False,
        muon_rate=0.02,
        adam_rate=2e-3,
        widen=True,
    ),
    Stage(
        name="decoder",
        steps=4500,
        supply=Supply(8, 4, 2.0, 1.2, 1500, 700),
        vision=False,
        decoder=True,
        muon_rate=0.02,
        adam_rate=2e-3,
        widen=True,
    ),
    Stage(
        name="joint",
        steps=1500,
        supply=Supply(8, 2, 2.5, 0.6, 1500, 400),
        vision=True,
        decoder=True,
        muon_rate=0.004,
        adam_rate=4e-4,
        hold=0.1,
    ),
)
