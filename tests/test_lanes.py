"""Pins where spans lie and how they are coloured, and that the page's script is told the same."""

from __future__ import annotations

import json

import pytest

from tracing.lanes import CATEGORIES, LANES, OPTIONAL_LANES, as_props, category_of, lane_of


@pytest.mark.parametrize(
    ("track", "name", "lane", "category"),
    [
        ("host", "commit", "host.commit", "commit"),
        ("host", "sync: Stream.synchronize in Runtime.sample", "host.sync", "sync"),
        ("host", "injected: slow commit", "host.injected", "injected"),
        ("host", "detok: words", "host.other", "other"),
        ("host", "sample", "host.sample", "sample"),
        ("compute", "sample", "slot 1", "device_sample"),
        ("compute", "forward", "slot 1", "decode"),
        ("compute", "h2d", "slot 1", "h2d"),
        ("copy", "h2d", "copy", "h2d"),
        ("copy", "d2h", "copy", "d2h"),
    ],
)
def test_a_span_has_its_lane_and_its_colour(track: str, name: str, lane: str, category: str) -> None:
    assert lane_of(track, name, 1) == lane
    assert category_of(track, name, "decode") == category


def test_lanes_of_what_should_not_be_there_are_shown_only_when_it_is() -> None:
    assert {"host.sync", "host.injected"} <= OPTIONAL_LANES < set(LANES)


def test_colours_can_be_told_apart() -> None:
    for background in ("light", "dark"):
        colours = [getattr(category, background) for category in CATEGORIES.values()]
        assert len(set(colours)) == len(colours)


def test_the_page_is_told_all_of_it() -> None:
    props = json.loads(json.dumps(as_props()))
    assert list(props["categories"]) == list(CATEGORIES)
    assert props["lanes"] == list(LANES)
    assert set(props["optional"]) == OPTIONAL_LANES
