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
    packing: tuple[int, int] = (3, 56)
    """Rows of packed prompts per image, and tokens per row."""

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
        supply=Supply(18, 2, 5.0, 0.6, 3000, 600, crowded=0.8),
        vision=True,
        decoder=False,
        muon_rate=0.02,
        adam_rate=2e-3,
        widen=True,
    ),
    Stage(
        name="decoder",
        steps=2000,
        supply=Supply(12, 6, 2.0, 1.1, 2000, 900),
        vision=False,
        decoder=True,
        muon_rate=0.02,
        adam_rate=2e-3,
        hold=0.75,
        floor=0.7,
        widen=True,
    ),
    Stage(
        name="joint",
        steps=2500,
        supply=Supply(12, 4, 3.0, 1.0, 2000, 500, crowded=0.4, alike=0.7),
        vision=True,
        decoder=True,
        muon_rate=0.012,
        adam_rate=1.2e-3,
        hold=0.15,
        floor=0.01,
    ),
)
