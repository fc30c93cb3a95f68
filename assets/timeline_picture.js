"use strict";
/* One drawing of a view: rectangles of all spans in it, as few as the screen can show.

   The cost depends on the rectangles on the screen, not on the spans held: the view is cut out by binary search,
   spans narrower than a pixel are gathered in cells of three pixels whose opacity tells how full they are, and all
   rectangles of a colour are one SVG path, in pixels: plotly.js would parse every number of a shape's path again. */
(() => {
  const parts = window.photonTimelineParts, { Lane } = parts;
  const CELL_PX = 3, LABEL_PX = 6.4;
  const BUCKETS = [0.34, 0.66, 1]; // opacity of a cell that is < 50 %, < 85 %, more than 85 % full
  const FAINT = 0.1;
  const SLOTS = [["#2069b8", "#4792e6"], ["#c2571a", "#f0894a"]];
  const REQUESTS = [["#2f6fc4", "#5b9bf0"], ["#d0661f", "#f0914f"], ["#2c9a6a", "#4cc791"], ["#a14cb8", "#c583da"], ["#b08a00", "#dcb842"],
    ["#c33f6b", "#ee7aa0"], ["#1f97a8", "#4fc6d6"], ["#6a62d0", "#9a93f2"], ["#6f8f1f", "#a6c653"], ["#8d6048", "#c39a82"]];

  class Paths { // collects rectangles per (colour, opacity); each becomes one path
    constructor(toX) { this.toX = toX; this.parts = new Map(); this.count = 0; }

    part(colour, opacity) {
      const key = `${colour}|${opacity}`;
      if (!this.parts.has(key)) this.parts.set(key, { colour, opacity, pieces: [] });
      this.count++;
      return this.parts.get(key).pieces;
    }

    add(colour, opacity, start, end, top, bottom) {
      const x = this.toX(start);
      this.part(colour, opacity).push(`M${x} ${top.toFixed(1)}H${this.toX(end)}V${bottom.toFixed(1)}H${x}Z`);
    }

    polygon(colour, opacity, points) {
      this.part(colour, opacity).push(`M${points.map(([t, y]) => `${this.toX(t)},${y.toFixed(1)}`).join("L")}Z`);
    }

    html() { return [...this.parts.values()].map((p) => `<path fill="${p.colour}" opacity="${p.opacity}" d="${p.pieces.join("")}"/>`).join(""); }
  }

  const bucket = (share) => BUCKETS[share < 0.5 ? 0 : share < 0.85 ? 1 : 2];

  /* Calls wide(i) for spans of at least a pixel and cell(start, end, first, last, busy) for each three-pixel cell of
     narrower ones, `first..last` being those in it. Cells lie on a fixed grid, so that they do not flicker when the
     view moves. */
  function gather(lane, a, b, px, wide, cell) {
    const size = CELL_PX * px;
    let first = -1, last = -1, at = NaN, busy = 0;
    const flush = () => { if (first >= 0) cell(at * size, (at + 1) * size, first, last, busy); first = -1; };
    for (let i = lane.firstAfter(a); i < lane.size && lane.start[i] < b; i++) {
      const length = lane.end[i] - lane.start[i];
      if (length >= px) { wide(i); continue; }
      const index = Math.floor(lane.start[i] / size);
      if (index !== at) { flush(); at = index; busy = 0; }
      if (first < 0) first = i;
      last = i; busy += length;
    }
    flush();
  }

  function longest(lane, first, last) { // a span of the category that fills most of spans first..last
    const sums = {};
    let best = first;
    for (let i = first; i <= last; i++) {
      const c = lane.category[i];
      sums[c] = (sums[c] ?? 0) + lane.end[i] - lane.start[i];
      if (sums[c] > (sums[lane.category[best]] ?? 0)) best = i;
    }
    return best;
  }

  function deadShare(lane, first, last) { // zombies / rows over spans first..last
    let rows = 0, dead = 0;
    for (let i = first; i <= last; i++) { rows += lane.rows[i]; dead += lane.zombies[i]; }
    return dead / Math.max(rows, 1);
  }

  class Picture {
    /* from..to is drawn, left..right of it is on the screen; px is a pixel in ns. */
    constructor({ store, figures, options, dark, view, margin, px }) {
      const [left, right] = view;
      Object.assign(this, { store, figures, options, dark, px, left, right, from: left - margin, to: right + margin,
        paths: new Paths((t) => ((t - left) / px).toFixed(1)), labels: [] });
    }

    draw(rows) { // -> SVG, x = 0 at the left of the view; `labels` says what is written on it
      for (const row of rows) {
        if (row.key === "bubbles") this.drawBubbles(row, rows);
        else if (row.key === "counter") this.drawCounter(row);
        else if (!row.key.startsWith("request ")) this.drawLane(row);
      }
      this.drawRequests(new Map(rows.filter((row) => row.key.startsWith("request ")).map((row) => [row.key, row])));
      return this.paths.html();
    }

    colour(category) { return this.store.config.categories[category][this.dark ? 2 : 1]; }

    requestColour(id) { return REQUESTS[((id % REQUESTS.length) + REQUESTS.length) % REQUESTS.length][Number(this.dark)]; }

    colourOf(lane, i) {
      if (this.options.colour === "slot" && lane.slot[i] in SLOTS) return SLOTS[lane.slot[i]][Number(this.dark)];
      return this.colour(this.store.categories[lane.category[i]]);
    }

    label(text, start, end, y, ink) { // where there is room for it on the visible part
      const from = Math.max(start, this.left), room = (Math.min(end, this.right) - from) / this.px - 8;
      if (room > text.length * LABEL_PX) this.labels.push({ text, from, y, ink });
      return room > text.length * LABEL_PX;
    }

    // -- lanes of spans

    drawLane(row) {
      const lane = this.store.lanes.get(row.key), { top, bottom } = row, zombies = [], isDevice = row.group === "device";
      let run = null; // neighbouring cells that look the same are one rectangle
      const flush = () => { if (run) this.paths.add(run.colour, run.opacity, run.start, run.end, top, bottom); run = null; };
      gather(lane, this.from, this.to, this.px, (i) => {
        if (!(isDevice && this.options.colour === "request" && this.drawStripes(lane, i, row))) {
          this.paths.add(this.colourOf(lane, i), 1, lane.start[i], lane.end[i], top, bottom);
        }
        if (lane.zombies[i]) zombies.push([lane.start[i], lane.end[i], lane.zombies[i] / Math.max(lane.rows[i], 1)]);
        if (isDevice) this.labelSpan(lane, i, row);
      }, (start, end, first, last, busy) => {
        const dead = deadShare(lane, first, last), alone = first === last;
        if (alone) { start = lane.start[first]; end = Math.max(lane.end[first], start + this.px); }
        const cell = { start, end, colour: this.colourOf(lane, longest(lane, first, last)), opacity: alone ? 1 : bucket(busy / (end - start)) };
        if (run && run.end === start && run.colour === cell.colour && run.opacity === cell.opacity) run.end = end;
        else { flush(); run = cell; }
        if (dead) zombies.push([start, end, dead, 1]);
      });
      flush();
      if (!this.options.zombies || !isDevice) return;
      for (const [start, end, share, least = 3.5] of zombies) { // as high as their share of the rows, and high enough to be seen
        this.paths.add(this.colour("zombie"), 1, start, end, bottom - Math.max(share * (bottom - top), least), bottom);
      }
    }

    labelSpan(lane, i, row) {
      const category = this.store.categories[lane.category[i]], y = (row.top + row.bottom) / 2;
      if (category === "device_sample" || lane.step[i] < 0) return;
      const name = this.store.config.categories[category][0], ink = this.options.colour === "request" ? "own" : "light"; // stripes have many colours
      this.label(`${name} ${lane.step[i]}`, lane.start[i], lane.end[i], y, ink) || this.label(String(lane.step[i]), lane.start[i], lane.end[i], y, ink);
    }

    drawStripes(lane, i, row) { // a device span as one stripe per row, each in its request's colour
      const riders = this.store.rows.get(lane.step[i]);
      if (!riders || lane.end[i] - lane.start[i] < 6 * this.px) return false;
      const height = (row.bottom - row.top) / riders.length;
      riders.forEach((rider, k) => this.paths.add(this.requestColour(rider), 1, lane.start[i], lane.end[i],
        row.top + k * height, row.top + (k + 1) * height));
      return true;
    }

    drawBubbles(row, rows) {
      if (!this.options.bubbles) return;
      const red = this.colour("bubble"), lane = new Lane(), device = rows.filter((r) => r.group === "device" && r.key !== "counter");
      const set = this.figures.bubbles(Math.max(this.from, this.store.forgot), this.to);
      for (let i = 0; i < set.length; i += 2) lane.push({ start: set[i], end: set[i + 1] });
      gather(lane, -Infinity, Infinity, this.px, (i) => {
        if (device.length) this.paths.add(red, 0.1, lane.start[i], lane.end[i], device[0].top - 3, row.top);
        this.paths.add(red, 0.85, lane.start[i], lane.end[i], row.top, row.bottom);
        this.label(parts.length(lane.end[i] - lane.start[i]), lane.start[i], lane.end[i], (row.top + row.bottom) / 2, "light");
      }, (start, end, first, last, busy) => {
        const share = busy / (end - start); // a card's hand-overs, 2 us a step, are hardly any idle time
        this.paths.add(red, 0.85 * (share < 0.05 ? FAINT : bucket(share)), start, end, row.top, row.bottom);
      });
    }

    // -- rows of decode steps

    decodeSteps() { // [start, live, zombies, padding, end] of decode steps of all slots, in order of time
      const decode = this.store.categories.indexOf("decode"), steps = [];
      for (const lane of this.store.deviceLanes) {
        for (let i = Math.max(lane.firstAfter(this.from) - 1, 0); i < lane.size && lane.start[i] < this.to; i++) {
          if (lane.category[i] !== decode) continue;
          steps.push([lane.start[i], lane.rows[i] - lane.zombies[i], lane.zombies[i], lane.padding[i], lane.end[i]]);
        }
      }
      return steps.sort((x, y) => x[0] - y[0]);
    }

    drawCounter(row) { // live, zombie and padding rows stacked; the mean of each three pixels if steps are narrower
      const steps = this.decodeSteps(), colours = [this.colour("decode"), this.colour("zombie"), this.colour("wait")];
      const opacity = [0.55, 0.85, 0.7], runs = [null, null, null]; // steps of the same height are one rectangle
      const y = (count) => row.bottom - (count / (this.store.maxRows * 1.1)) * (row.bottom - row.top);
      const flush = (k) => { const r = runs[k]; if (r) this.paths.add(colours[k], opacity[k], r.start, r.end, y(r.high), y(r.low)); runs[k] = null; };
      for (let i = 0; i < steps.length;) {
        const start = steps[i][0], sums = [0, 0, 0];
        let n = 0, end = start;
        do {
          for (let k = 0; k < 3; k++) sums[k] += steps[i][k + 1];
          const next = i + 1 < steps.length ? steps[i + 1][0] : Infinity, length = steps[i][4] - steps[i][0];
          end = next - steps[i][4] < 3 * length ? next : steps[i][4];
          n++; i++;
        } while (i < steps.length && steps[i][0] - start < CELL_PX * this.px);
        let low = 0;
        for (let k = 0; k < 3; k++) {
          const high = low + sums[k] / n, old = runs[k];
          if (old && old.end === start && old.low === low && old.high === high) old.end = end;
          else { flush(k); if (high > low) runs[k] = { start, end, low, high }; }
          low = high;
        }
      }
      [0, 1, 2].forEach(flush);
    }

    // -- requests: queue, prefill, decode, a tick per token, finish mark, zombie tail

    drawRequests(rows) { // rows by key
      const narrow = new Map([...rows.keys()].map((key) => [key, new Lane()]));
      for (const { r, start, end, gone } of this.store.living(this.from, this.to)) {
        const key = `request ${r.lane}`, row = rows.get(key);
        if (row && gone - start < 2 * CELL_PX * this.px) narrow.get(key).push({ start, end: Math.max(gone, start + this.px) });
        else if (row) this.drawRequest(row, r, start, end, gone);
      }
      for (const [key, lane] of narrow) {
        const { top, bottom } = rows.get(key), trim = 0.08 * (bottom - top);
        const show = (start, end, busy) => this.paths.add(this.colour("decode"), 0.7 * bucket(busy / (end - start)), start, end, top + trim, bottom - trim);
        gather(lane, this.from, this.to, 2 * this.px, (i) => show(lane.start[i], lane.end[i], lane.end[i] - lane.start[i]),
          (start, end, first, last, busy) => show(start, end, busy));
      }
    }

    drawRequest(row, r, start, end, gone) {
      const middle = (row.top + row.bottom) / 2, half = (row.bottom - row.top) / 2;
      const first = Math.min(r.first_token ?? end, end), admitted = Math.min(r.admitted ?? first, first);
      const own = this.options.colour === "request" ? this.requestColour(r.id) : null;
      const bar = (colour, opacity, from, to, part = 1) => {
        const x0 = Math.max(from, this.from), x1 = Math.min(to, this.to);
        if (x1 > x0) this.paths.add(colour, opacity, x0, x1, middle - part * half, middle + part * half);
      };
      bar(this.colour("wait"), 1, start, admitted, 0.34);
      bar(own ?? this.colour("prefill"), own ? 0.9 : 0.8, admitted, first, 0.84);
      bar(own ?? this.colour("decode"), own ? 0.6 : 0.5, first, end, 0.84);
      this.drawTokens(r, middle, 0.84 * half);
      this.drawTail(end, gone, middle, 0.84 * half);
      if ((gone - start) / this.px < 24) return;
      if (r.arrival !== undefined) bar(this.colour("other"), 1, start, start + 1.5 * this.px, 0.7);
      if (r.end !== undefined && end > this.from && end < this.to) this.drawEnd(r, end, middle, half);
      if (half < 6) return;
      const text = `${parts.counted(r.tokens.length, "token")}`;
      const shown = r.tokens.length && this.label(text, first, end, middle, "own");
      if (!shown && first > admitted) this.label("prefill", admitted, first, middle, "light");
    }

    drawTokens(r, y, half) {
      const n = r.tokens.length, ink = this.dark ? "#0b0f19" : "#ffffff";
      if (n < 2 || (r.tokens[n - 1] - r.tokens[0]) / (n - 1) < 4 * this.px) return;
      for (const t of r.tokens) if (t > this.from && t < this.to) this.paths.add(ink, 0.85, t - this.px / 2, t + this.px / 2, y - half, y + half);
    }

    drawTail(start, end, y, half) { // red, hatched: finished, and still riding
      const red = this.colour("zombie"), px = this.px, from = Math.max(start, this.from), to = Math.min(end, this.to);
      if (to <= from) return;
      this.paths.add(red, 0.22, from, to, y - half, y + half);
      const slant = Math.min(2 * half * px, (to - from) / 2), step = 5 * px, width = 2 * px;
      if ((to - from) / px > 600) return;
      for (let x = from; x + slant + width <= to; x += step) {
        this.paths.polygon(red, 0.8, [[x, y + half], [x + width, y + half], [x + width + slant, y - half], [x + slant, y - half]]);
      }
    }

    drawEnd(r, time, y, half) { // a diamond: filled in the decode colour, red when cancelled
      const colour = this.colour(r.cancel === undefined ? "decode" : "zombie"), size = Math.min(half, 5), w = size * this.px;
      this.paths.polygon(colour, 1, [[time - w, y], [time, y - size], [time + w, y], [time, y + size]]);
    }
  }

  Object.assign(parts, { Picture });
})();
