"use strict";
/* The step inspector: a step as the engine saw it, from `wb/trace/step` (tracing/inspect.py). */
(() => {
  const parts = window.photonTimelineParts, { escape, length } = parts;
  const VERBS = ["launch", "sample", "commit"];
  const COLUMNS = [["row", "row"], ["request", "request"], ["state", "state"], ["position", "position"], ["token", "sampled"], ["mask", "allowed"],
    ["refs", "inflight_refs"], ["pages", "pages"], ["lora_slot", "lora_slot"]];

  const us = (value) => (value === null || value === undefined ? "–" : length(value * 1e3));

  /* What the page knows by itself: shown at once, and all there is while the answer is on its way. */
  function summarise(t, step) {
    const work = t.store.workOf(step);
    return work ? heading({ ...work, step, kind: work.category === "vision" ? "prefill" : work.category }) : `<b>Step ${step}</b>`;
  }

  function heading(s) {
    const chips = [s.kind, s.slot >= 0 && `slot ${s.slot}`, parts.counted(s.rows, "row"), s.padding > 0 && `${s.padding} padding`];
    const dead = s.zombies ? `<span class="pt-chip pt-dead">${parts.counted(s.zombies, "zombie")}</span>` : "";
    const wait = s.launch_latency_us ?? null, latency = wait === null ? "" : `<span class="pt-chip">launch → start ${us(Math.max(wait, 0))}</span>`;
    return `<b>Step ${s.step}</b>${chips.filter(Boolean).map((c) => `<span class="pt-chip">${escape(c)}</span>`).join("")}${dead}${latency}`;
  }

  function verbs(s) { // the three verbs: how long on the host, and what waited for which event
    const cards = VERBS.map((verb, i) => {
      const span = s.spans.find((x) => x.track === "host" && x.name === verb);
      const waits = (s.waits?.[i] ?? "").replace(/^[a-z]+: */, "") || "not recorded";
      const leak = s.spans.filter((x) => x.name.startsWith("sync:") && span && x.offset_us >= span.offset_us && x.offset_us < span.offset_us + span.dur_us);
      const leaks = leak.map((x) => `<em>${escape(x.name)}: ${us(x.dur_us)}</em>`).join("");
      return `<div class="pt-verb"><dt>${verb}</dt><dd>${span ? us(span.dur_us) : "–"}</dd><p>waits: ${escape(waits)}${leaks}</p></div>`;
    });
    return `<dl class="pt-verbs">${cards.join("")}</dl>`;
  }

  function gantt(t, s) { // the step's spans on its own time axis, from its first to its last instant
    const known = s.spans.filter((x) => x.offset_us !== null);
    if (!known.length) return "";
    const first = Math.min(...known.map((x) => x.offset_us)), last = Math.max(...known.map((x) => x.offset_us + x.dur_us)), all = last - first || 1;
    const bars = known.map((x) => {
      const category = t.store.categoryOf(x.track, x.name, s.kind), left = (100 * (x.offset_us - first)) / all, width = Math.max((100 * x.dur_us) / all, 0.4);
      return `<li><span>${escape(x.track)} · ${escape(x.name)}</span><i><b style="left:${left}%;width:${width}%" data-category="${category}"></b></i>
        <span>${x.offset_us < 0 ? "−" : "+"}${us(Math.abs(x.offset_us))}</span><span>${us(x.dur_us)}</span></li>`;
    });
    return `<ol class="pt-gantt" aria-label="spans of the step">${bars.join("")}</ol>`;
  }

  function sampled(row) {
    const number = (v) => (typeof v === "number" && Number.isFinite(v) ? v.toFixed(4) : null), x = number(row.x), y = number(row.y);
    if (x !== null && y !== null) return `size ${x} × ${y}`;
    if (x !== null) return `coordinate ${x}`;
    return row.token === null || row.token === undefined ? null : `token ${row.token}`;
  }

  function cell(row, key) {
    if (key === "state") return `<span class="pt-state pt-${escape(row.state)}">${escape(row.state)}</span>`;
    if (key === "request" && row.request !== null) return `<button type="button" class="pt-link" data-request="${row.request}">r${row.request}</button>`;
    if (key === "refs") return row.refs_before === null || row.refs_before === undefined ? "–" : `${row.refs_before} → ${row.refs_after}`;
    const value = key === "token" ? sampled(row) : row[key];
    return value === null || value === undefined || value === -1 ? "–" : escape(value);
  }

  function table(s) {
    if (!s.table?.length) return '<p class="pt-note">No rows are recorded for this step.</p>';
    const head = COLUMNS.map(([, title]) => `<th scope="col">${title}</th>`).join("");
    const body = s.table.map((row) => {
      const why = row.why ? `<tr class="pt-why"><td></td><td colspan="${COLUMNS.length - 1}">${escape(row.why)}</td></tr>` : "";
      return `<tr class="pt-row-${escape(row.state)}">${COLUMNS.map(([key]) => `<td>${cell(row, key)}</td>`).join("")}</tr>${why}`;
    });
    return `<div class="pt-scroll"><table class="pt-rows"><thead><tr>${head}</tr></thead><tbody>${body.join("")}</tbody></table></div>`;
  }

  function inspection(t, s) { // the whole answer as HTML
    const bubble = s.bubble_before ? `<p class="pt-cause"><b>Bubble before it</b> ${escape(s.bubble_before.text)}</p>` : "";
    return `<div class="pt-columns"><div>${verbs(s)}${bubble}</div>${gantt(t, s)}</div>${table(s)}`;
  }

  async function ask(t, path, query, signal) { // -> the server's answer; throws an Error with one sentence
    const url = new URL(path, t.config.base);
    url.search = new URLSearchParams({ source: t.source, ...query });
    const response = await fetch(url, { signal });
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error ?? `The server answered ${response.status}; it may have been restarted.`);
    return answer;
  }

  Object.assign(parts, { ask, inspector: { summarise, heading, inspection } });
})();
