"use strict";
/* Sets of time as flat arrays [start, end, start, end, ...], sorted and disjoint; tracing/intervals.py in JavaScript. */
(() => {
  const parts = (window.photonTimelineParts ??= {});

  const total = (set) => { let sum = 0; for (let i = 0; i < set.length; i += 2) sum += set[i + 1] - set[i]; return sum; };

  function extend(set, start, end) { // in place; start ascends from call to call
    if (end <= start) return;
    const last = set.length - 1;
    if (last > 0 && start <= set[last]) set[last] = Math.max(set[last], end);
    else set.push(start, end);
  }

  function union(pairs) { // [[start, end], ...] in any order
    const set = [];
    for (const [start, end] of pairs.sort((x, y) => x[0] - y[0])) extend(set, start, end);
    return set;
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

  parts.intervals = { total, extend, union, intersect, subtract };
})();
