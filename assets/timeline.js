"use strict";
/* The live timeline: a column store fed by server-sent events, drawn with plotly.js.

   stream -> Store (lanes of typed columns, requests) -> Picture (rectangles of the view) -> one path per colour
   over Plotly's axes;  Overlay (labels, selection), Overview, figures and Panel around it.

   Here: the view, the selection, when to draw, and who listens to what. Times are nanoseconds after the stream's base;
   milliseconds appear only in the figure. How the page calls it: tracing/ui/live.py. */
(() => {
  const parts = window.photonTimelineParts, { MS, RIGHT, controls, padded } = parts;
  const WINDOWS = { "20 ms": 20 * MS, "60 ms": 60 * MS, "250 ms": 250 * MS, "1 s": 1000 * MS, "4 s": 4000 * MS, run: 0 };
  const MIN_VIEW = 1000, DRAW_EVERY_MS = 230, OFFSCREEN_MS = 1000, LANE_STAYS_MS = 3000;
  const LIVE = "live", LIMITS = { live: { maxLane: 40_000, maxRequests: 4000 }, file: { maxLane: 400_000, maxRequests: 40_000 } };
  const CLICK_PX = 4, DOUBLE_MS = 350;

  class Timeline {
    constructor(root, config, Plotly) {
      Object.assign(this, { root, config, P: Plotly, window: config.window, following: true, pinned: null, origin: 0, rows: [], labels: [],
        drawn: 0, draws: 0, times: [], lanesShown: new Map(), dirty: true, dragging: false,
        drawing: false, timer: 0, last: 0, onScreen: true, hovered: null, pointer: null, selected: null, marked: null, marking: false,
        options: { host: true, device: true, copy: true, requests: true, arrows: false, bubbles: true, zombies: true, colour: "kind" } });
      root.innerHTML = controls.html(config, Object.keys(WINDOWS));
      const find = (name) => root.querySelector(`.pt-${name}`);
      Object.assign(this, { plot: find("plot"), frame: find("frame"), tip: find("tip"), status: find("status"), rects: find("rects"), empty: find("empty"), banner: find("banner") });
      this.overlay = new parts.Overlay(find("over"));
      this.overview = new parts.Overview(find("overview"), this);
      this.panel = new parts.Panel(find("panel"), this);
      for (const box of root.querySelectorAll("input[data-option]")) box.checked = this.options[box.dataset.option];
      this.listen();
      this.show(LIVE, "");
      this.schedule();
    }

    // -- the source

    show(source, title) { // the live stream, or an opened trace: from its start, with nothing kept of the one before
      this.stream?.close();
      Object.assign(this, { source, title, loading: source !== LIVE, connected: undefined, selected: null, marked: null, pinned: null, run: null, origin: 0, lanesShown: new Map(),
        view: [0, WINDOWS[this.window] || 250 * MS] });
      this.store = new parts.Store(this.config, source === LIVE ? LIMITS.live : LIMITS.file);
      this.figures = new parts.Figures(this.store);
      this.history = new parts.History(this.figures);
      controls.showSparklines(this);
      this.panel.show();
      this.connect();
      this.redraw();
    }

    connect() {
      const url = new URL(this.config.stream, this.config.base);
      url.searchParams.set("source", this.source);
      const stream = (this.stream = new EventSource(url));
      stream.onmessage = (event) => this.receive(JSON.parse(event.data));
      stream.onopen = () => { this.connected = true; this.showState(); };
      stream.onerror = () => {
        this.connected = false; this.gone = stream.readyState === EventSource.CLOSED;
        this.loading &&= !this.gone;
        this.showState();
      };
      stream.addEventListener("end", () => { stream.close(); this.loading = false; this.loaded(); });
    }

    receive(message) {
      const touched = this.store.take(message);
      if (!touched) return;
      if (this.run) this.showRun(...this.run);
      if (this.loading) { this.look(padded([this.store.first, this.store.latest])); return; }
      if (this.pinned?.auto && this.newest() > this.pinned.end) this.follow();
      if (this.following || (touched[0] < this.view[1] && touched[1] > this.view[0])) this.redraw();
      else this.showState();
    }

    loaded() { // all of an opened trace is there: show what has been selected meanwhile, or everything
      const extent = this.extent();
      if (extent) this.look(padded(extent, 4)); else this.redraw();
    }

    open(source, title) { this.following = false; this.show(source, title); }

    newest() { // arrival of the newest request
      let time = -Infinity;
      for (const r of this.store.requests.values()) if (r.arrival > time) time = r.arrival;
      return time;
    }

    destroy() {
      this.stream.close();
      this.observers.forEach((o) => o.disconnect());
      this.stopped.abort();
      clearTimeout(this.timer); clearTimeout(this.figuring);
      this.P.purge(this.plot);
    }

    // -- the view

    live() { if (this.source !== LIVE) this.show(LIVE, ""); this.follow(); }

    follow() { Object.assign(this, { following: true, pinned: null, origin: 0, lanesShown: new Map() }); this.redraw(); }

    pause() { this.following = false; this.pinned = null; this.lanesShown.clear(); this.redraw(); }

    followed() { // the view while following
      const end = this.store.latest, length = WINDOWS[this.window], run = length ? null : this.figures.lastRun();
      return run ? padded(run) : [end - (length || 250 * MS), end];
    }

    setWindow(name) {
      this.window = name; this.lanesShown.clear();
      if (this.following) { this.redraw(); return; }
      const middle = (this.view[0] + this.view[1]) / 2, run = WINDOWS[name] ? null : this.figures.lastRun();
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

    showRun(startNs, endNs) { // or one text "start,end"; an empty one is no run; an opened trace gives way
      if (endNs === undefined) [startNs, endNs] = String(startNs).split(",");
      if (!startNs || !endNs) return;
      if (this.source !== LIVE) this.show(LIVE, "");
      this.run = this.store.base === null ? [startNs, endNs] : null; // shown when the stream has said its base
      if (this.run) return;
      const start = this.store.relative(startNs), end = this.store.relative(endNs);
      this.origin = start; this.lanesShown.clear();
      this.look(padded([start, end]), { start, end, auto: true });
    }

    // -- the selection

    select(what) { // {type: step | span | bubble | request | range, ...}, a step's number, or null
      if (["number", "string"].includes(typeof what)) what = { type: "step", step: Number(what) };
      const { view } = this;
      Object.assign(this, { selected: what, marked: null, marking: false });
      if (what) {
        this.following = false;
        if (this.pinned) this.pinned.auto = false;
        this.reveal();
      }
      this.panel.show();
      if (this.view === view && this.draws) this.overlay.draw(this); // at once: the plot under it stays as it is
      this.redraw();
    }

    extent() { // [start, end] of the selection, or null
      const what = this.selected;
      if (!what) return null;
      if (what.type === "step") { const step = this.store.steps.get(what.step); return step ? [step.start, step.end] : null; }
      if (what.type !== "request") return [what.start, what.end];
      const r = this.store.requests.get(what.id);
      return r ? [r.arrival ?? this.store.first, r.release ?? r.end ?? this.store.latest] : null;
    }

    reveal() { // scroll to the selection if none of it, or not all of a short one, can be seen
      const extent = this.extent(), [a, b] = this.view;
      if (!extent || (extent[0] < b && extent[1] > a && (this.selected.focus || (extent[0] >= a && extent[1] <= b)))) return;
      const middle = (extent[0] + extent[1]) / 2, half = Math.max((b - a) / 2, 0.75 * (extent[1] - extent[0]));
      if (this.selected.type !== "request" || extent[0] >= b || extent[1] <= a) this.look([middle - half, middle + half]);
    }

    fit() {
      const { store } = this, all = store.spans ? [store.first, store.latest] : null, extent = this.extent() ?? this.figures.lastRun() ?? all;
      this.lanesShown.clear();
      if (extent) this.look(padded(extent, this.selected ? 0.15 : 0.02));
    }

    step(by) {
      const { selected, panel } = this, at = selected?.step ?? (selected?.type === "bubble" ? this.figures.ender(selected.end)?.step : undefined);
      if (at === undefined) { // none yet: the newest one on the screen
        for (const step of [...this.store.steps.values()].reverse()) if (step.end <= this.view[1]) { this.select(step.id); return; }
        return;
      }
      const known = panel.answer?.step === at ? panel.answer[by < 0 ? "previous" : "next"] : null;
      const to = known ?? this.store.neighbour(at, by);
      if (to !== null) this.select(to);
    }

    previous() { this.step(-1); }

    next() { this.step(1); }

    clear() { this.select(null); }

    copy() { this.panel.copy(); }

    mark() { // the next drag marks a range; asked again, all that is seen
      if (!this.marking) { this.marking = true; this.showState(); return; }
      this.select({ type: "range", start: this.view[0], end: this.view[1] });
    }

    help() { const keys = this.root.querySelector(".pt-keys"); keys.hidden = !keys.hidden; this.showState(); }

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
        if (this.following) this.view = this.followed();
        const layout = this.picture();
        const data = [{ x: [layout.xaxis.range[0]], y: [0], mode: "markers", opacity: 0, hoverinfo: "skip" }]; // plotly draws a subplot only for a trace
        await this.P.react(this.plot, data, layout, { displayModeBar: false, scrollZoom: true, doubleClick: false, responsive: false });
        this.placeRectangles();
        if (!this.draws++) this.listenToPlot();
        this.overlay.draw(this);
        this.overview.draw();
        this.showFigures();
        this.times.push(performance.now() - this.last);
        if (this.times.length > 41) this.times.shift();
        this.showState();
      } finally { this.drawing = false; }
      if (this.pointer) this.point(this.pointer); // another span may lie there now
      this.schedule();
    }

    get redrawMs() { return [...this.times].sort((x, y) => x - y)[this.times.length >> 1] ?? null; }

    get dark() { return document.body.classList.contains("dark"); }

    get device() { return this.source === LIVE ? this.config.device : this.store.info.device ?? "device"; }

    requestLanes() { // [[lane, who is on it], ...]; those shown stay for a while, or as long as the user looks here
      const [a, b] = this.view, ids = [], now = performance.now();
      for (const { r } of this.store.living(a, b)) (ids[r.lane] ??= []).push(r.id);
      ids.forEach((_, lane) => this.lanesShown.set(lane, now));
      for (const [lane, time] of this.lanesShown) if (this.following && now - time > LANE_STAYS_MS) this.lanesShown.delete(lane);
      return [...this.lanesShown.keys()].sort((x, y) => x - y).map((lane) => [lane, titleOf(ids[lane] ?? [])]);
    }

    picture() { // -> the plotly layout of the view
      const { store, figures, options, dark, view, origin } = this, margin = this.following ? 0 : 0.4 * (view[1] - view[0]); // there to be dragged into sight
      const plan = parts.arrange(this.config, store, options, this.device, this.requestLanes());
      const width = this.frame.clientWidth, left = parts.leftOf(plan.rows), px = (view[1] - view[0]) / Math.max(width - left - RIGHT, 100);
      const picture = new parts.Picture({ store, figures, options, dark, view, margin, px }), html = picture.draw(plan.rows);
      Object.assign(this, { rows: plan.rows, drawn: picture.paths.count, labels: picture.labels, rectangles: { html, start: view[0], px } });
      return parts.layoutOf(plan, { width, left, dark, maxRows: store.maxRows, labelled: store.spans > 0,
        view: view.map((t) => (t - origin) / MS) });
    }

    placeRectangles() {
      const { xaxis, yaxis } = this.plot._fullLayout;
      this.rects.innerHTML = `<svg x="${xaxis._offset}" y="${yaxis._offset}" width="${xaxis._length}" height="${yaxis._length}"><g>${this.rectangles.html}</g></svg>`;
    }

    shift([a, b]) { // shows the rectangles in another view until they are drawn for it
      const { start, px } = this.rectangles, scale = this.plot._fullLayout.xaxis._length / (b - a);
      this.rects.querySelector("g").setAttribute("transform", `translate(${(start - a) * scale}) scale(${px * scale} 1)`);
    }
  }

  const titleOf = (ids) => (ids.length > 1 ? `r${ids[0]} … r${ids.at(-1)}` : ids.length ? `r${ids[0]}` : "");

  Object.assign(parts, { Timeline, WINDOWS, LIVE, CLICK_PX, DOUBLE_MS });
})();
