"use strict";
/* The live timeline: a column store (timeline_store.js) fed by server-sent events, drawn with plotly.js.

   stream -> Store (lanes of typed columns, requests) -> view -> rectangles -> one path per colour -> Plotly.react

   The cost of a redraw depends on the rectangles on the screen, not on the spans held: the view is cut out by
   binary search, spans narrower than a pixel are gathered in cells of three pixels whose opacity tells how full
   they are, and all rectangles of a colour are one `layout.shapes` path. Times are nanoseconds after the stream's
   base; milliseconds appear only in the figure. How the page calls it: tracing/ui/live.py. */
(() => {
  if (window.photonTimelineMount) return;

  const { Store, Lane, MAX_REQUEST_LANES } = window.photonTimelineStore;
  const MS = 1e6;
  const WINDOWS = { "20 ms": 20 * MS, "60 ms": 60 * MS, "250 ms": 250 * MS, "1 s": 1000 * MS, "4 s": 4000 * MS, run: 0 };
  const HALF = 0.38; // of a lane's height that a span fills on either side of its middle
  const CELL_PX = 3;
  const BUCKETS = [0.32, 0.64, 1]; // opacity of a cell that is < 50 %, < 85 %, more than 85 % full
  const LANE_PX = 22, REQUEST_PX = 18, ROWS_PX = 46, GAP_PX = 12, TOP_PX = 10, BOTTOM_PX = 30, RIGHT_PX = 16;
  const EPSILON = 2000; // shorter gaps are no bubbles
  const MIN_VIEW = 1000, DRAW_EVERY_MS = 230, OFFSCREEN_MS = 1000;

  // ---- rectangles --------------------------------------------------------------------------------------------

  class Paths { // collects rectangles per (axis, colour, opacity); each becomes one shape
    constructor(toX) { this.toX = toX; this.parts = new Map(); this.count = 0; }

    add(axis, colour, opacity, start, end, top, bottom) {
      const key = axis + "|" + colour + "|" + opacity;
      let part = this.parts.get(key);
      if (!part) this.parts.set(key, part = { axis, colour, opacity, rects: [] });
      const x = this.toX(start);
      part.rects.push(`M${x},${top.toFixed(3)}H${this.toX(end)}V${bottom.toFixed(3)}H${x}Z`);
      this.count++;
    }

    shapes() {
      return [...this.parts.values()].map((p) => ({ type: "path", path: p.rects.join(""), xref: "x", yref: p.axis,
        fillcolor: p.colour, opacity: p.opacity, line: { width: 0 }, layer: "between" }));
    }
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

  // ---- the component -----------------------------------------------------------------------------------------

  class Timeline {
    constructor(root, config, Plotly) {
      Object.assign(this, { root, config, P: Plotly, store: new Store(config), window: config.window, following: true,
        view: [0, WINDOWS[config.window] || 250 * MS], pinned: null, origin: 0, drawn: 0, draws: 0, times: [],
        requestLanes: 1, dirty: true, dragging: false, drawing: false, timer: 0, last: 0, onScreen: true, hovered: null, pointer: null });
      this.build();
      this.listen();
      this.connect();
      this.schedule();
    }

    build() {
      const kpis = this.config.kpis.map((k) => `<div class="pt-kpi" title="${k.formula}" data-key="${k.key}">
        <span class="pt-kpi-name">${k.name}</span><span class="pt-kpi-value">–</span><span class="pt-kpi-unit">${k.unit}</span>
        <span class="pt-meter"><i></i></span></div>`).join("");
      const windows = Object.keys(WINDOWS).map((w) => `<button type="button" data-window="${w}">${w}</button>`).join("");
      const legend = Object.entries(this.config.categories).filter(([key]) => !["other", "h2d"].includes(key))
        .map(([key, c]) => `<span class="pt-key"><i data-category="${key}"></i>${c[0]}</span>`).join("");
      this.root.innerHTML = `<div class="pt-kpis">${kpis}</div>
        <div class="pt-bar"><span class="pt-group"><button type="button" data-do="live"><b class="pt-dot"></b>Live</button>
        <button type="button" data-do="pause">Pause</button></span>
        <span class="pt-group" role="group" aria-label="window">${windows}</span>
        <span class="pt-legend">${legend}</span></div>
        <div class="pt-frame"><div class="pt-plot" role="img" aria-label="timeline of the engine's steps"></div><div class="pt-mark"></div>
        <div class="pt-empty">No steps yet. Press Run, and the steps appear here as they happen.</div></div>
        <div class="pt-help"><span><kbd>space</kbd> pause <kbd>w</kbd><kbd>s</kbd> zoom <kbd>a</kbd><kbd>d</kbd> move
        <kbd>f</kbd> fit the run · drag to move, wheel to zoom, double-click for live</span>
        <span class="pt-status"></span></div><div class="pt-tip"></div>`;
      const find = (name) => this.root.querySelector(".pt-" + name);
      Object.assign(this, { plot: find("plot"), frame: find("frame"), tip: find("tip"), mark: find("mark"), status: find("status"),
        empty: find("empty") });
      this.root.tabIndex = 0;
    }

    // -- stream

    connect() {
      this.source = new EventSource(new URL(this.config.stream, this.config.base));
      this.source.onmessage = (event) => this.receive(JSON.parse(event.data));
      this.source.onopen = () => { this.connected = true; this.showState(); };
      this.source.onerror = () => { this.connected = false; this.showState(); };
    }

    receive(message) {
      const touched = this.store.take(message);
      if (!touched) return;
      if (this.pinned && this.pinned.auto && this.newest() > this.pinned.end) this.live();
      if (this.following || (touched[0] < this.view[1] && touched[1] > this.view[0])) this.redraw();
      else this.showState();
    }

    newest() { // arrival of the newest request
      let time = -Infinity;
      for (const r of this.store.requests.values()) if (r.arrival > time) time = r.arrival;
      return time;
    }

    destroy() {
      this.source.close();
      this.observers.forEach((o) => o.disconnect());
      this.stopped.abort();
      clearTimeout(this.timer);
      this.P.purge(this.plot);
    }

    // -- the view

    lastRun() { // [start, end] of the newest stretch of demand
      const set = this.store.demand(this.store.forgot, this.store.latest);
      return set.length ? set.slice(-2) : null;
    }

    follow() {
      const end = this.store.latest, length = WINDOWS[this.window];
      const run = length ? null : this.lastRun();
      this.view = run ? padded(run) : [end - (length || 250 * MS), end];
    }

    live() { this.following = true; this.pinned = null; this.origin = 0; this.requestLanes = 1; this.redraw(); }

    pause() { this.following = false; this.pinned = null; this.redraw(); }

    setWindow(name) {
      this.window = name;
      if (this.following) { this.requestLanes = 1; this.redraw(); return; }
      const middle = (this.view[0] + this.view[1]) / 2, run = WINDOWS[name] ? null : this.lastRun();
      this.look(run ? padded(run) : [middle - WINDOWS[name] / 2, middle + WINDOWS[name] / 2]);
    }

    look(view, pinned = null) { // a view of the user's, or of the page's when pinned
      if (view[1] - view[0] < MIN_VIEW) return;
      Object.assign(this, { view, pinned, following: false });
      this.redraw();
    }

    windowOf(length) { return Object.keys(WINDOWS).find((name) => Math.abs(WINDOWS[name] - length) < 1); }

    zoom(factor, at = 0.5) {
      const [a, b] = this.view, fixed = a + at * (b - a);
      this.look([fixed - (fixed - a) * factor, fixed + (b - fixed) * factor]);
    }

    move(share) { const by = share * (this.view[1] - this.view[0]); this.look(this.view.map((t) => t + by)); }

    showRun(startNs, endNs) { // or one text "start,end"; an empty one is no run
      if (endNs === undefined) [startNs, endNs] = String(startNs).split(",");
      if (!startNs || !endNs) return;
      const start = this.store.relative(startNs), end = this.store.relative(endNs);
      this.origin = start; this.requestLanes = 1;
      this.look(padded([start, end]), { start, end, auto: true });
    }

    // -- when to draw

    redraw() { this.dirty = true; this.showState(); this.schedule(); }

    schedule() {
      if (this.timer || !this.dirty) return;
      const slow = Math.min(2 * (this.times.at(-1) || 0), 2000); // never more than half of the main thread
      const every = this.onScreen ? Math.max(this.following ? DRAW_EVERY_MS : 0, slow) : OFFSCREEN_MS;
      const wait = Math.max(0, this.last + every - performance.now());
      this.timer = setTimeout(() => requestAnimationFrame(() => { this.timer = 0; this.draw(); }), wait);
    }

    get visible() { return document.visibilityState === "visible" && this.frame.offsetParent !== null && this.frame.clientWidth > 0; }

    async draw() {
      if (!this.dirty || this.drawing || this.dragging || !this.visible) return; // whoever ends that state asks again
      this.dirty = false; this.drawing = true;
      this.last = performance.now();
      try {
        if (this.following) this.follow();
        const figure = this.figure();
        await this.P.react(this.plot, figure.data, figure.layout, figure.config);
        for (const path of this.plot.querySelectorAll(".shapelayer [data-index]")) { // plotly.js 4.1 leaves those behind
          if (Number(path.dataset.index) >= figure.layout.shapes.length) path.remove();
        }
        if (!this.draws++) this.listenToPlot();
        this.times.push(performance.now() - this.last);
        if (this.times.length > 41) this.times.shift();
        this.showKpis();
        this.showState();
      } finally { this.drawing = false; }
      if (this.pointer) this.point(this.pointer); // another span may lie there now
      this.schedule();
    }

    get redrawMs() { return [...this.times].sort((x, y) => x - y)[this.times.length >> 1] ?? null; }

    // -- the figure

    get dark() { return document.body.classList.contains("dark"); }

    colour(category) { return this.config.categories[category][this.dark ? 2 : 1]; }

    shownLanes() { return this.config.lanes.filter((k) => !this.config.optional.includes(k) || this.store.lanes.get(k).size); }

    figure() {
      const [a, b] = this.view, margin = this.following ? 0 : 0.4 * (b - a); // there to be dragged into sight
      const left = this.left = Math.max(96, 14 + 6.7 * Math.max(...this.titles().map((t) => t.length)));
      const width = Math.max(this.frame.clientWidth - left - RIGHT_PX, 100), px = (b - a) / width;
      const digits = Math.min(Math.max(Math.ceil(-Math.log10(px / MS)) + 2, 0), 6);
      const paths = new Paths((t) => ((t - this.origin) / MS).toFixed(digits));
      const lanes = this.shownLanes(), from = a - margin, to = b + margin;
      const bubbles = this.store.bubbles(Math.max(from, 0), Math.min(to, this.store.latest));
      this.drawBubbles(paths, bubbles, lanes, px);
      lanes.forEach((key, y) => this.drawLane(paths, this.store.lanes.get(key), y, from, to, px));
      this.drawRows(paths, from, to, px);
      const notes = this.drawRequests(paths, from, to, px, a, b);
      this.drawn = paths.count;
      return { data: this.dummies(a), layout: this.layout(lanes, paths.shapes(), notes, left),
        config: { displayModeBar: false, scrollZoom: true, doubleClick: false, responsive: false } };
    }

    drawLane(paths, lane, y, a, b, px) {
      const top = y - HALF, bottom = y + HALF, names = this.store.categories, red = this.colour("zombie");
      const colour = (i) => this.colour(names[lane.category[i]]), zombies = [];
      let run = null; // neighbouring cells that look the same are one rectangle
      const flush = () => { if (run) paths.add("y", run.colour, run.opacity, run.start, run.end, top, bottom); run = null; };
      gather(lane, a, b, px, (i) => {
        paths.add("y", colour(i), 1, lane.start[i], lane.end[i], top, bottom);
        if (lane.zombies[i]) zombies.push([lane.start[i], lane.end[i], lane.zombies[i] / Math.max(lane.rows[i], 1)]);
      }, (start, end, first, last, busy) => {
        const dead = deadShare(lane, first, last), alone = first === last;
        if (alone) { start = lane.start[first]; end = Math.max(lane.end[first], start + px); }
        const cell = { start, end, colour: colour(longest(lane, first, last)), opacity: alone ? 1 : bucket(busy / (end - start)) };
        if (run && run.end === start && run.colour === cell.colour && run.opacity === cell.opacity) run.end = end;
        else { flush(); run = cell; }
        if (dead) zombies.push([start, end, dead]);
      });
      flush();
      for (const [start, end, share] of zombies) paths.add("y", red, 1, start, end, bottom - Math.max(share, 0.14) * 2 * HALF, bottom);
    }

    drawBubbles(paths, set, lanes, px) {
      const red = this.colour("bubble"), y = lanes.indexOf("bubbles"), top = lanes.indexOf("slot 0") - 0.5, lane = new Lane("");
      for (let i = 0; i < set.length; i += 2) {
        if (set[i + 1] - set[i] > EPSILON) lane.push({ start: set[i], end: set[i + 1] });
      }
      gather(lane, -Infinity, Infinity, px, (i) => {
        paths.add("y", red, 0.11, lane.start[i], lane.end[i], top, y);
        paths.add("y", red, 0.8, lane.start[i], lane.end[i], y - HALF, y + HALF);
      }, (start, end, first, last, busy) => {
        paths.add("y", red, 0.8 * bucket(busy / (end - start)), start, end, y - HALF, y + HALF);
      });
    }

    decodeSteps(a, b) { // [start, live, zombies, padding, end] of decode steps of all slots, in order of time
      const decode = this.store.categories.indexOf("decode"), steps = [];
      for (const lane of ["slot 0", "slot 1", "device"].map((key) => this.store.lanes.get(key))) {
        for (let i = Math.max(lane.firstAfter(a) - 1, 0); i < lane.size && lane.start[i] < b; i++) {
          if (lane.category[i] !== decode) continue;
          steps.push([lane.start[i], lane.rows[i] - lane.zombies[i], lane.zombies[i], lane.padding[i], lane.end[i]]);
        }
      }
      return steps.sort((x, y) => x[0] - y[0]);
    }

    drawRows(paths, a, b, px) { // live, zombie and padding rows stacked; the mean of each three pixels if steps are narrower
      const steps = this.decodeSteps(a, b), colours = [this.colour("decode"), this.colour("zombie"), this.colour("wait")];
      const opacity = [0.55, 0.85, 0.7], runs = [null, null, null]; // steps of the same height are one rectangle
      for (let i = 0; i < steps.length;) {
        const start = steps[i][0], sums = [0, 0, 0];
        let n = 0, end = start;
        do {
          for (let k = 0; k < 3; k++) sums[k] += steps[i][k + 1];
          const next = i + 1 < steps.length ? steps[i + 1][0] : Infinity, length = steps[i][4] - steps[i][0];
          end = next - steps[i][4] < 3 * length ? next : steps[i][4];
          n++; i++;
        } while (i < steps.length && steps[i][0] - start < CELL_PX * px);
        let low = 0;
        for (let k = 0; k < 3; k++) {
          const high = low + sums[k] / n, old = runs[k];
          if (old && old.end === start && old.low === low && old.high === high) old.end = end;
          else {
            if (old) paths.add("y3", colours[k], opacity[k], old.start, old.end, old.low, old.high);
            runs[k] = high > low ? { start, end, low, high } : null;
          }
          low = high;
        }
      }
      runs.forEach((r, k) => r && paths.add("y3", colours[k], opacity[k], r.start, r.end, r.low, r.high));
    }

    drawRequests(paths, a, b, px, left, right) { // queue, prefill, decode, zombie tail, a tick per token; -> labels
      const notes = [], ink = this.dark ? "#0b0f19" : "#ffffff";
      for (const r of this.store.requests.values()) {
        const start = r.arrival ?? a, end = r.end ?? Math.min(this.store.latest, b), gone = Math.max(r.release ?? end, end);
        if (start >= b || gone <= a || r.lane >= MAX_REQUEST_LANES) continue;
        if (start < right && gone > left) this.requestLanes = Math.max(this.requestLanes, r.lane + 1);
        const first = r.first_token ?? end, admitted = Math.min(r.admitted ?? first, first), y = r.lane;
        const bar = (category, opacity, from, to, half = 0.36) => {
          const x0 = Math.max(from, a), x1 = Math.min(to, b);
          if (x1 > x0) paths.add("y2", this.colour(category), opacity, x0, x1, y - half, y + half);
        };
        bar("wait", 0.9, start, Math.min(admitted, end), 0.14);
        bar("prefill", 0.8, admitted, Math.min(first, end));
        bar("decode", 0.5, first, end);
        bar("zombie", 0.45, end, gone, 0.14);
        this.drawTokens(paths, r, ink, a, b, px);
        if (r.end !== undefined) bar(r.cancel === undefined ? "decode" : "zombie", 1, end - 2 * px, end);
        const x0 = Math.max(first, left), shown = Math.min(end, right) - x0;
        const text = r.tokens.length ? `r${r.id} · ${r.tokens.length} tok` : `r${r.id}`;
        if (shown > 7.5 * text.length * px && notes.length < 16) notes.push({ x: (x0 - this.origin) / MS, y, text });
      }
      const [text, paper] = this.dark ? ["#eef2fa", "rgba(20,32,56,.72)"] : ["#10213f", "rgba(255,255,255,.72)"];
      return notes.map((n) => ({ ...n, xref: "x", yref: "y2", showarrow: false, xanchor: "left", xshift: 4, bgcolor: paper,
        borderpad: 1, font: { size: 10, color: text } }));
    }

    drawTokens(paths, r, colour, a, b, px) {
      const n = r.tokens.length;
      if (n < 2 || (r.tokens[n - 1] - r.tokens[0]) / (n - 1) < 4 * px) return;
      for (const t of r.tokens) if (t > a && t < b) paths.add("y2", colour, 0.9, t - px / 2, t + px / 2, r.lane - 0.36, r.lane + 0.36);
    }

    titles() { return this.shownLanes().map((k) => (k.startsWith("slot") ? `${this.config.device} · ${k}` : k)); }

    dummies(a) { // an invisible point per axis pair: plotly draws a subplot only for a trace
      const x = [(a - this.origin) / MS];
      return ["y", "y2", "y3"].map((yaxis) => ({ x, y: [0], yaxis, mode: "markers", opacity: 0, hoverinfo: "skip" }));
    }

    layout(lanes, shapes, annotations, left) {
      const heights = [lanes.length * LANE_PX, this.requestLanes * REQUEST_PX, ROWS_PX], inner = heights.reduce((x, y) => x + y) + 2 * GAP_PX;
      const ink = this.dark ? "#aab4c6" : "#4b5563", grid = this.dark ? "#363a45" : "#e6e9ef";
      let top = 1;
      const [main, requests, rows] = heights.map((h) => { const d = [Math.max(top - h / inner, 0), top]; top = d[0] - GAP_PX / inner; return d; });
      const axis = { zeroline: false, fixedrange: true, showgrid: false, ticks: "" };
      return {
        height: inner + TOP_PX + BOTTOM_PX, width: this.frame.clientWidth, margin: { l: left, r: RIGHT_PX, t: TOP_PX, b: BOTTOM_PX },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: false, dragmode: "pan",
        uirevision: "photon", shapes, annotations,
        font: { family: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", size: 11, color: ink },
        xaxis: { range: this.view.map((t) => (t - this.origin) / MS), anchor: "y3", gridcolor: grid, zeroline: false,
          ticksuffix: " ms", tickformat: ",.6~f", nticks: 9, autorange: false, showticklabels: this.store.spans > 0 },
        yaxis: { ...axis, domain: main, range: [lanes.length - 0.5, -0.5], tickvals: lanes.map((_, i) => i), ticktext: this.titles() },
        yaxis2: { ...axis, domain: requests, range: [this.requestLanes - 0.5, -0.5], tickvals: [0], ticktext: ["requests"] },
        yaxis3: { ...axis, domain: rows, range: [0, this.store.maxRows * 1.15], tickvals: [0, this.store.maxRows],
          ticktext: ["0", `rows ${this.store.maxRows}`] },
      };
    }

    // -- numbers and state around it

    measured() { // the window of the figures: the run where one is shown, without the margin beside it
      if (this.pinned) return [this.pinned.start, this.pinned.end];
      return (this.following && this.window === "run" && this.lastRun()) || this.view;
    }

    showKpis() {
      const values = this.store.spans ? this.store.metrics(...this.measured()) : {};
      for (const card of this.root.querySelectorAll(".pt-kpi")) {
        const value = values[card.dataset.key] ?? null, kpi = this.config.kpis.find((k) => k.key === card.dataset.key);
        card.querySelector(".pt-kpi-value").textContent = value === null ? "–" : value.toLocaleString("en", {
          minimumFractionDigits: kpi.digits, maximumFractionDigits: kpi.digits });
        card.querySelector(".pt-meter i").style.width = `${Math.min(100, (100 * value) / (kpi.full || Infinity))}%`;
      }
    }

    showState() {
      const store = this.store, n = (v) => v.toLocaleString("en"), lost = store.dropped + store.skipped;
      const [from, to] = this.measured(), parts = store.spans ? [`figures over ${length(to - from)}`] : [];
      parts.push(`${n(store.spans)} spans`, `${n(this.drawn)} rects`);
      if (this.draws) parts.push(`${Math.round(this.redrawMs)} ms/draw`);
      if (lost) parts.push(`${n(lost)} dropped`);
      if (this.connected === false) parts.unshift("reconnecting");
      this.status.textContent = parts.join(" · ");
      const shown = this.following ? this.window : this.pinned ? "run" : this.windowOf(this.view[1] - this.view[0]);
      const state = this.following ? "live" : this.pinned ? "" : "pause";
      for (const button of this.root.querySelectorAll("button")) {
        button.setAttribute("aria-pressed", [state, shown].includes(button.dataset.do ?? button.dataset.window));
      }
      this.root.classList.toggle("pt-dark", this.dark);
      this.root.classList.toggle("pt-live", this.following);
      this.empty.hidden = store.spans > 0;
      for (const key of this.root.querySelectorAll("[data-category]")) key.style.background = this.colour(key.dataset.category);
    }

    // -- what lies under the pointer

    under(event) { // {title, lines, start, end, y} or null
      const full = this.plot._fullLayout;
      if (!full) return null;
      const box = this.plot.getBoundingClientRect(), x = event.clientX - box.left - full.xaxis._offset;
      if (x < 0 || x > full.xaxis._length) return null;
      const time = full.xaxis.p2d(x) * MS + this.origin, px = (this.view[1] - this.view[0]) / full.xaxis._length;
      const row = (axis) => axis.p2d(event.clientY - box.top - axis._offset);
      const y = Math.round(row(full.yaxis)), key = this.shownLanes()[y];
      if (key === "bubbles") return this.bubbleAt(time, y, px);
      if (key) return this.spanAt(this.store.lanes.get(key), time, y, px);
      return this.requestAt(time, Math.round(row(full.yaxis2)), px);
    }

    spanAt(lane, time, y, px) {
      let best = -1;
      for (let i = lane.firstAfter(time - 2 * px); i < lane.size && lane.start[i] <= time + 2 * px; i++) {
        if (lane.end[i] >= time - 2 * px && (best < 0 || lane.start[i] <= time)) best = i;
      }
      if (best < 0) return null;
      const i = best, name = this.config.categories[this.store.categories[lane.category[i]]][0];
      const lines = [["start", ms(lane.start[i] - this.origin)], ["length", length(lane.end[i] - lane.start[i])]];
      if (lane.rows[i]) lines.push(["rows", lane.rows[i]], ["zombies", lane.zombies[i]], ["padding", lane.padding[i]]);
      const label = name === "other" ? this.store.names[lane.name[i]] : name;
      const note = `step ${lane.step[i]}${lane.slot[i] < 0 ? "" : ` · slot ${lane.slot[i]}`}`;
      return { title: label, note, lines, start: lane.start[i], end: lane.end[i], y };
    }

    bubbleAt(time, y, px) {
      const set = this.store.bubbles(Math.max(this.view[0] - (this.view[1] - this.view[0]), 0), this.store.latest);
      for (let i = 0; i < set.length; i += 2) {
        if (set[i] > time + px || set[i + 1] < time - px || set[i + 1] - set[i] <= EPSILON) continue;
        const why = this.store.cause(set[i], set[i + 1]);
        const lines = why.phases.slice(0, 3).map(([name, ns]) => [`host ${name}`, length(ns)]);
        if (why.latency) lines.push(["launch latency", length(why.latency)]);
        return { title: "bubble", note: length(set[i + 1] - set[i]), lines, start: set[i], end: set[i + 1], y };
      }
      return null;
    }

    requestAt(time, lane, px) {
      for (const r of this.store.requests.values()) {
        const start = r.arrival ?? 0, end = r.end ?? this.store.latest;
        if (r.lane !== lane || start > time + px || end < time - px) continue;
        const lines = [["tokens", r.tokens.length]];
        if (r.admitted !== undefined && r.arrival !== undefined) lines.push(["queued", length(r.admitted - start)]);
        if (r.first_token !== undefined && r.arrival !== undefined) lines.push(["first token after", length(r.first_token - start)]);
        lines.push([r.end === undefined ? "running for" : r.cancel === undefined ? "finished after" : "cancelled after", length(end - start)]);
        return { title: `request ${r.id}`, note: "", lines };
      }
      return null;
    }

    point(event) {
      this.pointer = event;
      if (this.dragging || this.drawing) return;
      const found = this.under(event);
      this.hovered = found;
      this.tip.classList.toggle("pt-shown", Boolean(found));
      this.place();
      if (!found) return;
      const rows = found.lines.map(([name, value]) => `<dt>${name}</dt><dd>${value}</dd>`).join("");
      this.tip.innerHTML = `<b>${found.title}</b> <span>${found.note}</span><dl>${rows}</dl>`;
      const box = this.root.getBoundingClientRect(), right = event.clientX - box.left + 14;
      this.tip.style.left = `${Math.max(0, Math.min(right, box.width - this.tip.offsetWidth - 4))}px`;
      this.tip.style.top = `${event.clientY - box.top + 16}px`;
    }

    place() { // the outline round what is pointed at
      const found = this.hovered, full = this.plot._fullLayout;
      this.mark.hidden = !found || found.y === undefined || !full;
      if (this.mark.hidden) return;
      const at = (t) => full.xaxis.d2p((t - this.origin) / MS), limit = full.xaxis._length;
      const x0 = Math.max(at(found.start), 0), x1 = Math.min(at(found.end), limit), top = full.yaxis.d2p(found.y - HALF);
      if (x1 < 0 || x0 > limit) { this.mark.hidden = true; return; }
      Object.assign(this.mark.style, { left: `${full.xaxis._offset + x0 - 1.5}px`, width: `${Math.max(x1 - x0, 1) + 3}px`,
        top: `${full.yaxis._offset + top - 1.5}px`, height: `${full.yaxis.d2p(found.y + HALF) - top + 3}px` });
    }

    // -- listeners

    listen() {
      this.stopped = new AbortController();
      const on = (target, name, handler, options = {}) => target.addEventListener(name, handler, { signal: this.stopped.signal, ...options });
      on(this.root, "click", (event) => {
        const { do: verb, window: name } = event.target.closest("button")?.dataset ?? {};
        if (verb) this[verb]();
        if (name) this.setWindow(name);
      });
      on(this.frame, "mousedown", (event) => this.press(event), { capture: true });
      on(this.frame, "mousemove", (event) => this.point(event));
      on(this.frame, "mouseleave", () => { this.pointer = this.hovered = null; this.tip.classList.remove("pt-shown"); this.place(); });
      on(this.root, "mouseenter", () => { this.inside = true; });
      on(this.root, "mouseleave", () => { this.inside = false; });
      on(window, "wheel", (event) => this.wheel(event), { capture: true, passive: true });
      on(document, "keydown", (event) => this.key(event));
      on(document, "visibilitychange", () => this.redraw());
      on(window, "pagehide", () => this.source.close());
      on(window, "pageshow", (event) => { if (event.persisted) this.connect(); });
      on(window, "photon:run", (event) => this.showRun(event.detail.startNs, event.detail.endNs));
      this.observers = [new ResizeObserver(() => this.redraw()), new MutationObserver(() => this.redraw()),
        new IntersectionObserver(([entry]) => { this.onScreen = entry.isIntersecting; this.schedule(); }, { rootMargin: "300px" })];
      this.observers[0].observe(this.frame);
      this.observers[1].observe(document.body, { attributes: true, attributeFilter: ["class"] });
      this.observers[2].observe(this.root);
    }

    listenToPlot() {
      const read = (event) => event["xaxis.range[0]"] !== undefined && [0, 1].map((i) => event[`xaxis.range[${i}]`] * MS + this.origin);
      this.plot.on("plotly_relayouting", () => { this.dragging = true; this.mark.hidden = true; });
      this.plot.on("plotly_relayout", (event) => {
        this.dragging = false;
        const view = read(event);
        if (view) this.look(view); else this.schedule();
      });
    }

    press(event) { // plotly keeps clicks for itself: two presses at one place are a double-click
      const { clientX: x, clientY: y, timeStamp: time } = event, old = this.pressed ?? { time: -1e9 };
      this.pressed = { x, y, time };
      if (time - old.time < 350 && Math.hypot(x - old.x, y - old.y) < 4) this.live();
    }

    wheel(event) { // a page being scrolled passes over the plot; a wheel turned on the plot zooms it
      const now = performance.now(), outside = !this.frame.contains(event.target);
      if (!outside && now - (this.scrolled ?? -1e9) >= 400) return;
      this.scrolled = now;
      if (!outside) event.stopImmediatePropagation();
    }

    key(event) {
      const target = event.target, typing = target.closest?.("input, textarea, select, [contenteditable], button");
      const mine = this.inside || this.root.contains(document.activeElement);
      if (!mine || event.ctrlKey || event.metaKey || event.altKey || (typing && !(typing.tagName === "BUTTON" && event.key !== " "))) return;
      const act = { " ": () => (this.following ? this.pause() : this.live()), w: () => this.zoom(0.6), s: () => this.zoom(1 / 0.6),
        a: () => this.move(-0.25), d: () => this.move(0.25), f: () => { const run = this.lastRun(); if (run) this.look(padded(run)); } }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    }
  }

  const padded = ([start, end]) => { const pad = Math.max(0.02 * (end - start), MIN_VIEW); return [start - pad, end + pad]; };
  const length = (ns) => (ns < 1e6 ? `${(ns / 1e3).toFixed(1)} µs` : ns < 1e8 ? `${(ns / MS).toFixed(3)} ms` : `${(ns / MS).toFixed(1)} ms`);
  const ms = (ns) => `${(ns / MS).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;

  const scripts = {};
  const load = (url) => (scripts[url] ??= new Promise((done, failed) => {
    const tag = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: () => failed(new Error(`cannot load ${url}`)) });
    document.head.append(tag);
  }));

  window.photonTimelineMount = async (root, config) => {
    const other = window.Plotly; // Gradio may hold a Plotly of its own
    await load(new URL(config.plotly, config.base).href);
    const Plotly = (window.photonPlotly ??= window.Plotly);
    if (other) window.Plotly = other;
    window.photonTimeline?.destroy();
    const t = new Timeline(root, config, Plotly);
    window.photonTimeline = {
      get spans() { return t.store.spans; }, get drawn() { return t.drawn; }, get draws() { return t.draws; },
      get redrawMs() { return t.redrawMs; }, get following() { return t.following; }, get base() { return t.store.base; },
      get latest() { return t.store.latest; },
      range: () => [...t.view], live: () => t.live(), pause: () => t.pause(), setWindow: (name) => t.setWindow(name),
      look: (start, end) => t.look([start, end]), showRun: (start, end) => t.showRun(start, end), destroy: () => t.destroy(),
      metrics: (start, end) => t.store.metrics(t.store.relative(start), t.store.relative(end)),
      cause: (start, end) => t.store.cause(t.store.relative(start), t.store.relative(end)),
      bubbles: (start, end) => t.store.bubbles(t.store.relative(start), t.store.relative(end)),
    };
  };
})();
