"use strict";
/* The overview strip: everything held, as heat of the device's busy share over bubbles in red, and the view as a
   frame that can be dragged, sized at its edges, and moved by arrow keys. */
(() => {
  const parts = window.photonTimelineParts;
  const HEIGHT = 34, HEAT = 22, EDGE_PX = 8, MIN_PX = 6, EVERY_MS = 1000;

  class Overview {
    constructor(root, t) {
      Object.assign(this, { root, t, span: [0, 1] });
      root.innerHTML = `<canvas height="${HEIGHT}" aria-hidden="true"></canvas><div class="pt-window" role="slider" tabindex="0"
        aria-label="view within everything held" aria-valuemin="0" aria-valuemax="100"></div>`;
      this.canvas = root.firstChild; this.frame = root.lastChild;
    }

    listen(on) {
      on(this.root, "pointerdown", (event) => this.grab(event));
      on(this.root, "pointermove", (event) => this.drag(event));
      on(this.root, "pointerup", () => { this.held = null; });
      on(this.root, "pointercancel", () => { this.held = null; });
      on(this.frame, "keydown", (event) => {
        const by = { ArrowLeft: -0.25, ArrowRight: 0.25 }[event.key];
        if (by) { event.preventDefault(); this.t.move(by); }
      });
    }

    time(x) { return this.span[0] + (x / this.root.clientWidth) * (this.span[1] - this.span[0]); }

    px(time) { return ((time - this.span[0]) / (this.span[1] - this.span[0])) * this.root.clientWidth; }

    grab(event) {
      const x = event.clientX - this.root.getBoundingClientRect().left, [a, b] = this.t.view.map((v) => this.px(v));
      const edge = b - a > 3 * EDGE_PX && (Math.abs(x - a) < EDGE_PX ? 0 : Math.abs(x - b) < EDGE_PX ? 1 : null);
      const length = this.t.view[1] - this.t.view[0], middle = this.time(x);
      if (typeof edge !== "number" && (x < a - MIN_PX || x > b + MIN_PX)) this.t.look([middle - length / 2, middle + length / 2]);
      this.held = { x, view: [...this.t.view], edge };
      this.root.setPointerCapture(event.pointerId);
    }

    drag(event) {
      const x = event.clientX - this.root.getBoundingClientRect().left;
      if (!this.held) return;
      const by = this.time(x) - this.time(this.held.x), view = [...this.held.view];
      if (typeof this.held.edge === "number") view[this.held.edge] += by; else { view[0] += by; view[1] += by; }
      this.t.look(view);
    }

    draw() {
      const { store, figures, view, dark, following } = this.t, width = this.root.clientWidth, now = performance.now();
      if (!width) return;
      if (following && this.painted && now - this.painted < EVERY_MS && this.epoch === store.epoch) { this.place(view, width); return; }
      Object.assign(this, { painted: now, epoch: store.epoch });
      if (!this.held) this.span = parts.padded([store.first, Math.max(store.latest, store.first + 1e6)], 0.005);
      if (this.canvas.width !== width) this.canvas.width = width;
      const [a, b] = this.span, busy = figures.device(a, b), bubbles = figures.gaps(a, b);
      const context = this.canvas.getContext("2d");
      context.clearRect(0, 0, width, HEIGHT);
      this.paint(context, shares(busy, a, b, width), dark ? "71,146,230" : "32,105,184", 3, HEAT);
      this.paint(context, shares(bubbles, a, b, width), dark ? "240,86,91" : "229,72,77", HEAT + 5, HEIGHT - HEAT - 8);
      this.place(view, width);
    }

    paint(context, values, rgb, top, height) {
      values.forEach((share, x) => {
        if (share <= 0) return;
        context.fillStyle = `rgba(${rgb},${(0.12 + 0.88 * share).toFixed(3)})`;
        context.fillRect(x, top, 1, height);
      });
    }

    place(view, width) {
      const a = Math.min(Math.max(this.px(view[0]), 0), width - MIN_PX), b = Math.max(Math.min(this.px(view[1]), width), a + MIN_PX);
      Object.assign(this.frame.style, { left: `${a}px`, width: `${b - a}px` });
      this.frame.setAttribute("aria-valuenow", Math.round((100 * a) / width));
      this.frame.setAttribute("aria-valuetext", `${parts.instant(view[0] - this.t.origin)} to ${parts.instant(view[1] - this.t.origin)}`);
    }
  }

  function shares(set, a, b, bins) { // how much of each of `bins` parts of [a, b) the set covers, 0..1
    const out = new Float64Array(bins), size = (b - a) / bins;
    for (let i = 0; i < set.length; i += 2) {
      const first = Math.floor((set[i] - a) / size), last = Math.min(Math.floor((set[i + 1] - a) / size), bins - 1);
      for (let k = first; k <= last; k++) out[k] += (Math.min(set[i + 1], a + (k + 1) * size) - Math.max(set[i], a + k * size)) / size;
    }
    return out;
  }

  Object.assign(parts, { Overview });
})();
