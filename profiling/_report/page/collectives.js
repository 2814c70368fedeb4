// Collectives: bars of their totals, filters, and the table.

function collectiveFacts(c) {
  const facts = [
    ["role", c.role], ["kind", c.kind + (c.form && c.form !== "plain" ? ` (${c.form})` : "")],
    ["tensor", c.tensor], ["module", c.module], ["phase", c.phase],
    ["over", axesText(c) + (c.link ? ` · ${c.link}` : "") + (c.crosses_hosts ? " · between hosts" : "")],
    ["sent", `${bytesText(c.step_wire_bytes)} a step` +
      (c.num_runs > 1 ? ` (${grouped(c.num_runs)} runs of ${bytesText(c.wire_bytes)})` : "")],
    ["exposed", !isKnown(c.exposed_s) ? ""
      : `${secondsText(c.exposed_s)} of ${secondsText(c.total_s)}`],
    ["asynchronous", c.is_async ? (c.overlaps_matmul ? "yes, with a matmul meanwhile"
      : "yes, but no matmul meanwhile") : "no"],
    ["dtype", c.dtype], ["groups", c.groups], ["source", c.source],
  ];
  return facts.filter(([, text]) => text);
}

function movedList(c) {
  if (c.moved.length < 2) return "";
  const most = 12, more = c.moved.length - most;
  return el("details", {}, el("summary", {}, `Moves ${c.moved.length} tensors`),
    el("ul", { class: "moved" },
      ...c.moved.slice(0, most).map((m) => el("li", {}, swatch(roleClass(m.role)),
        `${m.tensor || "?"} `, el("span", { class: "soft" },
          `${m.role} · ${m.shape} · ${bytesText(m.wire_bytes)} sent${m.phase ? ` · ${m.phase}` : ""}`))),
      more > 0 ? el("li", { class: "soft" }, `and ${more} more`) : null));
}

const isExposed = (c) => (c.exposed_s || 0) > 0;

// The same collective of every layer as one row.
function groupRows(rows) {
  const groups = new Map();
  for (const c of rows) {
    const key = [c.kind, c.role, axesText(c), c.link, c.phase, anyLayer(c.tensor),
      anyLayer(c.module), c.dtype, c.wire_bytes].join("\n");
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(c);
  }
  return [...groups.values()].map((members) => {
    if (members.length === 1) return asRow(members[0]);
    const sum = (key) => members.reduce((total, c) => total + (c[key] || 0), 0);
    return {
      ...members[0], members,
      tensor: anyLayer(members[0].tensor), module: anyLayer(members[0].module),
      num_runs: sum("num_runs"), step_wire_bytes: sum("step_wire_bytes"),
      total_s: sum("total_s"), exposed_s: sum("exposed_s"),
    };
  });
}

const asRow = (c) => ({ ...c, members: [c] });

function collectiveColumns(hasTime) {
  const most = Math.max(1, ...collectives.map((c) => c.step_wire_bytes));
  const columns = [
    { key: "index", title: "#", hint: "Order in which they start", width: 56, right: true,
      value: (c) => c.index },
    { key: "role", title: "Role", width: 156, value: (c) => c.role,
      text: (c) => c.role, cell: (c) => [swatch(roleClass(c.role)), c.role] },
    { key: "kind", title: "Kind", width: 132, value: (c) => c.kind },
    { key: "axes", title: "Over", hint: "Mesh axes, or device groups without a mesh",
      width: 100, value: axesText, text: axesText },
    { key: "link", title: "Link", width: 66, value: (c) => c.link || "" },
    { key: "tensor", title: "Tensor", width: 190, tail: true, value: (c) => c.tensor || "" },
    { key: "module", title: "Module", width: 150, tail: true, value: (c) => c.module || "" },
    { key: "phase", title: "Phase", width: 82, value: (c) => c.phase || "" },
    { key: "num_runs", title: "Runs", hint: "Executions in a step", width: 56, right: true,
      value: (c) => c.num_runs, text: (c) => grouped(c.num_runs) },
    { key: "step_wire_bytes", title: "Sent", hint: "Bytes that a device sends in a step",
      width: 90, right: true, value: (c) => c.step_wire_bytes,
      text: (c) => `${bytesText(c.step_wire_bytes)}`,
      cell: (c) => barCell(bytesText(c.step_wire_bytes), c.step_wire_bytes / most) },
  ];
  if (hasTime) {
    const longest = Math.max(1e-12, ...collectives.map((c) => c.exposed_s || 0));
    columns.push(
      { key: "total_s", title: "Time", hint: "Estimate of its time in a step", width: 76,
        right: true, value: (c) => c.total_s || 0, text: (c) => secondsText(c.total_s) },
      { key: "exposed_s", title: "Exposed", hint: "Estimate of the time in which compute waits",
        width: 84, right: true, value: (c) => c.exposed_s || 0,
        text: (c) => secondsText(c.exposed_s),
        cell: (c) => barCell(secondsText(c.exposed_s), (c.exposed_s || 0) / longest) });
  }
  columns.push(
    { key: "source", title: "Source", width: 150, tail: true, value: (c) => c.source || "",
      cell: (c) => fileText(c.source) });
  return columns;
}

// Returns { show(c) }: brings the row of a collective in sight.
function makeCollectives(timeline) {
  if (!collectives.length) {
    byId("collectives-body").replaceChildren(el("p", { class: "empty" },
      "This step has no collectives: its devices do not talk to each other."));
    return { show: () => {} };
  }
  const hasTime = collectives.some((c) => isKnown(c.total_s));
  const filter = { text: "", role: "", axes: "", exposed: false, group: false };
  const sum = (rows, key) => rows.reduce((total, c) => total + (c[key] || 0), 0);
  const table = makeTable({
    label: "Collectives", columns: collectiveColumns(hasTime),
    sort: hasTime ? "exposed_s" : "step_wire_bytes",
    totals: (rows) => {
      const count = rows.reduce((total, row) => total + row.members.length, 0);
      return {
        role: `${grouped(count)} in all`, num_runs: grouped(sum(rows, "num_runs")),
        step_wire_bytes: bytesText(sum(rows, "step_wire_bytes")),
        total_s: secondsText(sum(rows, "total_s")), exposed_s: secondsText(sum(rows, "exposed_s")),
      };
    },
    onHover: timeline && ((row) => timeline.highlight(row ? row.members.map((c) => c.name) : [])),
    onOpen: (row) => {
      if (timeline) timeline.open(row.members[0].name);
      else byId("collective-detail").replaceChildren(collectiveDetail(row.members[0]));
    },
  });

  const controls = {
    text: el("input", { type: "search", placeholder: "Tensor, module, source, name …",
      "aria-label": "Filter collectives by text", oninput: (e) => set("text", e.target.value) }),
    role: choice("Role", "role", ROLES.filter((r) => collectives.some((c) => hasRole(c, r)))),
    axes: choice("Over", "axes", [...new Set(collectives.map(axesText))].sort()),
    exposed: hasTime ? check("Only exposed", "exposed") : null,
    group: check("Layers as one row", "group"),
  };
  const count = el("span", { class: "soft", role: "status" });
  const clear = el("button", { type: "button", onclick: () => {
    Object.assign(filter, { text: "", role: "", axes: "", exposed: false });
    apply();
  } }, "Clear filters");

  function choice(title, key, options) {
    return el("label", {}, `${title} `, el("select", {
      onchange: (e) => set(key, e.target.value),
    }, el("option", { value: "" }, "all"), ...options.map((o) => el("option", { value: o }, o))));
  }

  function check(title, key) {
    return el("label", { class: "check" },
      el("input", { type: "checkbox", onchange: (e) => set(key, e.target.checked) }), ` ${title}`);
  }

  function set(key, value) { filter[key] = value; apply(); }

  function apply() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = collectives.filter((c) => (!filter.role || hasRole(c, filter.role))
      && (!filter.axes || axesText(c) === filter.axes)
      && (!filter.exposed || isExposed(c))
      && words.every((word) => haystack(c).includes(word)));
    controls.text.value = filter.text;
    for (const key of ["role", "axes"]) controls[key].querySelector("select").value = filter[key];
    if (controls.exposed) controls.exposed.querySelector("input").checked = filter.exposed;
    count.textContent = `${grouped(kept.length)} of ${grouped(collectives.length)}`;
    clear.hidden = kept.length === collectives.length;
    table.show(filter.group ? groupRows(kept) : kept.map(asRow));
    return kept;
  }

  byId("collectives-body").replaceChildren(
    totalsPanel((key, value) => {
      filter[key] = filter[key] === value ? "" : value;
      apply();
    }),
    el("div", { class: "filters" }, ...Object.values(controls).filter(Boolean), clear, count),
    table.element, el("div", { id: "collective-detail" }));
  apply();

  return {
    show(c) {
      Object.assign(filter, { text: c.name, role: "", axes: "", exposed: false });
      apply();
      byId("collectives").scrollIntoView({ block: "start" });
    },
  };
}

const hasRole = (c, role) => (c.moved.length ? c.moved.some((m) => m.role === role) : c.role === role);

function haystack(c) {
  if (!c.haystack) {
    c.haystack = [c.name, c.kind, c.role, c.module, c.source, c.phase, c.dtype, c.link, axesText(c),
      c.tensor, ...c.moved.flatMap((m) => [m.tensor, m.module])].join(" ").toLowerCase();
  }
  return c.haystack;
}

function collectiveDetail(c) {
  return el("div", { class: "detail" }, el("strong", {}, c.name),
    factList(collectiveFacts(c)), movedList(c));
}

// Lists of bars: where the bytes go by role, axes, kind, phase and link.
function totalsPanel(onPick) {
  const parts = [["role", "role"], ["axes", "axes"], ["kind", "text"], ["phase", null], ["link", "text"]];
  return el("div", { class: "totals" }, ...parts.map(([by, picks]) => {
    const rows = (DATA.totals && DATA.totals[`by_${by}`]) || [];
    if (!rows.length || (rows.length === 1 && !rows[0].key)) return null;
    const most = Math.max(1, ...rows.map((r) => r.step_wire_bytes));
    const whole = Math.max(1, rows.reduce((total, r) => total + r.step_wire_bytes, 0));
    const timed = rows.some((r) => isKnown(r.exposed_s));
    return el("section", { "aria-label": `Bytes sent, by ${by}` },
      el("div", { class: "bar-row heads" }, el("h3", {}, `By ${by}`),
        el("span", { class: "bar-value" }, "sent"),
        el("span", { class: "bar-more" }, timed ? "exposed" : "runs")),
      ...rows.map((r) => totalRow(r, by, { most, whole, timed, picks, onPick })));
  }).filter(Boolean));
}

function totalRow(r, by, { most, whole, timed, picks, onPick }) {
  const name = r.key || "not known";
  const bar = el("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${(100 * r.step_wire_bytes) / most}%`;
  if (by === "role") bar.style.background = `var(--${colourName(roleClass(name))})`;
  const text = `${name}: ${bytesText(r.step_wire_bytes)} (${percent(r.step_wire_bytes / whole)}), ` +
    `${plural(r.num_collectives, "collective")} run ${grouped(r.num_runs)} times` +
    (timed ? `, ${secondsText(r.exposed_s || 0)} exposed` : "");
  const inner = [el("span", { class: "bar-name" }, name),
    el("span", { class: "bar-track" }, bar),
    el("span", { class: "bar-value" }, bytesText(r.step_wire_bytes)),
    el("span", { class: "bar-more soft" }, timed ? secondsText(r.exposed_s || 0) : grouped(r.num_runs))];
  if (!picks || !r.key) return el("div", { class: "bar-row", title: text }, ...inner);
  return el("button", { type: "button", class: "bar-row", title: `${text}. Press to filter.`,
    onclick: () => onPick(picks, r.key) }, ...inner);
}
