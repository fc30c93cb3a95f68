"use strict";
/* The figures of a window and the causes of its bubbles.

   The formulas are those of tracing/metrics.py, latency.py and bubbles.py; tests/test_live.py compares them on the
   same window. Null where there is nothing to divide. */
(() => {
  const parts = window.photonTimelineParts, { total, union, intersect, subtract } = parts.intervals;
  const { DEVICE_LANES } = parts;
  const EPSILON = 2000; // shorter gaps are no bubbles
  const SECOND = 1e9, SECONDS = 60, AT_ONCE = 4, LATE = 0.3e9; // records of a second may come this late

  const INNER = ["sync", "injected", "wait"]; // inside another phase these count, not that

  const ratio = (part, whole) => (whole ? part / whole : null);

  function percentile(values, q) { // linear between neighbours, as numpy's
    if (!values.length) return null;
    const sorted = values.sort((x, y) => x - y), at = (q / 100) * (sorted.length - 1), low = Math.floor(at);
    return sorted[low] + (at - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
  }

  class Figures {
    constructor(store) { this.store = store; }

    device(a, b) { return this.store.union(DEVICE_LANES, a, b); }

    host(a, b) {
      const waits = ["host.wait", "host.sync"], lanes = [...this.store.lanes.keys()].filter((k) => k.startsWith("host."));
      return subtract(this.store.union(lanes.filter((k) => !waits.includes(k)), a, b), this.store.union(waits, a, b));
    }

    demand(a, b) {
      return union([...this.store.requests.values()].map((r) => [Math.max(r.arrival ?? a, a), Math.min(r.end ?? b, b)]));
    }

    gaps(a, b) {
      const end = Math.min(b, this.store.known);
      return subtract(this.demand(a, end), this.device(a, end));
    }

    bubbles(a, b) { // the gaps long enough to count
      const set = this.gaps(a, b), out = [];
      for (let i = 0; i < set.length; i += 2) if (set[i + 1] - set[i] > EPSILON) out.push(set[i], set[i + 1]);
      return out;
    }

    lastRun() { // [start, end] of the newest stretch of demand, or null
      const set = this.demand(this.store.forgot, this.store.latest);
      return set.length ? set.slice(-2) : null;
    }

    makespan(a, b) {
      let first = b, last = a;
      for (const lane of this.store.lanes.values()) {
        const i = lane.firstAfter(a);
        if (i < lane.size && lane.start[i] < b) first = Math.min(first, Math.max(lane.start[i], a));
        for (let k = i; k < lane.size && lane.start[k] < b; k++) if (lane.end[k] > last) last = lane.end[k];
      }
      return Math.max(Math.min(last, b) - first, 0);
    }

    decodeRows(a, b) { // {rows, zombies, dead}: sums over decode steps that start in [a, b); dead = ns that zombies took
      const out = { steps: 0, rows: 0, zombies: 0, dead: 0 }, decode = this.store.categories.indexOf("decode");
      for (const lane of this.store.deviceLanes) {
        for (let i = lane.firstAfter(a - 1); i < lane.size && lane.start[i] < b; i++) {
          if (lane.start[i] < a || lane.category[i] !== decode) continue;
          out.steps++; out.rows += lane.rows[i]; out.zombies += lane.zombies[i];
          if (lane.rows[i]) out.dead += ((Math.min(lane.end[i], b) - lane.start[i]) * lane.zombies[i]) / lane.rows[i];
        }
      }
      return out;
    }

    depth(a, b) { // ns that steps were in flight, summed; what is not in the window lies outside of it
      const [starts, ends] = ["launch", "commit"].map((phase) => {
        const lane = this.store.lanes.get(`host.${phase}`), at = new Map();
        for (let i = lane.firstAfter(a); i < lane.size && lane.start[i] < b; i++) {
          if (lane.end[i] > a) at.set(lane.step[i], phase === "launch" ? lane.start[i] : lane.end[i]);
        }
        return at;
      });
      let sum = 0;
      for (const step of new Set([...starts.keys(), ...ends.keys()])) sum += Math.min(ends.get(step) ?? b, b) - Math.max(starts.get(step) ?? a, a);
      return sum;
    }

    latencies(a, b) { // {tokens, ttft, itl}: tokens of requests not cancelled; ms
      const out = { tokens: this.store.requests.size ? 0 : null, ttft: [], itl: [] };
      for (const r of this.store.requests.values()) {
        const t = r.tokens, first = r.first_token ?? (r.arrival === undefined ? undefined : t[0]);
        if (first >= a && first <= b && r.arrival !== undefined) out.ttft.push((first - r.arrival) / 1e6);
        for (let i = search(t, a); i < t.length && t[i] <= b; i++) {
          if (r.cancel === undefined) out.tokens++;
          if (i) out.itl.push((t[i] - t[i - 1]) / 1e6);
        }
      }
      return out;
    }

    metrics(a, b) {
      const G = this.device(a, b), H = this.host(a, b), D = this.demand(a, b), busy = total(G), host = total(H);
      const rows = this.decodeRows(a, b), late = this.latencies(a, b), leaks = this.leaks(a, b);
      return {
        device_busy_percent: ratio(100 * busy, b - a),
        bubble_percent: ratio(100 * total(subtract(D, G)), total(D)),
        host_hidden_percent: ratio(100 * total(intersect(H, G)), host),
        overlap_factor: ratio(host + busy, this.makespan(a, b)),
        pipeline_depth: ratio(this.depth(a, b), total(D)),
        zombie_rows_percent: ratio(100 * rows.zombies, rows.rows),
        zombie_tax_upper_percent: ratio(100 * rows.dead, busy),
        tokens_per_s: late.tokens === null ? null : ratio(late.tokens * 1e9, b - a),
        ttft_p50_ms: percentile(late.ttft, 50), ttft_p99_ms: percentile(late.ttft, 99),
        itl_p50_ms: percentile(late.itl, 50), itl_p99_ms: percentile(late.itl, 99),
        sync_leaks: leaks.count, sync_leak_ms: leaks.ms,
      };
    }

    leaks(a, b) { // how often and how long the host waited for the device inside launch or sample; null without those
      const lanes = ["host.sync", "host.launch", "host.sample"].map((key) => this.store.lanes.get(key)), [sync] = lanes;
      const touches = (lane) => { const i = lane.firstAfter(a); return i < lane.size && lane.start[i] < b; };
      if (!lanes.slice(1).some(touches)) return { count: null, ms: null };
      let count = 0;
      for (let i = sync.firstAfter(a); i < sync.size && sync.start[i] < b; i++) if (sync.end[i] > a) count++;
      return { count, ms: total(this.store.union(["host.sync"], a, b)) / 1e6 };
    }

    // -- why a gap [a, b) was there

    ender(b) { // the device span that starts where the gap ends, or null
      for (const key of DEVICE_LANES) {
        const lane = this.store.lanes.get(key);
        for (let i = lane.firstAfter(b); i < lane.size && lane.start[i] <= b; i++) {
          if (lane.start[i] === b) return this.store.spanAt(key, i);
        }
      }
      return null;
    }

    cause(a, b) { // {work, host, latency, phases: [[name, ns], ...] of the host's part, longest first}
      const work = this.ender(b);
      const by = work && (work.category === "device_sample" ? this.store.sampleOf(work.step) : this.store.launchOf(work.step))[0];
      const host = by ? Math.min(Math.max(by.end - a, 0), b - a) : b - a;
      const inner = this.store.union(INNER.map((name) => `host.${name}`), a, a + host);
      const phases = [...INNER, ...this.store.config.hostPhases.filter((name) => !INNER.includes(name))].map((name) => {
        const own = this.store.union([`host.${name}`], a, a + host);
        return [name, total(INNER.includes(name) ? own : subtract(own, inner))];
      });
      phases.push(["other", Math.max(host - phases.reduce((sum, p) => sum + p[1], 0), 0)]);
      return { work, host, latency: b - a - host, phases: phases.filter((p) => p[1] > 0).sort((x, y) => y[1] - x[1]) };
    }
  }

  function search(times, a) { // the first index with times[i] >= a
    let low = 0, high = times.length;
    while (low < high) { const mid = (low + high) >> 1; if (times[mid] >= a) high = mid; else low = mid + 1; }
    return low;
  }

  class History { // the figures of every whole second of the trace, the last 60 of them: for the sparklines
    constructor(figures) { Object.assign(this, { figures, seconds: [], next: null, last: 0, epoch: 0 }); }

    get isBehind() { return this.next < this.last; }

    update() { // a few seconds at a time, each once -> whether there are more
      const { store } = this.figures, before = this.seconds.length;
      if (this.epoch !== store.epoch) Object.assign(this, { seconds: [], next: null, epoch: store.epoch });
      this.last = Math.floor((Math.min(store.settled, store.known) - LATE) / SECOND);
      this.next = Math.max(this.next ?? Math.floor(store.first / SECOND), this.last - SECONDS);
      const from = this.next, to = Math.min(this.last, from + AT_ONCE);
      for (; this.next < to; this.next++) {
        const a = this.next * SECOND;
        this.seconds.push({ second: this.next, values: this.figures.metrics(a, a + SECOND) });
      }
      this.seconds = this.seconds.filter((s) => s.second >= this.last - SECONDS);
      return this.next > from || this.seconds.length !== before;
    }

    of(key) { // [[seconds ago, value], ...]
      return this.seconds.map((s) => [this.last - 1 - s.second, s.values[key]]).filter((s) => s[1] !== null);
    }
  }

  Object.assign(parts, { Figures, History, SECONDS });
})();
