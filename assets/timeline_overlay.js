"use strict";
/* What is written and drawn over the plot, as one SVG: labels, the selection with its arrow, a marked range. */
(() => {
  const parts = window.photonTimelineParts, { escape } = parts;
  const MAX_ARROWS = 80, MAX_RIDERS = 600;

  class Overlay {
    constructor(svg) { this.svg = svg; }

    /* `t` is the Timeline; drawn in pixels of the frame */
    draw(t) {
      const full = t.plot._fullLayout;
      if (!full) return;
      const { _offset: x0, _length: width } = full.xaxis, y0 = full.yaxis._offset, height = full.yaxis._length;
      this.at = (time) => x0 + (width * (time - t.view[0])) / (t.view[1] - t.view[0]);
      this.limits = [x0, x0 + width]; this.y0 = y0; this.rows = new Map(t.rows.map((row) => [row.key, row]));
      const pieces = [this.range(t, y0, height), ...t.labels.map((l) => this.label(l)), this.hover(t)];
      if (t.options.arrows) pieces.push(...this.arrows(t));
      pieces.push(...this.selection(t));
      this.svg.innerHTML = `<defs><clipPath id="pt-clip"><rect x="${x0}" y="0" width="${width}" height="${y0 + height}"/></clipPath>
        <marker id="pt-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z"/></marker>
        </defs><g clip-path="url(#pt-clip)">${pieces.join("")}</g>`;
    }

    inside(start, end) { return this.at(end) >= this.limits[0] && this.at(start) <= this.limits[1]; }

    label({ text, from, y, ink }) {
      return `<text class="pt-label pt-${ink}" x="${(this.at(from) + 5).toFixed(1)}" y="${(this.y0 + y + 3.8).toFixed(1)}">${escape(text)}</text>`;
    }

    box({ lane, start, end }, name) {
      const row = this.rows.get(lane);
      if (!row || !this.inside(start, end)) return "";
      const x = Math.max(this.at(start), this.limits[0] - 9), width = Math.max(Math.min(this.at(end), this.limits[1] + 9) - x, 1);
      return `<rect class="pt-box ${name}" x="${x - 1}" y="${this.y0 + row.top - 1}" width="${width + 2}" height="${row.bottom - row.top + 2}" rx="2"/>`;
    }

    hover(t) { return t.hovered?.lane ? this.box(t.hovered, "pt-hovered") : ""; }

    range(t, y, height) {
      const what = t.marked ?? (t.selected?.type === "range" ? t.selected : null);
      if (!what) return "";
      const [start, end] = [what.start, what.end].sort((a, b) => a - b), x = this.at(start), width = Math.max(this.at(end) - x, 1);
      return `<rect class="pt-range" x="${x}" y="${y}" width="${width}" height="${height}"/>`
        + `<text class="pt-label pt-own pt-middle" x="${x + width / 2}" y="${y + height - 6}">${parts.length(end - start)}</text>`;
    }

    arrow([host, device], name) { // from the end of the host's span to the start of the device's
      const from = host && this.rows.get(host.lane), to = device && this.rows.get(device.lane);
      if (!from || !to || !this.inside(host.end, device.start)) return "";
      const x1 = this.at(host.end), y1 = this.y0 + (from.top + from.bottom) / 2, x2 = this.at(device.start), y2 = this.y0 + (to.top + to.bottom) / 2;
      const bend = Math.max(Math.abs(x2 - x1) / 2, 14);
      return `<path class="pt-arrow ${name}" marker-end="url(#pt-head)" d="M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}"/>`;
    }

    *arrows(t) { // of all launches on the screen
      const lane = t.store.lanes.get("host.launch");
      const first = lane.firstAfter(t.view[0]);
      if (lane.start[Math.min(first + MAX_ARROWS, lane.size - 1)] < t.view[1] && first + MAX_ARROWS < lane.size) return;
      for (let i = first; i < lane.size && lane.start[i] < t.view[1]; i++) yield this.arrow(t.store.launchOf(lane.step[i]), "pt-faint");
    }

    *selection(t) {
      const what = t.selected;
      if (what?.type === "bubble") {
        yield this.box({ ...what, lane: "bubbles" }, "pt-chosen");
        const work = t.figures.cause(what.start, what.end).work;
        if (work) yield* [this.box(work, "pt-same"), this.arrow(t.store.launchOf(work.step), "")];
      }
      if (what?.type === "request") yield* this.riders(t, what.id);
      if (what?.type !== "step") return;
      for (const span of t.store.spansOf(what.step)) yield this.box(span, "pt-same");
      const focus = what.focus;
      const isSample = focus && (focus.lane === "host.sample" || focus.category === "device_sample");
      const pair = isSample ? t.store.sampleOf(what.step) : t.store.launchOf(what.step);
      yield this.box(focus ?? t.store.workOf(what.step) ?? { lane: "" }, "pt-chosen");
      yield this.arrow(pair, "");
    }

    *riders(t, id) { // the device spans in which a request had a row
      const r = t.store.requests.get(id);
      if (r && this.rows.has(`request ${r.lane}`)) yield this.box({ lane: `request ${r.lane}`, start: r.arrival ?? t.view[0], end: r.release ?? r.end ?? t.store.latest }, "pt-chosen");
      let n = 0;
      for (const key of parts.DEVICE_LANES) {
        const lane = t.store.lanes.get(key);
        for (let i = lane.firstAfter(t.view[0]); i < lane.size && lane.start[i] < t.view[1] && n < MAX_RIDERS; i++) {
          if (!t.store.rows.get(lane.step[i])?.includes(id)) continue;
          n++;
          yield this.box({ lane: key, start: lane.start[i], end: lane.end[i] }, "pt-same");
        }
      }
    }
  }

  Object.assign(parts, { Overlay });
})();
