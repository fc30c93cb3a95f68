"""Draw the sample scenes of the page: `python -m photon.tiny.samples assets/samples`."""

from __future__ import annotations

import sys
from pathlib import Path

from photon.tiny.scenes import Style, draw_scene

LARGE = Style(
    short_side=(420, 700), aspect=(1.0, 2.0), min_radius=0.07, max_radius=0.2, min_things=3, max_things=7
)

SAMPLES: dict[str, tuple[int, Style]] = {
    "squares_and_triangle.png": (1002, LARGE),
    "hearts_on_paper.png": (1008, LARGE),
    "green_stars.jpg": (1011, LARGE),
    "night_mix.png": (1017, LARGE),
    "badges.jpg": (1025, LARGE),
    "column_of_circles.jpg": (1029, LARGE),
    "doodles.png": (1033, LARGE),
    "crosses_on_green.jpg": (1004, LARGE),
    "small.png": (21, Style(min_things=3)),
}
"""File name -> seed and style. Sizes run from one crop to eight, upright and wide."""


def main() -> None:
    """Write every sample into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (seed, style) in SAMPLES.items():
        draw_scene(seed, style).image.save(folder / name, quality=92)


if __name__ == "__main__":
    main()
