"use strict";
/* What is read around the plot: figures and sparklines, the status line, pressed buttons, the banner of a file. */
(() => {
  const parts = window.photonTimelineParts, { Timeline, LIVE, controls } = parts;

  Object.assign(Timeline.prototype, {
    measured() { // the window of the figures: the run where one is shown, without the margin beside it
      if (this.pinned) return [this.pinned.start, this.pinned.end];
      const [from, to] = (this.following && this.window === "run" && this.figures.lastRun()) || this.view, { first, known } = this.store;
      const held = [Math.max(from, first), Math.min(to, known)]; // of what lies beyond nothing is known
      return held[0] < held[1] ? held : [from, to];
    },

    showFigures() { // while records stream in, a twentieth of the time is enough for figures
      clearTimeout(this.figuring);
      const now = performance.now(), wait = this.following ? (this.figured ?? 0) - now : 0;
      if (wait > 0) { this.figuring = setTimeout(() => this.showFigures(), wait); return; }
      controls.showFigures(this, this.store.spans ? this.figures.metrics(...this.measured()) : {});
      this.showHistory();
      this.panel.refresh();
      this.figured = now + 20 * (performance.now() - now);
    },

    showHistory() {
      if (this.history.update()) controls.showSparklines(this);
      if (this.history.isBehind) this.figuring = setTimeout(() => this.showHistory(), 50);
    },

    paintKeys(node) {
      for (const key of node.querySelectorAll("[data-category]")) key.style.background = this.config.categories[key.dataset.category][this.dark ? 2 : 1];
    },

    showState() {
      const { store, root } = this, n = (v) => v.toLocaleString("en"), lost = store.dropped + store.skipped;
      const [from, to] = this.measured(), said = store.spans ? [`figures over ${parts.length(to - from)}`] : [];
      said.push(`${n(store.held)} spans`, `${n(this.drawn)} rects`);
      if (this.draws) said.push(`${Math.round(this.redrawMs)} ms/draw`);
      if (lost) said.push(`${n(lost)} dropped`);
      if (this.marking) said.unshift("drag to mark a range");
      if (this.loading) said.unshift("loading");
      else if (this.connected === false && this.source === LIVE) said.unshift("reconnecting");
      this.status.textContent = said.join(" · ");
      const shown = this.following ? this.window : this.pinned ? "run" : this.windowOf(this.view[1] - this.view[0]);
      const on = [this.following ? "live" : this.pinned || this.source !== LIVE ? "" : "pause", shown, this.marking ? "mark" : ""];
      for (const button of root.querySelectorAll(".pt-group button")) button.setAttribute("aria-pressed", on.includes(button.dataset.do ?? button.dataset.window));
      root.querySelector("[data-do=help]").setAttribute("aria-expanded", !root.querySelector(".pt-keys").hidden);
      root.querySelector(".pt-group [data-do=fit]").disabled = !this.selected;
      this.frame.classList.toggle("pt-marking", this.marking);
      root.classList.toggle("pt-dark", this.dark);
      this.empty.hidden = store.spans > 0 || this.source !== LIVE;
      for (const key of root.querySelectorAll("[data-key-of]")) key.hidden = !store.seen(key.dataset.keyOf);
      this.showBanner();
      this.paintKeys(root);
    },

    showBanner() {
      const facts = ["device", "model", "depth"].filter((key) => this.store.info[key]).map((key) => `${key} ${this.store.info[key]}`).join(" · ");
      const words = this.connected === false && this.gone ? "is not held any more; open its file again" : facts;
      const html = this.source === LIVE ? "" : `trace file <b>${parts.escape(this.title)}</b> <span>${parts.escape(words)}</span>
        <button type="button" class="pt-button" data-do="live">back to live</button>`;
      this.banner.hidden = !html;
      if (this.banner.dataset.html !== html) { this.banner.innerHTML = html; this.banner.dataset.html = html; }
    },
  });
})();
