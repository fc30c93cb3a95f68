"use strict";
/* What lies at a point of the plot, and how the tooltip describes it. */
(() => {
  const parts = window.photonTimelineParts, { length, instant } = parts;
  const REACH_PX = 3; // so far from a narrow span still means it

  /* -> {type: "span" | "bubble" | "request", lane, start, end, ...} at (x, y) pixels of the plot, or null */
  function pick(t, x, y) {
    const full = t.plot._fullLayout;
    if (!full) return null;
    const share = (x - full.xaxis._offset) / full.xaxis._length;
    if (share < 0 || share > 1) return null;
    const time = t.view[0] + share * (t.view[1] - t.view[0]), px = (t.view[1] - t.view[0]) / full.xaxis._length;
    const row = t.rows.find((r) => y - full.yaxis._offset >= r.top - 2 && y - full.yaxis._offset <= r.bottom + 2);
    if (!row || row.key === "counter") return null;
    if (row.key === "bubbles") return bubbleAt(t, time, px);
    if (row.key.startsWith("request ")) return requestAt(t, row, time, px);
    return spanAt(t, row.key, time, px);
  }

  function spanAt(t, key, time, px) {
    const lane = t.store.lanes.get(key), reach = REACH_PX * px;
    let best = -1, near = Infinity;
    for (let i = lane.firstAfter(time - reach); i < lane.size && lane.start[i] <= time + reach; i++) {
      const off = Math.max(lane.start[i] - time, time - lane.end[i], 0);
      if (off <= reach && off <= near) { best = i; near = off; }
    }
    return best < 0 ? null : { type: "span", ...t.store.spanAt(key, best) };
  }

  function bubbleAt(t, time, px) {
    const reach = t.view[1] - t.view[0], set = t.figures.bubbles(Math.max(t.view[0] - reach, t.store.forgot), t.view[1] + reach);
    for (let i = 0; i < set.length; i += 2) {
      if (set[i] <= time + REACH_PX * px && set[i + 1] >= time - REACH_PX * px) return { type: "bubble", lane: "bubbles", start: set[i], end: set[i + 1] };
    }
    return null;
  }

  function requestAt(t, row, time, px) {
    for (const { r, start, gone } of t.store.living(time - REACH_PX * px, time + REACH_PX * px)) {
      if (row.key === `request ${r.lane}`) return { type: "request", id: r.id, lane: row.key, start, end: gone };
    }
    return null;
  }

  // -- in words: {title, note, lines: [[name, value], ...]}

  function describe(t, what) {
    return { span: describeSpan, bubble: describeBubble, request: describeRequest }[what.type](t, what);
  }

  function describeSpan(t, s) {
    const lines = [["start", instant(s.start - t.origin)], ["length", length(s.end - s.start)]];
    if (s.rows) lines.push(["rows", s.rows]);
    if (s.zombies) lines.push(["zombies", s.zombies]);
    if (s.padding) lines.push(["padding", s.padding]);
    const isSync = s.category === "sync" || s.category === "injected";
    const title = s.category === "other" || isSync ? s.name : t.config.categories[s.category][0];
    const note = [s.step >= 0 && `step ${s.step}`, s.slot >= 0 && `slot ${s.slot}`].filter(Boolean).join(" · ");
    return { title, note, lines };
  }

  function describeBubble(t, b) {
    const why = t.figures.cause(b.start, b.end), lines = why.phases.slice(0, 3).map(([name, ns]) => [`host ${name}`, length(ns)]);
    if (why.latency) lines.push(["launch latency", length(why.latency)]);
    return { title: "bubble", note: length(b.end - b.start), lines };
  }

  function describeRequest(t, { id }) {
    const r = t.store.requests.get(id);
    if (!r) return { title: `request ${id}`, note: "not held any more", lines: [] };
    const start = r.arrival ?? t.store.forgot, end = r.end ?? t.store.latest, lines = [["tokens", r.tokens.length]];
    if (r.admitted !== undefined && r.arrival !== undefined) lines.push(["queued", length(r.admitted - start)]);
    if (r.first_token !== undefined && r.arrival !== undefined) lines.push(["first token after", length(r.first_token - start)]);
    lines.push([r.end === undefined ? "running for" : r.cancel === undefined ? "finished after" : "cancelled after", length(end - start)]);
    if (r.release > end) lines.push(["zombie for", length(r.release - end)]);
    return { title: `request ${id}`, note: r.end === undefined ? "running" : "", lines };
  }

  function bubbleSentence(t, { start, end }) { // how long, and before what; why: the server says, see timeline_panel.js
    const { work } = t.figures.cause(start, end);
    const before = work ? `before ${describeSpan(t, work).title} of step ${work.step} on slot ${work.slot}` : "and no device work ended it";
    return `The device idled ${length(end - start)} ${before}.`;
  }

  Object.assign(parts, { pick, describe, bubbleSentence });
})();
