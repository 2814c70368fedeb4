// The timeline: a strip of the whole step, and a view into it that zooms and pans.

const RULER_PX = 22, PHASE_PX = 16, TITLE_PX = 17, WAIT_PX = 9, STRIP_PX = 40;
const CLOSEST_NS = 20; // no view is narrower than this

// Returns { highlight(names), open(name) } for the table of collectives.
function makeTimeline(timeline, { onShowRow }) {
  const model = makeLanes(timeline), { events, streams, total } = model;
  const view = { from: 0, to: total, width: 0 };
  const box = byId("timeline-box"), canvas = byId("timeline"), strip = byId("strip");
  const tip = byId("tip"), detail = byId("detail");
  const pen = canvas.getContext("2d"), stripPen = strip.getContext("2d");
  const marked = new Set();
  let hovered = -1, opened = -1, only = null, palette = {}, waiting = false, stripImage = null;

  // --- layout -------------------------------------------------------------------------
  const tops = { compute: [], communication: [] };
  let y = RULER_PX + PHASE_PX + 2;
  const titles = [];
  for (const stream of ["compute", "communication"]) {
    titles.push([stream, y]);
    y += TITLE_PX;
    for (let i = 0; i < Math.max(1, streams[stream].length); i += 1) {
      tops[stream].push(y);
      y += LANE_PX[stream] + LANE_PX.gap;
    }
  }
  titles.push(["exposed: communication runs, compute waits", y]);
  const waitTop = y + TITLE_PX, height = waitTop + WAIT_PX + 8;

  function fit() {
    const ratio = window.devicePixelRatio || 1;
    view.width = box.clientWidth;
    for (const [node, tall] of [[canvas, height], [strip, STRIP_PX]]) {
      node.width = Math.round(view.width * ratio);
      node.height = Math.round(tall * ratio);
      node.style.height = `${tall}px`;
      node.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    restyle();
  }

  function restyle() {
    palette = {};
    for (const name of [...ROLES, ...KINDS, ...PHASES]) palette[name] = colour(colourName(name));
    for (const name of ["ink", "ink-soft", "panel", "line", "accent", "bad"]) {
      palette[name] = colour(name);
    }
    stripImage = null;
    redraw();
  }

  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; paint(); });
  }

  // --- painting -----------------------------------------------------------------------
  const style = {
    colour: (group) => palette[group],
    alpha: (group) => (only && group !== only ? 0.12 : 1),
  };

  function paint() {
    pen.clearRect(0, 0, view.width, height);
    paintPhases();
    paintRuler();
    pen.font = "11px system-ui, sans-serif";
    for (const [text, top] of titles) {
      pen.fillStyle = palette["ink-soft"];
      pen.fillText(text, 4, top + 12);
    }
    for (const [stream, lanes] of Object.entries(streams)) {
      lanes.forEach((lane, i) => paintLane(lane, tops[stream][i], LANE_PX[stream]));
    }
    paintSpans(pen, view, runSpans(model.waits, "bad"), waitTop, WAIT_PX,
      { colour: () => palette.bad, alpha: () => 1 });
    for (const i of marked) outline(i, palette.accent, 2);
    if (opened >= 0) outline(opened, palette.ink, 2);
    if (hovered >= 0) outline(hovered, palette.ink, 1.5);
    paintStrip();
  }

  function paintLane(lane, top, tall) {
    pen.fillStyle = palette.line;
    pen.globalAlpha = 0.35;
    pen.fillRect(0, top, view.width, tall);
    pen.globalAlpha = 1;
    pen.font = "11px system-ui, sans-serif";
    paintSpans(pen, view, laneSpans(lane, events), top, tall, {
      ...style,
      text: (k, left, right, group) => label(lane[k], left, right, top + tall / 2 + 4, group),
    });
  }

  function label(i, left, right, middle, group) {
    const c = events.stream[i] === "communication" && collectiveByName.get(events.name[i]);
    const tensor = c && c.tensor, long = tensor || events.name[i];
    const fits = Math.floor((right - left - 8) / 6.2);
    if (fits < 4) return;
    const text = long.length <= fits ? long
      : tensor ? `…${long.slice(1 - fits)}` : `${long.slice(0, fits - 1)}…`;
    pen.fillStyle = textOn(palette[group]);
    pen.globalAlpha = style.alpha(group);
    pen.fillText(text, left + 4, middle);
  }

  function paintPhases() {
    const spans = runSpans(model.phases), scale = view.width / (view.to - view.from);
    pen.font = "11px system-ui, sans-serif";
    paintSpans(pen, view, spans, RULER_PX, PHASE_PX,
      { colour: (group) => palette[group], alpha: () => 1 });
    // A name for each stretch of a phase; what is too short to see does not end it.
    let named = null;
    const name = () => {
      const room = named ? named.right - named.left : 0;
      if (!named || room < named.group.length * 7 + 6) return;
      pen.fillStyle = textOn(palette[named.group]);
      pen.fillText(named.group, named.left + 4, RULER_PX + 12);
    };
    for (let k = firstAfter(spans.count, spans.end, view.from); k < spans.count; k += 1) {
      const left = (spans.start(k) - view.from) * scale, right = (spans.end(k) - view.from) * scale;
      if (left > view.width) break;
      const group = spans.group(k), end = Math.min(right, view.width);
      if (named && named.group === group) named.right = end;
      else if (right - left > 5) { name(); named = { group, left: Math.max(0, left), right: end }; }
      if (right - left < 2) continue;
      pen.globalAlpha = 0.1;
      pen.fillStyle = palette[spans.group(k)];
      pen.fillRect(left, RULER_PX + PHASE_PX, right - left, height);
      pen.globalAlpha = 1;
    }
    name();
  }

  function paintRuler() {
    const span = view.to - view.from, about = (span * 90) / Math.max(1, view.width);
    const power = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= about) || about;
    pen.font = "11px system-ui, sans-serif";
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = Math.round(((t - view.from) * view.width) / span) + 0.5;
      pen.fillStyle = palette.line;
      pen.fillRect(x, RULER_PX - 6, 1, height);
      pen.fillStyle = palette["ink-soft"];
      pen.fillText(tickText(t, step), Math.min(x + 3, view.width - 46), 12);
    }
  }

  function outline(i, ink, thick) {
    const scale = view.width / (view.to - view.from);
    const left = (events.start[i] - view.from) * scale, right = (events.end[i] - view.from) * scale;
    if (right < -2 || left > view.width + 2) return;
    const top = tops[events.stream[i]][events.lane[i]], tall = LANE_PX[events.stream[i]];
    pen.strokeStyle = ink;
    pen.lineWidth = thick;
    pen.strokeRect(left - 1, top - 1.5, Math.max(3, right - left) + 1, tall + 3);
    pen.fillStyle = ink;
    pen.beginPath();
    const x = (Math.max(left, 0) + Math.min(right, view.width)) / 2;
    pen.moveTo(x - 4, top - 8); pen.lineTo(x + 4, top - 8); pen.lineTo(x, top - 2);
    pen.fill();
  }

  function paintStrip() {
    const whole = { from: 0, to: total, width: view.width };
    if (!stripImage) {
      stripImage = el("canvas", { width: strip.width, height: strip.height });
      const own = stripImage.getContext("2d");
      own.scale(window.devicePixelRatio || 1, window.devicePixelRatio || 1);
      const plain = { colour: (group) => palette[group], alpha: () => 0.85 };
      paintSpans(own, whole, runSpans(model.phases), 0, 4, plain);
      for (const lane of streams.compute) paintSpans(own, whole, laneSpans(lane, events), 6, 15, plain);
      for (const lane of streams.communication) paintSpans(own, whole, laneSpans(lane, events), 23, 10, plain);
      paintSpans(own, whole, runSpans(model.waits, "bad"), 35, 5, { ...plain, colour: () => palette.bad });
    }
    stripPen.clearRect(0, 0, view.width, STRIP_PX);
    stripPen.drawImage(stripImage, 0, 0, view.width, STRIP_PX);
    const left = (view.from / total) * view.width, right = (view.to / total) * view.width;
    stripPen.fillStyle = palette.panel;
    stripPen.globalAlpha = 0.65;
    stripPen.fillRect(0, 0, left, STRIP_PX);
    stripPen.fillRect(right, 0, view.width - right, STRIP_PX);
    stripPen.globalAlpha = 1;
    stripPen.strokeStyle = palette.accent;
    stripPen.lineWidth = 1.5;
    stripPen.strokeRect(left + 0.75, 0.75, Math.max(2, right - left) - 1.5, STRIP_PX - 1.5);
    stripPen.fillStyle = palette.accent;
    for (const i of marked) stripPen.fillRect((events.start[i] / total) * view.width, 0, 2, STRIP_PX);
  }

  // --- moving -------------------------------------------------------------------------
  function look(from, to) {
    const span = Math.min(total, Math.max(CLOSEST_NS, to - from));
    view.from = Math.min(Math.max(0, from + (to - from - span) / 2), total - span);
    view.to = view.from + span;
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
    byId("view-span").textContent =
      `${secondsText(view.from / 1e9)} – ${secondsText(view.to / 1e9)}`;
    redraw();
  }

  const isWhole = () => view.to - view.from >= total * 0.9999;
  const timeAt = (x) => view.from + (x / view.width) * (view.to - view.from);

  function zoom(factor, x = view.width / 2) {
    const at = timeAt(x), share = x / view.width;
    const span = Math.min(total, Math.max(CLOSEST_NS, (view.to - view.from) * factor));
    look(at - share * span, at + (1 - share) * span);
  }

  function pan(share) {
    const by = share * (view.to - view.from);
    look(view.from + by, view.to + by);
  }

  // So that the event fills a good part of the view and its neighbours are seen.
  function jump(i) {
    const around = Math.max(events.length[i] * 4, Math.min(total / 40, events.length[i] * 200), CLOSEST_NS * 4);
    const middle = events.start[i] + events.length[i] / 2;
    look(middle - around, middle + around);
  }

  // --- finding ------------------------------------------------------------------------
  // The longest event within two pixels, and how many there are.
  function hit(x, top) {
    for (const [stream, lanes] of Object.entries(streams)) {
      for (let l = 0; l < lanes.length; l += 1) {
        const at = tops[stream][l];
        if (top < at - 1 || top > at + LANE_PX[stream] + 1) continue;
        const lane = lanes[l], from = timeAt(x - 2), to = timeAt(x + 2), exact = timeAt(x);
        let best = -1, count = 0;
        for (let k = firstAfter(lane.length, (j) => events.end[lane[j]], from);
          k < lane.length && events.start[lane[k]] <= to; k += 1) {
          const i = lane[k];
          count += 1;
          if (events.start[i] <= exact && exact < events.end[i] && timeAt(x + 1) - exact < events.length[i]) {
            return { event: i, count: 1 };
          }
          if (best < 0 || events.length[i] > events.length[best]) best = i;
        }
        return { event: best, count };
      }
    }
    return { event: -1, count: 0 };
  }

  function hover(x, top, clientX, clientY) {
    const found = hit(x, top);
    if (found.event !== hovered) { hovered = found.event; redraw(); }
    tip.hidden = hovered < 0;
    canvas.classList.toggle("over", hovered >= 0);
    if (hovered < 0) return;
    tip.replaceChildren(...tipLines(hovered, found.count));
    const width = tip.offsetWidth, left = Math.min(clientX + 14, window.innerWidth - width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${clientY + 18 + tip.offsetHeight > window.innerHeight
      ? clientY - tip.offsetHeight - 12 : clientY + 18}px`;
  }

  function unhover() {
    tip.hidden = true;
    if (hovered >= 0) { hovered = -1; redraw(); }
  }

  function tipLines(i, count) {
    const lines = [el("div", { class: "tip-name" }, events.name[i])];
    for (const [term, text] of facts(i).slice(0, 8)) {
      lines.push(el("div", {}, el("span", { class: "soft" }, `${term} `), text));
    }
    if (count > 1) {
      lines.push(el("div", { class: "soft" }, `longest of ${count} here; zoom in for the others`));
    }
    return lines;
  }

  function facts(i) {
    const c = events.stream[i] === "communication" && collectiveByName.get(events.name[i]);
    const runs = events.runs[i] > 1 ? `, ${grouped(events.runs[i])} runs drawn as one` : "";
    const list = [
      ["takes", `${secondsText(events.length[i] / 1e9)}${runs}`],
    ];
    if (!c) list.push(["kind", events.kind[i]]);
    if (c) list.push(...collectiveFacts(c));
    if (!c && events.module[i]) list.push(["module", events.module[i]]);
    if (!c && events.phase[i]) list.push(["phase", events.phase[i]]);
    list.push(["starts at", secondsText(events.start[i] / 1e9)]);
    return list;
  }

  function open(i) {
    opened = i;
    redraw();
    const c = events.stream[i] === "communication" && collectiveByName.get(events.name[i]);
    detail.hidden = false;
    detail.replaceChildren(
      el("div", { class: "detail-head" },
        swatch(events.group[i]), el("strong", {}, events.name[i]),
        el("button", { type: "button", onclick: () => jump(i) }, "Zoom to it"),
        c ? el("button", { type: "button", onclick: () => onShowRow(c) }, "Show in the table") : null,
        el("button", { type: "button", "aria-label": "Close the details", onclick: close }, "Close")),
      factList(facts(i)), c ? movedList(c) : "");
  }

  function close() {
    opened = -1;
    detail.hidden = true;
    redraw();
  }

  // --- stepping -----------------------------------------------------------------------
  const ordered = { compute: order("compute"), communication: order("communication") };
  function order(stream) {
    return streams[stream].flatMap((lane) => Array.from(lane))
      .sort((a, b) => events.start[a] - events.start[b]);
  }

  // Opens the next (or the one before) of a stream, from the open one or from the view.
  function stepTo(stream, by) {
    const list = ordered[stream];
    if (!list.length) return;
    const here = list.indexOf(opened);
    const first = list.findIndex((i) => events.end[i] > view.from);
    const next = here < 0 ? Math.max(0, first) : Math.min(list.length - 1, Math.max(0, here + by));
    const i = list[next];
    open(i);
    if (isWhole() || events.start[i] < view.from || events.end[i] > view.to) jump(i);
  }

  const byName = new Map();
  for (const i of ordered.communication) byName.set(events.name[i], [...(byName.get(events.name[i]) || []), i]);
  makeLegend(events, (name) => { only = name; redraw(); });
  listenToTimeline({
    view, total, look, zoom, pan, jump, isWhole, hit, hover, unhover, open, close, stepTo,
  }, canvas, strip);
  canvas.dataset.exposed = model.waits.start.reduce((t, from, k) => t + model.waits.end[k] - from, 0);
  fit();
  new ResizeObserver(fit).observe(box);
  look(0, total);
  onTheme(restyle);

  return {
    highlight(names) {
      marked.clear();
      for (const name of names) for (const i of byName.get(name) || []) marked.add(i);
      canvas.dataset.marked = [...marked].map((i) => events.name[i]).join(" ");
      redraw();
    },
    open(name) {
      const found = byName.get(name);
      if (!found) return;
      open(found[0]);
      jump(found[0]);
      byId("timeline-section").scrollIntoView({ block: "start", behavior: "auto" });
    },
  };
}

// Enough digits to tell neighbouring ticks apart.
function tickText(t, step) {
  const [scale, unit] = step >= 1e9 ? [1e9, "s"] : step >= 1e5 ? [1e6, "ms"]
    : step >= 100 ? [1e3, "us"] : [1, "ns"];
  const places = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
  return `${(t / scale).toFixed(places)} ${unit}`;
}

// Black or white, whichever reads better on a colour written rgb(r, g, b).
function textOn(fill) {
  const [r, g, b] = fill.match(/[\d.]+/g).map((v) => Number(v) / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#111111" : "#ffffff";
}
