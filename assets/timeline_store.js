"use strict";
/* What the live timeline knows: lanes of typed columns, requests, and the figures made of them.

   The formulas are those of tracing/metrics.py and tracing/bubbles.py; tests/test_live.py compares them on the same
   window. Times are nanoseconds after the stream's base, exact in a double. */
(() => {
  if (window.photonTimelineStore) return;

  const MAX_LANE = 40000; // spans per lane; when one is full, all lanes forget the time of its oldest quarter
  const MAX_REQUESTS = 2000, MAX_REQUEST_LANES = 12;

  // ---- interval sets: flat arrays [start, end, start, end, ...], sorted and disjoint -------------------------

  const total = (set) => { let sum = 0; for (let i = 0; i < set.length; i += 2) sum += set[i + 1] - set[i]; return sum; };

  function extend(set, start, end) { // start ascends from call to call
    if (end <= start) return;
    const last = set.length - 1;
    if (last > 0 && start <= set[last]) set[last] = Math.max(set[last], end);
    else set.push(start, end);
  }

  function intersect(x, y) {
    const out = [];
    for (let i = 0, j = 0; i < x.length && j < y.length;) {
      const start = Math.max(x[i], y[j]), end = Math.min(x[i + 1], y[j + 1]);
      if (start < end) out.push(start, end);
      if (x[i + 1] < y[j + 1]) i += 2; else j += 2;
    }
    return out;
  }

  function subtract(x, y) {
    const out = [];
    for (let i = 0, j = 0; i < x.length; i += 2) {
      let start = x[i];
      while (j < y.length && y[j + 1] <= start) j += 2;
      for (let k = j; k < y.length && y[k] < x[i + 1]; k += 2) {
        if (y[k] > start) out.push(start, y[k]);
        start = Math.max(start, y[k + 1]);
      }
      if (start < x[i + 1]) out.push(start, x[i + 1]);
    }
    return out;
  }

  // ---- store -------------------------------------------------------------------------------------------------

  const COLUMNS = { start: Float64Array, end: Float64Array, reach: Float64Array, step: Float64Array, rows: Int32Array,
    zombies: Int32Array, padding: Int32Array, slot: Int16Array, name: Uint16Array, category: Uint8Array };

  class Lane {
    // Columns sorted by start; reach[i] is the latest end of spans 0..i, so that it can be searched too.
    constructor(key) { this.key = key; this.size = 0; this.room = 0; this.grow(1024); }

    grow(room) {
      for (const [name, type] of Object.entries(COLUMNS)) {
        const old = this[name];
        this[name] = new type(room);
        if (old) this[name].set(old.subarray(0, this.size));
      }
      this.room = room;
    }

    push(span) {
      if (this.size === this.room) this.grow(2 * this.room);
      let i = this.size++;
      for (; i > 0 && this.start[i - 1] > span.start; i--) for (const c in COLUMNS) this[c][i] = this[c][i - 1];
      for (const c in COLUMNS) if (c !== "reach") this[c][i] = span[c];
      for (; i < this.size; i++) this.reach[i] = Math.max(this.end[i], i ? this.reach[i - 1] : 0);
    }

    firstAfter(time) { // the first span that may end after `time`; spans before it have all ended
      let low = 0, high = this.size;
      while (low < high) { const mid = (low + high) >> 1; if (this.reach[mid] > time) high = mid; else low = mid + 1; }
      return low;
    }

    forget(time) { // drops the spans that ended before
      const first = this.firstAfter(time);
      for (const c in COLUMNS) this[c].copyWithin(0, first, this.size);
      this.size -= first;
    }
  }

  class Store {
    constructor(config) { this.config = config; this.clear(); }

    clear() {
      this.base = null; this.names = []; this.lanes = new Map(); this.requests = new Map(); this.freeAt = [];
      this.spans = 0; this.latest = 0; this.dropped = 0; this.skipped = 0; this.maxRows = 4; this.forgot = 0;
      this.categories = Object.keys(this.config.categories);
      for (const key of this.config.lanes) this.lanes.set(key, new Lane(key));
    }

    relative(time) { // a time of the producer's clock, as text, BigInt or number
      return typeof time === "number" ? time - Number(this.base ?? 0) : Number(BigInt(time) - BigInt(this.base ?? 0));
    }

    take(message) { // -> [earliest, latest] of what came, or null
      if (message.reset) this.clear();
      this.base = message.base;
      this.names.length = message.names_from;
      this.names.push(...message.names);
      this.dropped = message.dropped; this.skipped += message.skipped;
      const touched = [Infinity, -Infinity];
      this.takeSpans(message.spans, touched);
      this.takeMarks(message.marks, touched);
      if (touched[1] > this.latest) this.latest = touched[1];
      return touched[0] <= touched[1] ? touched : null;
    }

    takeSpans(s, touched) {
      for (let i = 0; i < s.start.length; i++) {
        const start = s.t0 + s.start[i], end = start + s.dur[i];
        const track = this.names[s.track[i]], name = this.names[s.name[i]], kind = this.names[s.kind[i]], slot = s.slot[i];
        const category = this.categories.indexOf(this.categoryOf(track, name, kind));
        const lane = this.lanes.get(this.laneOf(track, name, slot));
        lane.push({ start, end, step: s.step[i], rows: s.rows[i], zombies: s.zombies[i], padding: s.padding[i], slot,
          name: s.name[i], category });
        if (start < touched[0]) touched[0] = start;
        if (end > touched[1]) touched[1] = end;
        this.maxRows = Math.max(this.maxRows, s.rows[i] + s.padding[i]);
        if (lane.size > MAX_LANE) this.forget(lane.start[MAX_LANE >> 2]);
      }
      this.spans += s.start.length;
    }

    forget(time) { this.forgot = time; for (const lane of this.lanes.values()) lane.forget(time); }

    laneOf(track, name, slot) {
      if (track === "host") return this.config.hostPhases.includes(name) ? "host." + name : "host.other";
      if (track === "compute") return slot === 0 || slot === 1 ? "slot " + slot : "device";
      return "copy";
    }

    categoryOf(track, name, kind) {
      if (track === "compute" && name === "sample") return "device_sample";
      if (track === "compute" && name === "forward") return kind === "prefill" || kind === "decode" ? kind : "other";
      return name in this.config.categories ? name : "other";
    }

    takeMarks(m, touched) {
      for (let i = 0; i < m.time.length; i++) {
        const time = m.t0 + m.time[i], name = this.names[m.name[i]], step = m.step[i];
        const r = this.request(m.request[i], time);
        if (name === "token" || name === "first_token") {
          if (step < 0 ? r.tokens.at(-1) !== time : r.lastStep !== step) r.tokens.push(time);
          r.lastStep = step;
        }
        if (name === "finish" || name === "cancel") { r.end = Math.min(r.end ?? time, time); this.freeAt[r.lane] = time; }
        if (r[name] === undefined) r[name] = time;
        if (time < touched[0]) touched[0] = time;
        if (time > touched[1]) touched[1] = time;
      }
    }

    request(id, time) {
      const known = this.requests.get(id);
      if (known) return known;
      let lane = 0;
      while (lane < MAX_REQUEST_LANES && this.freeAt[lane] > time) lane++;
      this.freeAt[lane] = Infinity;
      const made = { id, lane, tokens: [], lastStep: -1 };
      this.requests.set(id, made);
      if (this.requests.size > MAX_REQUESTS) this.requests.delete(this.requests.keys().next().value);
      return made;
    }

    // -- what the metrics are made of; all clipped to [a, b)

    union(keys, a, b) {
      const lanes = keys.map((key) => this.lanes.get(key)), at = lanes.map((lane) => lane.firstAfter(a)), set = [];
      for (;;) {
        let next = -1;
        for (let k = 0; k < lanes.length; k++) {
          if (at[k] < lanes[k].size && (next < 0 || lanes[k].start[at[k]] < lanes[next].start[at[next]])) next = k;
        }
        if (next < 0 || lanes[next].start[at[next]] >= b) return set;
        const i = at[next]++;
        extend(set, Math.max(lanes[next].start[i], a), Math.min(lanes[next].end[i], b));
      }
    }

    device(a, b) { return this.union(["slot 0", "slot 1", "device"], a, b); }

    host(a, b) { return this.union(this.config.lanes.filter((k) => k.startsWith("host.") && k !== "host.wait"), a, b); }

    demand(a, b) {
      const lives = [...this.requests.values()].map((r) => [Math.max(r.arrival ?? a, a), Math.min(r.end ?? b, b)]);
      const set = [];
      for (const [start, end] of lives.sort((x, y) => x[0] - y[0])) extend(set, start, end);
      return set;
    }

    bubbles(a, b) { return subtract(this.demand(a, b), this.device(a, b)); }

    makespan(a, b) {
      let first = b, last = a;
      for (const lane of this.lanes.values()) {
        for (let i = lane.firstAfter(a); i < lane.size && lane.start[i] < b; i++) {
          if (lane.end[i] <= a) continue;
          first = Math.min(first, Math.max(lane.start[i], a)); last = Math.max(last, Math.min(lane.end[i], b));
        }
      }
      return Math.max(last - first, 0);
    }

    decodeRows(a, b) { // [rows, zombies] of the decode steps that start in [a, b)
      let rows = 0, zombies = 0;
      const decode = this.categories.indexOf("decode");
      for (const lane of ["slot 0", "slot 1", "device"].map((key) => this.lanes.get(key))) {
        for (let i = lane.firstAfter(a - 1); i < lane.size && lane.start[i] < b; i++) {
          if (lane.start[i] < a || lane.category[i] !== decode) continue;
          rows += lane.rows[i]; zombies += lane.zombies[i];
        }
      }
      return [rows, zombies];
    }

    metrics(a, b) { // keys and formulas of tracing/metrics.py; null where there is nothing to divide
      const ratio = (part, whole) => (whole ? part / whole : null);
      const G = this.device(a, b), H = this.host(a, b), D = this.demand(a, b);
      const busy = total(G), host = total(H), [rows, zombies] = this.decodeRows(a, b);
      let tokens = this.requests.size ? 0 : null;
      for (const r of this.requests.values()) {
        if (r.cancel === undefined) for (const t of r.tokens) if (t >= a && t <= b) tokens++;
      }
      return {
        device_busy_percent: ratio(100 * busy, b - a),
        bubble_percent: ratio(100 * total(subtract(D, G)), total(D)),
        overlap_factor: ratio(host + busy, this.makespan(a, b)),
        host_hidden_percent: ratio(100 * total(intersect(H, G)), host),
        zombie_rows_percent: ratio(100 * zombies, rows),
        tokens_per_s: tokens === null ? null : ratio(tokens * 1e9, b - a),
      };
    }

    // -- why a gap [a, b) was there, as tracing/bubbles.py says it

    ender(b) { // the device span that starts where the gap ends: [lane, index] or null
      for (const lane of ["slot 0", "slot 1", "device"].map((key) => this.lanes.get(key))) {
        for (let i = lane.firstAfter(b); i < lane.size && lane.start[i] <= b; i++) if (lane.start[i] === b) return [lane, i];
      }
      return null;
    }

    enqueued(lane, i) { // when the host had enqueued that device span; null if unknown
      const sampling = this.categories[lane.category[i]] === "device_sample";
      const host = this.lanes.get(sampling ? "host.sample" : "host.launch");
      for (let k = Math.min(host.size, host.firstAfter(lane.start[i]) + 2) - 1, n = 0; k >= 0 && n < 200; k--, n++) {
        if (host.step[k] === lane.step[i]) return host.end[k];
      }
      return null;
    }

    cause(a, b) { // {host, latency, phases: [[name, ns], ...] of the host's part, longest first}
      const work = this.ender(b), done = work && this.enqueued(...work);
      const host = done === null ? b - a : Math.min(Math.max(done - a, 0), b - a);
      const phases = this.config.lanes.filter((key) => key.startsWith("host."))
        .map((key) => [key.slice(5), total(this.union([key], a, a + host))]);
      const rest = host - phases.reduce((sum, p) => sum + p[1], 0);
      phases.find((p) => p[0] === "other")[1] += Math.max(rest, 0);
      return { host, latency: b - a - host, phases: phases.filter((p) => p[1] > 0).sort((x, y) => y[1] - x[1]) };
    }
  }

  window.photonTimelineStore = { Store, Lane, MAX_REQUEST_LANES };
})();
