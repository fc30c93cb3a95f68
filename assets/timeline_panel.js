"use strict";
/* The panel under the plot: what is selected, in words and figures; a step is shown by the inspector. */
(() => {
  const parts = window.photonTimelineParts, { escape, length, instant, inspector } = parts;

  const BUTTONS = {
    previous: ["‹ Previous", "previous step, key ,"], next: ["Next ›", "next step, key ."], fit: ["Fit", "show all of it, key f"],
    copy: ["Copy JSON", "copy this step as JSON"], clear: ["Close", "clear the selection, key Escape"],
  };
  const buttons = (...names) => `<span class="pt-actions">${names.map((name) => `<button type="button" class="pt-button" data-do="${name}"
    title="${BUTTONS[name][1]}">${BUTTONS[name][0]}</button>`).join("")}</span>`;
  const facts = (lines) => `<dl class="pt-facts">${lines.map(([name, value]) => `<div><dt>${escape(name)}</dt><dd>${escape(value)}</dd></div>`).join("")}</dl>`;

  class Panel {
    constructor(root, t) { Object.assign(this, { root, t, answer: null, asked: null }); }

    show() {
      const what = this.t.selected;
      this.asked?.abort();
      this.answer = null;
      this.root.hidden = !what;
      if (what) this[what.type](what);
    }

    fill(head, body, ...actions) {
      this.root.innerHTML = `<header>${head}${buttons(...actions, "clear")}</header><div class="pt-body">${body}</div>`;
    }

    signal() { this.asked = new AbortController(); return this.asked.signal; }

    refresh() { // a selected request or range changes while records arrive
      if (["request", "range"].includes(this.t.selected?.type)) this[this.t.selected.type](this.t.selected);
    }

    async step(what) {
      const signal = this.signal();
      this.fill(inspector.summarise(this.t, what.step), '<p class="pt-note">Asking for its rows …</p>', "previous", "next", "fit", "copy");
      try {
        const answer = await parts.ask(this.t, this.t.config.step, { step: what.step }, signal);
        this.answer = answer;
        this.fill(inspector.heading(answer), inspector.inspection(this.t, answer), "previous", "next", "fit", "copy");
        this.t.paintKeys(this.root);
      } catch (error) {
        if (signal.aborted) return;
        this.root.querySelector(".pt-body").innerHTML = `<p class="pt-note">${escape(error.message)}</p>`;
      }
    }

    span(what) {
      const { title, note, lines } = parts.describe(this.t, what);
      this.fill(`<b>${escape(title)}</b><span class="pt-chip">${escape(note || what.lane)}</span>`, facts(lines), "fit");
    }

    async bubble(what) {
      const why = this.t.figures.cause(what.start, what.end), signal = this.signal();
      const lines = [...why.phases.map(([name, ns]) => [`host ${name}`, length(ns)]), ["launch latency", length(why.latency)]];
      const link = why.work ? `<button type="button" class="pt-button" data-step="${why.work.step}">Inspect step ${why.work.step}</button>` : "";
      this.fill(`<b>Bubble</b><span class="pt-chip pt-dead">${length(what.end - what.start)}</span><span class="pt-chip">at ${instant(what.start - this.t.origin)}</span>${link}`,
        `<p class="pt-cause">${escape(parts.bubbleSentence(this.t, what))}</p>${facts(lines)}`, "fit");
      const [start, end] = [what.start, what.end].map((time) => String(BigInt(this.t.store.base) + BigInt(time)));
      try {
        const answer = await parts.ask(this.t, this.t.config.bubble, { start, end }, signal);
        this.root.querySelector(".pt-cause").textContent = answer.text;
      } catch (error) {
        if (!signal.aborted) this.root.querySelector(".pt-cause").append(` ${error.message}`);
      }
    }

    request(what) {
      const { note, lines } = parts.describe(this.t, what), r = this.t.store.requests.get(what.id);
      const late = r ? [...r.tokens].map((time, i) => (i ? time - r.tokens[i - 1] : 0)).slice(1).sort((x, y) => x - y) : [];
      if (late.length) lines.push(["ITL p50", length(late[late.length >> 1])], ["longest ITL", length(late.at(-1))]);
      if (r?.zombieRows) lines.push(["zombie rows", r.zombieRows]);
      this.fill(`<b>Request ${what.id}</b>${note ? `<span class="pt-chip">${escape(note)}</span>` : ""}`, facts(lines), "fit");
    }

    range(what) {
      const { config, figures } = this.t, values = figures.metrics(what.start, what.end);
      const shown = (k) => [k.key, k.also].filter((key) => key && values[key] !== null).map((key) => parts.figure(values[key], k.digits)).join(" / ");
      const lines = config.kpis.filter((k) => values[k.key] !== null).map((k) => [k.name, `${shown(k)} ${k.unit}`]);
      const set = figures.bubbles(what.start, what.end);
      lines.push(["bubbles", set.length / 2], ["decode steps", figures.decodeRows(what.start, what.end).steps]);
      this.fill(`<b>Marked range</b><span class="pt-chip">${length(what.end - what.start)}</span><span class="pt-chip">from ${instant(what.start - this.t.origin)}</span>`,
        facts(lines), "fit");
    }

    async copy() {
      if (!this.answer) return;
      const button = this.root.querySelector("[data-do=copy]");
      const done = await navigator.clipboard?.writeText(JSON.stringify(this.answer, null, 2)).then(() => "Copied", () => "Not allowed here");
      button.textContent = done ?? "Not allowed here";
    }
  }

  const figure = (value, full) => { // three digits are enough
    const digits = Math.abs(value) >= 100 ? Math.min(full, 0) : full;
    return value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };

  Object.assign(parts, { Panel, figure });
})();
