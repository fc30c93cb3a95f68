"use strict";
/* What the timeline knows: lanes of typed columns, steps, requests. Fed by the messages of tracing/ui/stream.py.

   Times are nanoseconds after the stream's base, exact in a double. */
(() => {
  const parts = window.photonTimelineParts, { extend } = parts.intervals;

  const MAX_REQUEST_LANES = 32, MAX_STEP_ROWS = 60000;
  const DEVICE_LANES = ["slot 0", "slot 1", "device"];
  const ENDS = ["finish", "cancel", "release"]; // a release follows its finish, which may lie before what was sent
  const ZOMBIE = 1, DELIVERED = 2; // flags of a row

  const COLUMNS = { start: Float64Array, end: Float64Array, reach: Float64Array, step: Float64Array, rows: Int32Array,
    zombies: Int32Array, padding: Int32Array, slot: Int16Array, name: Uint16Array, category: Uint8Array };

  class Lane {
    // Columns sorted by start; reach[i] is the latest end of spans 0..i, so that it can be searched too.
    constructor() { this.size = 0; this.room = 0; this.grow(1024); }

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
      for (; i < this.size; i++) this.reach[i] = Math.max(this.end[i], i ? this.reach[i - 1] : -Infinity);
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
    /* When a lane holds maxLane spans, all lanes forget the time of its oldest quarter. */
    constructor(config, { maxLane, maxRequests }) {
      Object.assign(this, { config, maxLane, maxRequests });
      this.categories = Object.keys(config.categories);
      this.clear();
    }

    clear() {
      this.base = null; this.names = []; this.requests = new Map(); this.steps = new Map(); this.rows = new Map(); this.freeAt = [];
      this.lanes = new Map(this.config.lanes.map((key) => [key, new Lane()]));
      this.spans = 0; this.latest = 0; this.settled = 0; this.dropped = 0; this.skipped = 0; this.maxRows = 4; this.forgot = 0;
      this.lastStep = -1; this.info = {}; this.found = new Set(); this.epoch = (this.epoch ?? 0) + 1;
    }

    seen(category) { return ["bubble", "zombie"].includes(category) || this.found.has(this.categories.indexOf(category)); }

    get held() { let n = 0; for (const lane of this.lanes.values()) n += lane.size; return n; }

    get first() { // the start of the oldest span held
      let first = this.latest;
      for (const lane of this.lanes.values()) if (lane.size) first = Math.min(first, lane.start[0]);
      return first;
    }

    get known() { // up to here all device work is told: that of a step comes with its commit
      const [launched, committed] = ["host.launch", "host.commit"].map((key) => this.lanes.get(key)).map((lane) => (lane.size ? lane.step[lane.size - 1] : -1));
      if (launched <= committed) return this.latest;
      return Math.max(...this.deviceLanes.map((lane) => (lane.size ? lane.reach[lane.size - 1] : -Infinity)), this.forgot);
    }

    get deviceLanes() { return DEVICE_LANES.map((key) => this.lanes.get(key)); }

    relative(time) { // a time of the producer's clock, as text, BigInt or number
      return typeof time === "number" ? time - Number(this.base ?? 0) : Number(BigInt(time) - BigInt(this.base ?? 0));
    }

    take(message) { // -> [earliest, latest] of what came, or null
      if (message.reset) this.clear();
      this.base = message.base;
      this.names.length = message.names_from;
      this.names.push(...message.names);
      this.dropped = message.dropped; this.skipped += message.skipped;
      Object.assign(this.info, message.info);
      const touched = [Infinity, -Infinity];
      this.takeSpans(message.spans, touched);
      const spansTo = touched[1];
      this.takeMarks(message.marks, touched);
      const rowsTo = this.takeRows(message.rows);
      this.settled = Math.max(this.settled, Math.min(spansTo, rowsTo)); // both kinds have come up to here
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
        this.found.add(category);
        if (s.step[i] >= 0) this.takeStep(s.step[i], start, end);
        if (start < touched[0]) touched[0] = start;
        if (end > touched[1]) touched[1] = end;
        this.maxRows = Math.max(this.maxRows, s.rows[i] + s.padding[i]);
        if (lane.size > this.maxLane) this.forget(lane.start[this.maxLane >> 2]);
      }
      this.spans += s.start.length;
    }

    takeStep(id, start, end) {
      const step = this.steps.get(id);
      if (!step) { this.steps.set(id, { id, start, end }); this.lastStep = Math.max(this.lastStep, id); return; }
      if (start < step.start) step.start = start;
      if (end > step.end) step.end = end;
    }

    forget(time) {
      this.forgot = time;
      for (const lane of this.lanes.values()) lane.forget(time);
      for (const [id, step] of this.steps) { if (step.end > time) break; this.steps.delete(id); }
    }

    laneOf(track, name, slot) {
      if (track === "host") { const lane = `host.${name.split(":")[0]}`; return this.lanes.has(lane) ? lane : "host.other"; }
      if (track === "compute") return slot === 0 || slot === 1 ? `slot ${slot}` : "device";
      return "copy";
    }

    categoryOf(track, name, kind) {
      const word = name.split(":")[0];
      if (track === "compute" && name === "sample") return "device_sample";
      if (track === "compute" && name === "forward") return kind === "prefill" || kind === "decode" ? kind : "other";
      return word in this.config.categories ? word : "other";
    }

    takeMarks(m, touched) {
      for (let i = 0; i < m.time.length; i++) {
        const time = m.t0 + m.time[i], name = this.names[m.name[i]];
        const r = this.request(m.request[i], time);
        if (name === "first_token") addToken(r, time);
        if (ENDS.includes(name)) { r.end = Math.min(r.end ?? time, time); this.freeAt[r.lane] = time; }
        if (r[name] === undefined) r[name] = time;
        if (time < touched[0]) touched[0] = time;
        if (time > touched[1]) touched[1] = time;
      }
    }

    takeRows(rows) { // who rode in which step, and which tokens that gave -> the time of the last
      for (let i = 0; i < rows.time.length; i++) {
        const step = rows.step[i], id = rows.request[i], r = this.requests.get(id);
        if (!this.rows.has(step)) this.rows.set(step, []);
        this.rows.get(step).push(id);
        if (this.rows.size > MAX_STEP_ROWS) this.rows.delete(this.rows.keys().next().value);
        if (r && rows.flags[i] & DELIVERED) addToken(r, rows.t0 + rows.time[i]);
        if (r && rows.flags[i] & ZOMBIE) r.zombieRows++;
      }
      return rows.time.length ? rows.t0 + rows.time.at(-1) : this.rows.size ? -Infinity : Infinity;
    }

    request(id, time) {
      const known = this.requests.get(id);
      if (known) return known;
      let lane = 0;
      while (lane < MAX_REQUEST_LANES && this.freeAt[lane] > time) lane++;
      this.freeAt[lane] = Infinity;
      const made = { id, lane, tokens: [], zombieRows: 0 };
      this.requests.set(id, made);
      if (this.requests.size > this.maxRequests) this.requests.delete(this.requests.keys().next().value);
      return made;
    }

    *living(a, b) { // requests some part of which lies in (a, b), with their start and end
      for (const r of this.requests.values()) {
        const start = r.arrival ?? a, end = r.end ?? Math.max(this.latest, start), gone = Math.max(r.release ?? end, end);
        if (start < b && gone > a && r.lane < MAX_REQUEST_LANES) yield { r, start, end, gone };
      }
    }

    // -- spans of a step

    neighbour(step, by) { // the nearest step held before (by = -1) or after (by = 1) it, or null
      const oldest = this.steps.keys().next().value ?? 0;
      for (let id = step + by; id >= oldest && id <= this.lastStep; id += by) if (this.steps.has(id)) return id;
      return null;
    }

    *spansOf(step) { // {lane, index} of every span of a step
      const extent = this.steps.get(step);
      if (!extent) return;
      for (const [key, lane] of this.lanes) {
        for (let i = lane.firstAfter(extent.start - 1); i < lane.size && lane.start[i] <= extent.end; i++) {
          if (lane.step[i] === step) yield this.spanAt(key, i);
        }
      }
    }

    spanAt(key, i) { // a span as one object; indices move when spans are forgotten, this does not
      const lane = this.lanes.get(key), category = this.categories[lane.category[i]];
      return { lane: key, start: lane.start[i], end: lane.end[i], step: lane.step[i], slot: lane.slot[i], rows: lane.rows[i],
        zombies: lane.zombies[i], padding: lane.padding[i], category, name: this.names[lane.name[i]] };
    }

    launchOf(step) { // [host span, device span it enqueued] of a step's launch; null for what is not held
      let host = null, device = null;
      for (const span of this.spansOf(step)) {
        if (span.lane === "host.launch") host ??= span;
        const isWork = DEVICE_LANES.includes(span.lane) && span.category !== "device_sample";
        if (isWork && (!device || span.start < device.start)) device = span;
      }
      return [host, device];
    }

    workOf(step) { // the longest device span of a step, or null
      let best = null;
      for (const span of this.spansOf(step)) {
        if (DEVICE_LANES.includes(span.lane) && (!best || span.end - span.start > best.end - best.start)) best = span;
      }
      return best;
    }

    sampleOf(step) { // the same of its sample
      let host = null, device = null;
      for (const span of this.spansOf(step)) {
        if (span.lane === "host.sample") host ??= span;
        if (span.category === "device_sample") device ??= span;
      }
      return [host, device];
    }

    // -- what the figures are made of; all clipped to [a, b)

    union(keys, a, b) {
      const lanes = keys.map((key) => this.lanes.get(key)).filter(Boolean), at = lanes.map((lane) => lane.firstAfter(a)), set = [];
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
  }

  function addToken(r, time) { // once per instant, in order; nearly always at the end
    let i = r.tokens.length;
    while (i > 0 && r.tokens[i - 1] > time) i--;
    if (r.tokens[i - 1] !== time) r.tokens.splice(i, 0, time);
  }

  Object.assign(parts, { Store, Lane, DEVICE_LANES });
})();
