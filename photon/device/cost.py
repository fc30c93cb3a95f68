"""Cost models: how long each program takes on a GPU, and each phase of a step on its host.

    device   upload, forward (or vision, prefill), sample     on the compute stream
             upload_masks, fetch                              on the copy stream
    host     plan, launch, sample, commit                     each: so much per step, so much per row

Everything here is for Moondream 2 (2B) in bfloat16, in milliseconds, and is one of

- *published*: the forward, sampling and period of RTX 3090 and B200 at 1, 8 and 32 streams ("Popping the
  GPU Bubble", moondream.ai, 4 June 2026; engine_facts 6.1). Curves go through the published points.
- *derived*: `derived` below, from bandwidth and FLOPs; against the published points its forward is off
  by -22 % to +3 %, so read its figures as a direction.
- *fitted* to a trace (`photon/calibrate.py`), or *custom*: given.

Of the host only one figure per batch is published: blocking minus pipelined period, which is what the
pipeline hides: plan, launch, commit and the copy's latency. It is linear in the rows, to 0.01 ms. How it
divides among the phases (`SHARES`) is assumed, and moves nothing but the picture: the sum decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from photon.device.base import Work
from photon.errors import DeviceError

IMAGE_POSITIONS = 730  # BOS and 729 patches
WEIGHT_GB = 2.626  # read by one decode step: 24 blocks and the head
KV_GB = 830 * 196_608 / 1e9  # of one row: image, prompt and half an answer
CROP_TFLOP = 0.72  # 448 M weights x 729 patches x 2, and attention
TOKEN_TFLOP = 2 * 1.418e9 / 1e12
REQUEST_TFLOP = 9 * CROP_TFLOP + 770 * TOKEN_TFLOP  # a chart of 800 x 550 px is 9 crops
KERNELS_MS = 2.0
"""What RTX 3090 (1.9) and B200 (2.1) take at one row beyond reading weights and KV."""
COPY_MS = 0.02
SHARES = {"plan": 0.15, "launch": 0.45, "commit": 0.4, "sample": 0.15}
"""Of the hidden host time. Sampling comes on top: it lies under the forward at both depths."""


@dataclass(frozen=True)
class Curve:
    """base_ms + coefficient_ms * rows ** exponent."""

    base_ms: float
    coefficient_ms: float = 0.0
    exponent: float = 1.0

    def ns(self, rows: int) -> int:
        return round((self.base_ms + self.coefficient_ms * rows**self.exponent) * 1e6)

    def scaled(self, factor: float) -> Curve:
        return Curve(self.base_ms * factor, self.coefficient_ms * factor, self.exponent)


@dataclass(frozen=True)
class CostModel:
    """A GPU and its host.

    Attributes:
        name: for people. label: "published", "derived", "fitted" or "custom". source: where from.
        forward, sample: of a decode step, by rows.
        upload_ms: before each forward, on the compute stream: copies in, gather, gaps between kernels.
        copy_ms: of a copy on the copy stream, and until the host knows of it.
        prefill_token_ms: per position of a prefill, image included; at least one forward.
        crop_ms: vision, per crop.
        host: by phase ("plan", "launch", "sample", "commit"), by rows.
        start_ms: from enqueue to start on an idle stream.
    """

    name: str
    label: str
    source: str
    forward: Curve
    sample: Curve
    upload_ms: float
    copy_ms: float
    prefill_token_ms: float
    crop_ms: float
    host: Mapping[str, Curve]
    start_ms: float = 0.0

    def work_ns(self, work: Work) -> int:
        """How long the program takes on its stream; 0 for those that a step has not."""
        match work.program, work.args:
            case "decode", (_, rows, *_):
                return self.forward.ns(rows)
            case "prefill", (_, rows, length, has_image, *_):
                positions = rows * (length + (IMAGE_POSITIONS if has_image else 1))
                return max(self.forward.ns(rows), round(positions * self.prefill_token_ms * 1e6))
            case "prefill_cached", (_, rows, length, *_):
                return max(self.forward.ns(rows), round(rows * length * self.prefill_token_ms * 1e6))
            case "vision", (_, num_crops):
                return round(num_crops * self.crop_ms * 1e6)
            case "sample", (_, rows, *_):
                return self.sample.ns(rows)
            case "upload", _:
                return round(self.upload_ms * 1e6)
            case (("upload_masks" | "fetch"), _):
                return round(self.copy_ms * 1e6)
        return 0

    def host_ns(self, phase: str, rows: int) -> int:
        return self.host[phase].ns(rows) if phase in self.host else 0

    def step_ns(self, rows: int) -> int:
        """A decode step's time on the compute stream; 0 without rows."""
        return round(self.upload_ms * 1e6) + self.forward.ns(rows) + self.sample.ns(rows) if rows else 0


def host_phases(step_ms: float, row_ms: float) -> dict[str, Curve]:
    """Hidden host time per step and row, divided among the phases."""
    return {phase: Curve(step_ms * share, row_ms * share) for phase, share in SHARES.items()}


@dataclass(frozen=True)
class Gpu:
    """A data sheet: memory bandwidth, dense bfloat16 FLOPs, and requests per second of short answers.

    request_rate: ChartQA, direct answers, at the best batch (engine_facts 6.3, "Direct"), where prefill
    and vision are all that counts; None where none is published.
    """

    name: str
    bandwidth_gb_s: float
    tflops: float
    request_rate: float | None = None

    @property
    def prefill_tflops(self) -> float:
        """What prefill and vision reach: by the published rate, else 55 % of the data sheet."""
        return self.request_rate * REQUEST_TFLOP if self.request_rate else 0.55 * self.tflops


GPUS: dict[str, Gpu] = {
    "rtx3090": Gpu("RTX 3090", 936, 71),
    "l4": Gpu("L4", 300, 121, 7.8),
    "l40s": Gpu("L40S", 864, 362, 26.4),
    "a100": Gpu("A100", 1935, 312, 26.2),
    "h100": Gpu("H100", 3350, 989, 57.0),
    "h200": Gpu("H200", 4800, 989, 57.0),  # the rate is H100's: the same compute
    "b200": Gpu("B200", 8000, 2250, 93.7),
}


def published(
    key: str, forward: Curve, sample: Curve, upload_ms: float, host: tuple[float, float]
) -> CostModel:
    """Curves through the published points; host: hidden ms per step and per row, least squares."""
    gpu, (step_ms, row_ms) = GPUS[key], host
    return CostModel(
        gpu.name,
        "published",
        "step times from moondream.ai, 4 June 2026; prefill and the division of host time derived",
        forward=forward,
        sample=sample,
        upload_ms=upload_ms,
        copy_ms=COPY_MS,
        prefill_token_ms=TOKEN_TFLOP / gpu.prefill_tflops * 1e3,
        crop_ms=CROP_TFLOP / gpu.prefill_tflops * 1e3,
        host=host_phases(step_ms - COPY_MS, row_ms),
    )


def derived(gpu: Gpu) -> CostModel:
    """forward = KERNELS_MS + WEIGHT_GB / bandwidth + rows * KV_GB / bandwidth.

    Sampling, gaps and the host are the means of the two published machines; prefill and vision are their
    FLOPs over `prefill_tflops`.
    """
    per_gb = 1e3 / gpu.bandwidth_gb_s
    return CostModel(
        gpu.name,
        "derived",
        f"{KERNELS_MS:g} ms + ({WEIGHT_GB:g} GB + rows x {KV_GB:.3f} GB) / {gpu.bandwidth_gb_s:,.0f} GB/s; "
        "host and sampling are means of the published machines",
        forward=Curve(KERNELS_MS + WEIGHT_GB * per_gb, KV_GB * per_gb),
        sample=Curve(0.2),
        upload_ms=0.035,
        copy_ms=COPY_MS,
        prefill_token_ms=TOKEN_TFLOP / gpu.prefill_tflops * 1e3,
        crop_ms=CROP_TFLOP / gpu.prefill_tflops * 1e3,
        host=host_phases(0.384 - COPY_MS, 0.0316),
    )


PRESETS: dict[str, CostModel] = {
    "rtx3090": published(
        "rtx3090", Curve(4.2596, 0.6104, 0.6585), Curve(0.265, -0.065, -1.0), 0.03, (0.317, 0.02826)
    ),
    "b200": published("b200", Curve(1.4469, 1.0031, 0.24602), Curve(0.14), 0.04, (0.4515, 0.03501)),
} | {key: derived(gpu) for key, gpu in GPUS.items() if key not in ("rtx3090", "b200")}


def preset(name: str) -> CostModel:
    """The cost model of a GPU. Raises DeviceError naming those there are."""
    key = name.lower().replace(" ", "").replace("-", "")
    if key not in PRESETS:
        raise DeviceError(f"There is no GPU {name!r}; use one of {', '.join(GPUS)}.")
    return PRESETS[key]


def custom(
    *,
    forward_ms: float,
    row_ms: float = 0.0,
    sample_ms: float = 0.2,
    host_ms: float,
    host_row_ms: float = 0.0,
) -> CostModel:
    """A machine by five numbers: device and hidden host time of a step, and what each row adds to both."""
    return replace(
        PRESETS["h200"],
        name="custom",
        label="custom",
        source="step times given; prefill and vision as on H200",
        forward=Curve(forward_ms, row_ms),
        sample=Curve(sample_ms),
        host=host_phases(host_ms, host_row_ms),
    )


@dataclass(frozen=True)
class Published:
    """A row of the source's comparison (engine_facts 6.1): ms, mean answer length, gains in percent."""

    blocking_ms: float
    pipelined_ms: float
    tokens: int
    predicted_percent: float
    observed_percent: float


TABLE: dict[tuple[str, int], Published] = {
    ("RTX 3090", 1): Published(5.44, 5.10, 104, 5.7, 6.5),
    ("RTX 3090", 8): Published(7.52, 6.97, 113, 7.6, 7.8),
    ("RTX 3090", 32): Published(11.74, 10.52, 113, 11.1, 11.6),
    ("B200", 1): Published(3.11, 2.63, 115, 17.2, 17.6),
    ("B200", 8): Published(4.04, 3.30, 115, 22.2, 21.9),
    ("B200", 32): Published(5.55, 3.98, 104, 39.1, 35.4),
}
