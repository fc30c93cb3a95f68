"use strict";
/* Everything around the plot that is pressed or read: figures with sparklines, buttons, find, keys. */
(() => {
  const parts = window.photonTimelineParts, { escape, length, SECONDS } = parts;

  const KEYS = [["space", "pause, or live again"], ["w s", "zoom in, out"], ["a d", "move left, right"], ["f", "fit the selection, or the newest run"],
    [", .", "previous, next step"], ["m", "mark a range: drag; again for all that is seen"], ["Esc", "clear selection and range"], ["?", "this list"]];
  const TOGGLES = [["host", "host"], ["device", "device"], ["copy", "copy"], ["requests", "requests"]];
  const MARKERS = [["arrows", "launch arrows"], ["bubbles", "bubbles"], ["zombies", "zombies"]];

  function html(config, windows) {
    const check = ([key, name]) => `<label><input type="checkbox" data-option="${key}">${name}</label>`;
    const legend = Object.entries(config.categories).filter(([key]) => key !== "other")
      .map(([key, c]) => `<span class="pt-key" data-key-of="${key}"><i data-category="${key}"></i>${escape(c[0])}</span>`).join("");
    const keys = KEYS.map(([key, what]) => `<div><dt>${key.split(" ").map((k) => `<kbd>${k}</kbd>`).join("")}</dt><dd>${what}</dd></div>`).join("");
    return `<div class="pt-banner" hidden role="status"></div>
      <div class="pt-kpis">${config.kpis.map(card).join("")}</div>
      <div class="pt-bar">
        <span class="pt-group"><button type="button" data-do="live"><b class="pt-dot"></b>Live</button><button type="button" data-do="pause">Pause</button></span>
        <span class="pt-group" role="group" aria-label="window">${windows.map((w) => `<button type="button" data-window="${w}">${w}</button>`).join("")}</span>
        <span class="pt-group"><button type="button" data-do="mark" title="mark a range, key m">Mark range</button>
          <button type="button" data-do="fit" title="fit the selected step, key f">Fit step</button></span>
        <form class="pt-find" role="search"><input type="text" aria-label="find a step or a request" placeholder="step 41, request 7" spellcheck="false" autocomplete="off">
          <button type="submit">Find</button></form><span class="pt-found" role="status"></span>
        <button type="button" class="pt-button pt-more" data-do="help" aria-expanded="false" title="keys, key ?">Keys</button></div>
      <div class="pt-bar pt-options"><span class="pt-checks" role="group" aria-label="rows shown">rows ${TOGGLES.map(check).join("")}</span>
        <span class="pt-checks" role="group" aria-label="markers shown">marks ${MARKERS.map(check).join("")}</span>
        <label class="pt-checks">colour by <select data-option="colour"><option>kind</option><option>request</option><option>slot</option></select></label>
        <span class="pt-legend">${legend}</span></div>
      <dl class="pt-keys" hidden>${keys}</dl>
      <div class="pt-frame"><div class="pt-plot" role="img" aria-label="timeline of the engine's steps"></div><svg class="pt-rects" aria-hidden="true"></svg><svg class="pt-over" aria-hidden="true"></svg>
        <div class="pt-empty">No steps yet. Press Run, and the steps appear here as they happen.</div></div>
      <div class="pt-overview"></div>
      <div class="pt-help"><span>click a span, a bubble or a request · drag to move, wheel to zoom, shift-drag to mark, double-click for live · <kbd>?</kbd> keys</span>
        <span class="pt-status"></span></div>
      <section class="pt-panel" aria-label="selection" aria-live="polite" hidden></section><div class="pt-tip" role="tooltip"></div>`;
  }

  function card(k) {
    return `<div class="pt-kpi${k.also ? " pt-pair" : ""}" tabindex="0" data-key="${k.key}"${k.hidden ? " hidden" : ""}><span class="pt-kpi-name">${escape(k.name)} <i>${escape(k.unit)}</i></span>
      <span class="pt-kpi-value">–</span><svg class="pt-spark" aria-hidden="true" preserveAspectRatio="none"></svg></div>`;
  }

  // -- figures

  function showFigures(t, values) {
    for (const node of t.root.querySelectorAll(".pt-kpi")) {
      const k = t.config.kpis.find((kpi) => kpi.key === node.dataset.key), value = values[k.key] ?? null, also = k.also ? values[k.also] ?? null : null;
      node.querySelector(".pt-kpi-value").textContent = parts.figure(value, k.digits) + (also === null ? "" : ` / ${parts.figure(also, k.digits)}`);
      if (k.hidden) node.hidden = !value && !t.history.of(k.key).some((s) => s[1] > 0);
    }
  }

  function showSparklines(t) { // a bar per second, the newest on the right
    for (const node of t.root.querySelectorAll(".pt-kpi")) {
      const k = t.config.kpis.find((kpi) => kpi.key === node.dataset.key), known = t.history.of(k.key);
      const full = k.full || Math.max(...known.map((s) => s[1]), 1e-9), svg = node.querySelector("svg");
      const bars = known.map(([ago, value]) => { const h = Math.max(18 * Math.min(value / full, 1), 0.8); return `M${SECONDS - ago - 1},${18 - h}h.8v${h}h-.8Z`; });
      svg.setAttribute("viewBox", `0 0 ${SECONDS} 18`);
      svg.innerHTML = `<path d="${bars.join("")}"/>`;
    }
  }

  function describeFigure(t, key) { // what the tooltip of a figure says
    const k = t.config.kpis.find((kpi) => kpi.key === key), [from, to] = t.measured(), past = t.history.of(key).map((s) => s[1]);
    const lines = [["window", length(Math.max(to - from, 0))]];
    if (past.length) lines.push(["last 60 s, lowest", parts.figure(Math.min(...past), k.digits)], ["last 60 s, highest", parts.figure(Math.max(...past), k.digits)]);
    if (k.clocks) lines.push(["clocks of host and device", clocks(t.store.info.clock_uncertainty_ns)]);
    return { title: k.name, note: k.unit, lines, formulas: k.formulas };
  }

  const clocks = (ns) => (ns === undefined ? "not known" : Number(ns) ? `agree within ${length(Number(ns))}` : "the same");

  // -- find: "step 41", "request 7", "r7", "41"

  function find(t, text) { // -> what to say; "" when it was found
    const match = /^\s*(step|s|request|req|r)?\s*#?\s*(\d+)\s*$/i.exec(text);
    if (!match) return "Write a step or a request: step 41, request 7.";
    const id = Number(match[2]), isRequest = /^r/i.test(match[1] ?? "");
    if (isRequest) {
      if (!t.store.requests.has(id)) return `Request ${id} is not held.`;
      t.select({ type: "request", id }); t.fit();
    } else {
      const oldest = t.store.steps.keys().next().value;
      if (!t.store.steps.has(id)) return oldest === undefined ? "No steps are held yet." : `Step ${id} is not held; steps ${oldest} to ${t.store.lastStep} are.`;
      t.select({ type: "step", step: id });
    }
    return "";
  }

  // -- keys, while the pointer is over the timeline or the focus in it

  const ACTIONS = { " ": (t) => (t.following ? t.pause() : t.live()), w: (t) => t.zoom(0.6), s: (t) => t.zoom(1 / 0.6), a: (t) => t.move(-0.25),
    d: (t) => t.move(0.25), f: (t) => t.fit(), ",": (t) => t.previous(), ".": (t) => t.next(), m: (t) => t.mark(), "?": (t) => t.help(),
    Escape: (t) => t.clear() };

  function key(t, event) {
    const target = event.target, typing = target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
    const presses = target.closest?.("button, input, [role=slider]") && [" ", "Enter"].includes(event.key);
    const mine = t.inside || t.root.contains(document.activeElement);
    const act = ACTIONS[event.key];
    if (!mine || !act || typing || presses || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(t);
  }

  Object.assign(parts, { controls: { html, showFigures, showSparklines, describeFigure, find, key } });
})();
