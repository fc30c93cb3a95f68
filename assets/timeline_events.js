"use strict";
/* Pointer, wheel, keys and the page around: what calls the Timeline's methods. Then the mount and the page's API. */
(() => {
  const parts = window.photonTimelineParts, { Timeline, MS, CLICK_PX, DOUBLE_MS, controls } = parts;

  Object.assign(Timeline.prototype, {
    listen() {
      this.stopped = new AbortController();
      const on = (target, name, handler, options = {}) => target.addEventListener(name, handler, { signal: this.stopped.signal, ...options });
      on(this.root, "click", (event) => this.pressed(event.target.closest("button")));
      on(this.root, "change", (event) => this.chosen(event.target));
      on(this.root.querySelector(".pt-find"), "submit", (event) => { event.preventDefault(); this.find(event.target.firstElementChild.value) || this.root.focus({ preventScroll: true }); });
      on(this.frame, "mousedown", (event) => { if (this.marking || event.shiftKey) event.stopImmediatePropagation(); }, { capture: true });
      on(this.frame, "pointerdown", (event) => this.down(event), { capture: true });
      on(window, "pointermove", (event) => this.drag(event));
      on(window, "pointerup", (event) => this.up(event), { capture: true });
      on(this.frame, "mousemove", (event) => this.point(event));
      on(this.frame, "mouseleave", () => { this.pointer = null; this.hover(null); });
      on(this.root, "mouseenter", () => { this.inside = true; });
      on(this.root, "mouseleave", () => { this.inside = false; });
      for (const card of this.root.querySelectorAll(".pt-kpi")) {
        const show = () => this.tell(controls.describeFigure(this, card.dataset.key), card.offsetLeft, card.offsetTop + card.offsetHeight + 4);
        for (const name of ["mouseenter", "focus"]) on(card, name, show);
        for (const name of ["mouseleave", "blur"]) on(card, name, () => this.tell(null));
      }
      this.overview.listen(on);
      on(window, "wheel", (event) => this.wheel(event), { capture: true, passive: true });
      on(document, "keydown", (event) => controls.key(this, event));
      on(document, "visibilitychange", () => this.redraw());
      on(window, "pagehide", () => this.stream.close());
      on(window, "pageshow", (event) => { if (event.persisted) this.show(this.source, this.title); });
      on(window, "photon:run", (event) => this.showRun(event.detail.startNs, event.detail.endNs));
      this.observers = [new ResizeObserver(() => this.redraw()), new MutationObserver(() => this.redraw()),
        new IntersectionObserver(([entry]) => { this.onScreen = entry.isIntersecting; this.schedule(); }, { rootMargin: "300px" })];
      this.observers[0].observe(this.frame);
      this.observers[1].observe(document.body, { attributes: true, attributeFilter: ["class"] });
      this.observers[2].observe(this.root);
    },

    listenToPlot() {
      const read = (event) => event["xaxis.range[0]"] !== undefined && [0, 1].map((i) => event[`xaxis.range[${i}]`] * MS + this.origin);
      this.plot.on("plotly_relayouting", (event) => {
        this.dragging = true;
        this.frame.classList.add("pt-moving");
        const view = read(event);
        if (view) this.shift(view);
      });
      this.plot.on("plotly_relayout", (event) => {
        this.dragging = false;
        this.frame.classList.remove("pt-moving");
        const view = read(event);
        if (view) this.look(view); else this.schedule();
      });
    },

    pressed(button) {
      if (!button) return;
      const { do: verb, window: name, step, request } = button.dataset;
      if (verb) this[verb]();
      if (name) this.setWindow(name);
      if (step) this.select(step);
      if (request) this.select({ type: "request", id: Number(request) });
    },

    chosen(input) {
      const key = input.dataset?.option;
      if (!key) return;
      this.options[key] = input.type === "checkbox" ? input.checked : input.value;
      this.redraw();
    },

    find(text) {
      const said = controls.find(this, text);
      this.root.querySelector(".pt-found").textContent = said;
      return said;
    },

    // -- presses on the plot: plotly keeps clicks for itself

    timeAt(event) {
      const full = this.plot._fullLayout, x = event.clientX - this.plot.getBoundingClientRect().left - full.xaxis._offset;
      const share = Math.min(Math.max(x / full.xaxis._length, 0), 1);
      return this.view[0] + share * (this.view[1] - this.view[0]);
    },

    down(event) {
      if (event.button || !this.plot._fullLayout) return;
      this.press = { x: event.clientX, y: event.clientY, isRange: this.marking || event.shiftKey, time: this.timeAt(event) };
    },

    drag(event) {
      if (!this.press?.isRange) return;
      this.following = false;
      this.marked = { start: this.press.time, end: this.timeAt(event) };
      this.overlay.draw(this);
    },

    up(event) {
      const { press, marked } = this;
      this.press = this.marked = null;
      if (!press) return;
      const isClick = Math.hypot(event.clientX - press.x, event.clientY - press.y) < CLICK_PX;
      if (press.isRange && marked && !isClick) {
        const [start, end] = [marked.start, marked.end].sort((a, b) => a - b);
        this.select({ type: "range", start, end });
      } else if (isClick) this.click(event);
    },

    click(event) { // two at one place are a double-click
      const { clientX: x, clientY: y, timeStamp: time } = event, old = this.clicked ?? { time: -1e9 };
      this.clicked = { x, y, time };
      if (time - old.time < DOUBLE_MS && Math.hypot(x - old.x, y - old.y) < CLICK_PX) { this.live(); return; }
      const found = this.under(event);
      if (found) this.select(found.type === "span" && found.step >= 0 ? { type: "step", step: found.step, focus: found } : found);
    },

    wheel(event) { // a page being scrolled passes over the plot; a wheel turned on the plot zooms it
      const now = performance.now(), outside = !this.frame.contains(event.target);
      if (!outside && now - (this.scrolled ?? -1e9) >= 400) return;
      this.scrolled = now;
      if (!outside) event.stopImmediatePropagation();
    },

    // -- what is pointed at

    under(event) {
      const box = this.plot.getBoundingClientRect();
      return parts.pick(this, event.clientX - box.left, event.clientY - box.top);
    },

    point(event) {
      this.pointer = event;
      if (this.dragging || this.drawing || this.press?.isRange) return;
      this.hover(this.under(event));
      if (!this.hovered) return;
      const box = this.root.getBoundingClientRect();
      this.tell(parts.describe(this, this.hovered), event.clientX - box.left + 14, event.clientY - box.top + 16);
    },

    hover(what) {
      const changed = what?.start !== this.hovered?.start || what?.lane !== this.hovered?.lane;
      this.hovered = what;
      this.frame.classList.toggle("pt-over-span", Boolean(what));
      if (changed && this.draws) this.overlay.draw(this);
      if (!what) this.tell(null);
    },

    tell(what, x, y) { // the tooltip: {title, note, lines, formulas} at a point of the component, or nothing
      this.tip.classList.toggle("pt-shown", Boolean(what));
      if (!what) return;
      const rows = what.lines.map(([name, value]) => `<dt>${parts.escape(name)}</dt><dd>${parts.escape(value)}</dd>`).join("");
      const formula = (what.formulas ?? []).map((f) => `<p>${parts.escape(f)}</p>`).join("");
      this.tip.innerHTML = `<b>${parts.escape(what.title)}</b> <span>${parts.escape(what.note)}</span>${formula}<dl>${rows}</dl>`;
      this.tip.style.left = `${Math.max(0, Math.min(x, this.root.clientWidth - this.tip.offsetWidth - 4))}px`;
      this.tip.style.top = `${y}px`;
    },
  });

  // -- the page's side

  const scripts = {};
  const load = (url) => (scripts[url] ??= new Promise((done, failed) => {
    const tag = Object.assign(document.createElement("script"), { src: url, onload: done, onerror: () => failed(new Error(`cannot load ${url}`)) });
    document.head.append(tag);
  }));

  function api(t) {
    const relative = (...times) => times.map((time) => t.store.relative(time));
    return {
      get spans() { return t.store.spans; }, get held() { return t.store.held; }, get drawn() { return t.drawn; }, get draws() { return t.draws; },
      get redrawMs() { return t.redrawMs; }, get following() { return t.following; }, get base() { return t.store.base; },
      get latest() { return t.store.latest; }, get source() { return t.source; }, get title() { return t.title; }, get loading() { return t.loading; },
      get selected() { return t.selected; }, get step() { return t.panel.answer; }, get rows() { return t.rows; },
      range: () => [...t.view], live: () => t.live(), pause: () => t.pause(), setWindow: (name) => t.setWindow(name),
      look: (start, end) => t.look([start, end]), showRun: (start, end) => t.showRun(start, end), destroy: () => t.destroy(),
      open: (source, title) => t.open(source, title), select: (what) => t.select(what), find: (text) => t.find(text), fit: () => t.fit(),
      metrics: (start, end) => t.figures.metrics(...relative(start, end)),
      cause: (start, end) => t.figures.cause(...relative(start, end)),
      bubbles: (start, end) => t.figures.bubbles(...relative(start, end)),
    };
  }

  window.photonTimelineMount = async (root, config) => {
    const other = window.Plotly; // Gradio may hold a Plotly of its own
    await load(new URL(config.plotly, config.base).href);
    const Plotly = (window.photonPlotly ??= window.Plotly);
    if (other) window.Plotly = other;
    window.photonTimeline?.destroy();
    root.tabIndex = 0;
    window.photonTimeline = api(new Timeline(root, config, Plotly));
  };
})();
