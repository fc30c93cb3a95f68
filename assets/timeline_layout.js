"use strict";
/* Where everything lies: the rows of the plot in pixels from its top, the axis, and words for times. */
(() => {
  const parts = window.photonTimelineParts;
  const MS = 1e6;
  const HEIGHTS = { host: 15, slot: 25, device: 25, copy: 13, bubbles: 15, counter: 46 };
  const GAP = 4, GROUP_GAP = 11, TOP = 8, BOTTOM = 26, RIGHT = 14, MAX_NAME = 24;

  /* Groups of rows that can be switched off, and the lanes in them. */
  const GROUPS = { host: (key) => key.startsWith("host."), device: (key) => /^(slot|device)/.test(key), copy: (key) => key === "copy" };
  const groupOf = (key) => Object.keys(GROUPS).find((group) => GROUPS[group](key)) ?? key;

  function heightOf(key) { return HEIGHTS[key.startsWith("host.") ? "host" : key.startsWith("slot") ? "slot" : key]; }

  function titleOf(key, device) {
    if (device.length > MAX_NAME) return titleOf(key, `${device.slice(0, MAX_NAME - 1)}…`);
    if (key.startsWith("host.")) return key.replace(".", " · ");
    return GROUPS.device(key) && key !== "device" ? `${device} · ${key}` : key === "device" ? device : key;
  }

  const requestHeight = (count) => (count <= 12 ? 17 : count <= 20 ? 12 : 9);

  /* -> {rows: [{key, title, top, bottom}], height}; `requests` are [[lane, title], ...] */
  function arrange(config, store, options, device, requests) {
    const rows = [];
    let y = 2, group = null;
    const add = (key, title, height, of = groupOf(key)) => {
      if (group !== null) y += of === group ? GAP : GROUP_GAP;
      group = of;
      rows.push({ key, title, top: y, bottom: y + height, group: of });
      y += height;
    };
    for (const key of config.lanes) {
      if (options[groupOf(key)] === false || (config.optional.includes(key) && !store.lanes.get(key).size)) continue;
      add(key, titleOf(key, device), heightOf(key));
    }
    if (options.requests) for (const [lane, title] of requests) add(`request ${lane}`, title, requestHeight(requests.length), "requests");
    if (options.device) add("counter", "rows", HEIGHTS.counter);
    return { rows, height: y + 4 };
  }

  /* The plotly layout of rows arranged so; `view` in ms. */
  function layoutOf({ rows, height }, { view, width, left, dark, maxRows, labelled }) {
    const ink = dark ? "#aab4c6" : "#4b5563", grid = dark ? "#2c313d" : "#e9ecf1";
    const counter = rows.find((r) => r.key === "counter"), ticks = rows.filter((r) => r.key !== "counter");
    const tickvals = ticks.map((r) => (r.top + r.bottom) / 2), ticktext = ticks.map((r) => r.title);
    if (counter) { tickvals.push(counter.top + 5, counter.bottom - 4); ticktext.push(`rows ${maxRows}`, "0"); }
    return {
      height: height + TOP + BOTTOM, width, margin: { l: left, r: RIGHT, t: TOP, b: BOTTOM },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: false, dragmode: "pan",
      uirevision: "photon",
      font: { family: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", size: 11, color: ink },
      xaxis: { range: view, gridcolor: grid, zeroline: false, ticksuffix: " ms", tickformat: ",.6~f", nticks: Math.max(3, Math.round((width - left) / 130)),
        autorange: false, showticklabels: labelled },
      yaxis: { range: [height, 0], zeroline: false, fixedrange: true, showgrid: false, ticks: "", ticklabelstandoff: 5, tickvals, ticktext },
    };
  }

  function leftOf(rows) { return Math.max(64, 18 + 6.7 * Math.max(...rows.map((r) => r.title.length), 6)); }

  const length = (ns) => (ns < 1e6 ? `${(ns / 1e3).toFixed(1)} µs` : ns < 1e8 ? `${(ns / MS).toFixed(3)} ms`
    : ns < 1e10 ? `${(ns / MS).toFixed(1)} ms` : `${(ns / 1e9).toFixed(1)} s`);
  const instant = (ns) => `${(ns / MS).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 })} ms`;
  const padded = ([start, end], share = 0.02) => { const pad = Math.max(share * (end - start), 1000); return [start - pad, end + pad]; };
  const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

  Object.assign(parts, { MS, RIGHT, arrange, layoutOf, leftOf, length, instant, padded, escape, counted });
})();
