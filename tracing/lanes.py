"""Where a span lies on a timeline and how it is coloured: one definition for Python and the page.

    host.plan .. host.commit    one lane per host phase
    host.sync, host.injected    what lies inside them: waits that should not be, time added on purpose
    slot 0, slot 1              device work by slot, coloured by what it is: vision too, which is work of the
                                step's slot on the one compute stream and would look concurrent elsewhere
    copy                        transfers
    bubbles                     device idle although wanted

What follows a colon in a span's name is detail: "sync: Stream.synchronize" lies and counts as "sync".
A category is what a colour stands for. `category_of` and `lane_of` take the fields that decide;
`as_props` hands the same rules to the JavaScript side.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Category:
    """`name` is shown in the legend; `light` and `dark` are the colours on either background."""

    name: str
    light: str
    dark: str


CATEGORIES: dict[str, Category] = {
    "plan": Category("plan", "#8fa2d4", "#8b9fd8"),
    "launch": Category("launch", "#f28e4b", "#f29a5c"),
    "sample": Category("sample", "#d9b23f", "#dfbd55"),
    "wait": Category("wait", "#d7dbe2", "#465065"),
    "commit": Category("commit", "#55b491", "#58c29c"),
    "sync": Category("sync leak", "#1f2937", "#f3f4f6"),
    "injected": Category("injected", "#a47148", "#c08f62"),
    "vision": Category("vision", "#d969b3", "#e07fc2"),
    "prefill": Category("prefill", "#8759c4", "#a27ee4"),
    "decode": Category("decode", "#2069b8", "#4792e6"),
    "device_sample": Category("device sample", "#25a5c0", "#3fc1db"),
    "h2d": Category("H2D", "#7c9f35", "#9cc453"),
    "d2h": Category("D2H", "#b3a51c", "#d3c63f"),
    "other": Category("other", "#8b93a1", "#7f8898"),
    "bubble": Category("bubble", "#e5484d", "#f0565b"),
    "zombie": Category("zombie rows", "#cf1322", "#ff4d57"),
}
HOST_PHASES = ("plan", "launch", "sample", "wait", "commit")
LANES = (
    *(f"host.{phase}" for phase in HOST_PHASES),
    "host.sync",
    "host.injected",
    "host.other",
    "slot 0",
    "slot 1",
    "device",
    "copy",
    "bubbles",
)
OPTIONAL_LANES = frozenset(
    {"host.sync", "host.injected", "host.other", "device"}
)  # shown when something lies on them
DEVICE_LANES = ("slot 0", "slot 1", "device")


def phase_of(name: str) -> str:
    """What a span's name says without its detail."""
    return name.partition(":")[0]


def lane_of(track: str, name: str, slot: int) -> str:
    """The lane of a span; work of unknown names or slots has a lane as well."""
    if track == "host":
        lane = f"host.{phase_of(name)}"
        return lane if lane in LANES else "host.other"
    if track == "compute":
        return f"slot {slot}" if slot in (0, 1) else "device"
    return "copy"


def category_of(track: str, name: str, kind: str) -> str:
    """A key of CATEGORIES."""
    if track == "compute" and name == "sample":
        return "device_sample"
    if track == "compute" and name == "forward":
        return kind if kind in ("prefill", "decode") else "other"
    return phase_of(name) if phase_of(name) in CATEGORIES else "other"


def as_props() -> dict[str, object]:
    """The same, as the page's script reads it."""
    return {
        "categories": {k: [c.name, c.light, c.dark] for k, c in CATEGORIES.items()},
        "lanes": LANES,
        "optional": sorted(OPTIONAL_LANES),
        "hostPhases": HOST_PHASES,
    }
