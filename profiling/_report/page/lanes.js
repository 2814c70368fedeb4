// Where the events of the timeline go, and how they are painted. Times in nanoseconds.

const LANE_PX = { compute: 44, communication: 26, gap: 3 };
const MOST_LANES = 3;

// Events as typed arrays, split into lanes whose events do not overlap.
function makeLanes(timeline) {
  const packed = timeline.events, n = packed.length;
  const get = (key) => column(packed.columns[key] || [], n);
  const start = Float64Array.from(get("start_ns"));
  const length = Float64Array.from(get("duration_ns"));
  const events = {
    count: n, start, length,
    end: start.map((s, i) => s + length[i]),
    name: get("name"), stream: get("stream"), kind: get("kind"),
    runs: get("num_runs"), module: get("module"), phase: get("phase"),
  };
  events.group = events.name.map((name, i) => {
    if (events.stream[i] !== "communication") return kindClass(events.kind[i]);
    const c = collectiveByName.get(name);
    return c ? roleClass(c.role) : "unknown";
  });
  const order = Array.from({ length: n }, (_, i) => i)
    .sort((a, b) => start[a] - start[b] || a - b);
  const streams = {};
  for (const stream of ["compute", "communication"]) {
    streams[stream] = stack(order.filter((i) => events.stream[i] === stream), events);
  }
  events.lane = new Uint8Array(n);
  for (const lanes of Object.values(streams)) {
    lanes.forEach((lane, at) => lane.forEach((i) => { events.lane[i] = at; }));
  }
  const total = Math.max(timeline.step_s * 1e9, ...last(streams, events)) || 1;
  return {
    events, streams, total,
    phases: phaseRuns(streams.compute[0] || [], events),
    waits: waits(streams, events),
  };
}

function last(streams, events) {
  return Object.values(streams).flat().filter((lane) => lane.length)
    .map((lane) => events.end[lane[lane.length - 1]]);
}

// First lane that is free, by the order of starts.
function stack(indices, events) {
  const lanes = [], free = [];
  for (const i of indices) {
    let at = free.findIndex((end) => end <= events.start[i] + 0.2);
    if (at < 0) at = Math.min(free.length, MOST_LANES - 1);
    (lanes[at] = lanes[at] || []).push(i);
    free[at] = Math.max(free[at] || 0, events.end[i]);
  }
  return lanes.map((lane) => Int32Array.from(lane));
}

// Stretches of compute in one phase, as a lane of its own.
function phaseRuns(lane, events) {
  const runs = { start: [], end: [], group: [] };
  for (const i of lane) {
    const phase = events.phase[i], at = runs.group.length - 1;
    if (!PHASES.includes(phase)) continue;
    if (at >= 0 && runs.group[at] === phase) runs.end[at] = events.end[i];
    else { runs.start.push(events.start[i]); runs.end.push(events.end[i]); runs.group.push(phase); }
  }
  return runs;
}

// Stretches in which communication runs and compute does not.
function waits(streams, events) {
  const busy = union(streams.compute, events), talk = union(streams.communication, events);
  const found = { start: [], end: [] };
  let b = 0;
  for (let [from, to] of talk) {
    while (b < busy.length && busy[b][1] <= from) b += 1;
    for (let k = b; from < to; k += 1) {
      const until = k < busy.length ? Math.min(to, busy[k][0]) : to;
      if (until > from + 0.2) { found.start.push(from); found.end.push(until); }
      from = k < busy.length ? Math.max(from, busy[k][1]) : to;
    }
  }
  return found;
}

function union(lanes, events) {
  const spans = lanes.flatMap((lane) => Array.from(lane, (i) => [events.start[i], events.end[i]]));
  spans.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [from, to] of spans) {
    const top = merged[merged.length - 1];
    if (top && from <= top[1] + 0.2) top[1] = Math.max(top[1], to);
    else merged.push([from, to]);
  }
  return merged;
}

// First of `count` sorted things whose end is beyond t.
function firstAfter(count, end, t) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (end(middle) > t) high = middle; else low = middle + 1;
  }
  return low;
}

// Paint sorted spans between `from` and `to`. Spans below a pixel share one: it takes the
// colour of the longest and is as dense as it is full, so nothing vanishes when far out.
function paintSpans(pen, view, spans, y, height, style) {
  const scale = view.width / (view.to - view.from);
  let pixel = -1, fill = 0, longest = 0, group = null;
  const flush = () => {
    if (pixel < 0) return;
    pen.globalAlpha = style.alpha(group) * Math.max(0.4, Math.min(1, fill));
    pen.fillStyle = style.colour(group);
    pen.fillRect(pixel, y, 1, height);
    pixel = -1; fill = 0; longest = 0;
  };
  for (let k = firstAfter(spans.count, spans.end, view.from); k < spans.count; k += 1) {
    const start = spans.start(k);
    if (start > view.to) break;
    const x0 = (start - view.from) * scale, x1 = (spans.end(k) - view.from) * scale;
    if (x1 - x0 < 1) {
      const at = Math.max(0, Math.floor(x0));
      if (at !== pixel) { flush(); pixel = at; }
      fill += x1 - x0;
      if (x1 - x0 >= longest) { longest = x1 - x0; group = spans.group(k); }
      continue;
    }
    flush();
    const left = Math.max(-2, x0), right = Math.min(view.width + 2, x1);
    const own = spans.group(k);
    pen.globalAlpha = style.alpha(own);
    pen.fillStyle = style.colour(own);
    pen.fillRect(left, y, right - left - (right - left > 4 ? 1 : 0), height);
    if (style.text && right - left > 34) style.text(k, Math.max(0, left), right, own);
  }
  flush();
  pen.globalAlpha = 1;
}

function laneSpans(lane, events) {
  return {
    count: lane.length,
    start: (k) => events.start[lane[k]],
    end: (k) => events.end[lane[k]],
    group: (k) => events.group[lane[k]],
  };
}

function runSpans(runs, group) {
  return {
    count: runs.start.length,
    start: (k) => runs.start[k],
    end: (k) => runs.end[k],
    group: (k) => (runs.group ? runs.group[k] : group),
  };
}
