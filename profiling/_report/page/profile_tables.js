// Tables of a profile: classes of operations, collectives, operations.

const ratioText = (ratio) => (!isKnown(ratio) ? ""
  : ratio >= 9.95 ? `${ratio.toFixed(0)}x` : `${Number(ratio.toPrecision(2))}x`);
const rateText = (rate) => (!isKnown(rate) ? ""
  : rate < 1e6 ? `${digits(rate / 1e3)} kB/s` : `${digits(rate / 1e9)} GB/s`);

// What the timeline says of a collective.
function collectiveFacts(c) {
  const facts = [
    ["role", c.role === "unknown" ? "" : c.role], ["kind", c.kind], ["tensor", c.tensor],
    ["module", c.module], ["phase", c.phase],
    ["over", axesText(c) + (c.link ? ` · ${c.link}` : "")],
    ["sent", isKnown(c.wire_bytes) ? `${bytesText(c.wire_bytes)} a step` : ""],
    ["a step", `${secondsText(c.total_s)}, of it ${secondsText(c.exposed_s)} exposed`],
    ["waits", secondsText(c.wait_s)], ["rate", rateText(c.bytes_per_s)],
    ["estimate", isKnown(c.predicted_s) ? `${secondsText(c.predicted_s)}; measured is ${ratioText(c.ratio)} of it` : ""],
    ["source", c.source],
  ];
  return facts.filter(([, text]) => text);
}

const movedList = () => "";

function seconds(key, title, hint, width = 84) {
  return { key, title, hint, width, right: true, value: (r) => r[key] || 0,
    text: (r) => secondsText(r[key]) };
}

function bars(key, title, hint, rows) {
  const longest = Math.max(1e-12, ...rows.map((r) => r[key] || 0));
  return { ...seconds(key, title, hint, 96),
    cell: (r) => barCell(secondsText(r[key]), (r[key] || 0) / longest) };
}

const share = { key: "share", title: "Share", hint: "Of the step", width: 70, right: true,
  value: (r) => r.own_s, text: (r) => percent(r.own_s / DATA.step_s) };
const runs = { key: "num_runs", title: "Runs", hint: "Executions in a step", width: 64, right: true,
  value: (r) => r.num_runs, text: (r) => String(Number(r.num_runs.toFixed(2))) };
const words = (key, title, width, more = {}) => (
  { key, title, width, value: (r) => r[key] || "", ...more });

// Columns of the estimate, where there is one.
function estimate(rows) {
  if (!rows.some((r) => isKnown(r.predicted_s))) return [];
  return [seconds("predicted_s", "Estimate", "What the schedule predicts"),
    { key: "ratio", title: "Measured of it", hint: "Measured divided by estimate", width: 100, right: true,
      value: (r) => r.ratio || 0, text: (r) => ratioText(r.ratio) }];
}

function makeClasses() {
  const rows = rowsOf(DATA.classes);
  const table = makeTable({
    label: "Classes of operations", sort: "own_s",
    columns: [words("kind", "Class", 150), bars("own_s", "Own", "Charged to it alone", rows), share,
      seconds("total_s", "Start to end", "Also while others run", 108),
      { ...runs, key: "num_ops", title: "Ops", hint: "Different instructions", value: (r) => r.num_ops, text: (r) => grouped(r.num_ops) },
      runs, ...estimate(rows)],
    totals: (shown) => ({ kind: "all", own_s: secondsText(shown.reduce((t, r) => t + r.own_s, 0)) }),
  });
  byId("classes-body").replaceChildren(table.element);
  table.show(rows);
}

// Returns { show(c) }: brings the row of a collective in sight.
function makeCollectives(timeline) {
  const body = byId("collectives-body");
  if (!collectives.length) {
    body.replaceChildren(el("p", { class: "empty" }, "No collective ran."));
    return { show: () => {} };
  }
  const table = makeTable({
    label: "Collectives", sort: "exposed_s",
    columns: [
      words("role", "Role", 150, { cell: (c) => [swatch(roleClass(c.role)), c.role] }),
      words("kind", "Kind", 132), { ...words("axes", "Over", 90), value: axesText, text: axesText },
      words("tensor", "Tensor", 180, { tail: true, value: (c) => c.tensor || c.name }),
      words("phase", "Phase", 82), runs,
      bars("total_s", "Time", "From start to end", collectives),
      bars("exposed_s", "Exposed", "While nothing computed", collectives),
      seconds("wait_s", "Waits", "Until the last device has come"),
      { key: "wire_bytes", title: "Sent", hint: "Bytes that a device sends in a step", width: 84, right: true,
        value: (c) => c.wire_bytes || 0, text: (c) => bytesText(c.wire_bytes) },
      { key: "bytes_per_s", title: "Rate", hint: "Of the device that came last", width: 96, right: true,
        value: (c) => c.bytes_per_s || 0, text: (c) => rateText(c.bytes_per_s) },
      ...estimate(collectives),
      words("source", "Source", 140, { tail: true, cell: (c) => fileText(c.source) })],
    totals: (shown) => ({
      role: `${grouped(shown.length)} in all`,
      total_s: secondsText(shown.reduce((t, c) => t + c.total_s, 0)),
      exposed_s: secondsText(shown.reduce((t, c) => t + c.exposed_s, 0)),
    }),
    onHover: (c) => timeline.highlight(c ? [c.name] : []),
    onOpen: (c) => timeline.open(c.name),
  });
  body.replaceChildren(table.element);
  table.show(collectives);
  return { show: (c) => { table.select(c); byId("collectives").scrollIntoView({ block: "start" }); } };
}

function makeOperations() {
  const rows = rowsOf(DATA.ops), more = DATA.num_ops - rows.length;
  const table = makeTable({
    label: "Operations", sort: "own_s",
    columns: [words("name", "Name", 210), words("kind", "Class", 120),
      bars("own_s", "Own", "Charged to it alone", rows), share,
      seconds("total_s", "Start to end", "Also while others run", 108), runs, words("phase", "Phase", 82),
      words("module", "Module", 170, { tail: true }),
      words("source", "Source", 130, { tail: true }), words("program", "Program", 150, { tail: true })],
  });
  const input = el("input", { type: "search", placeholder: "Name, class, module, source …",
    "aria-label": "Filter operations by text", oninput: (e) => filter(e.target.value) });
  const count = el("span", { class: "soft", role: "status" });
  function filter(text) {
    const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter((r) => wanted.every((word) =>
      [r.name, r.kind, r.module, r.source, r.phase, r.program].join(" ").toLowerCase().includes(word)));
    count.textContent = `${grouped(kept.length)} of ${grouped(rows.length)}${more > 0 ? `; ${grouped(more)} shorter ones are left out` : ""}`;
    table.show(kept);
  }
  byId("operations-body").replaceChildren(el("div", { class: "filters" }, input, count), table.element);
  filter("");
}
