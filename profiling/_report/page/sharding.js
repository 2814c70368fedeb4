// The inputs of the step, how each is split, and a picture of who holds what.

let openTensor = () => {};

const RAMP = [
  [44, 62, 143], [47, 111, 176], [42, 157, 154], [87, 185, 107], [181, 207, 74], [243, 220, 85],
];

function pieceColour(number, count) {
  const at = count > 1 ? (number / (count - 1)) * (RAMP.length - 1) : 1;
  const low = Math.min(RAMP.length - 2, Math.floor(at)), share = at - low;
  const mix = RAMP[low].map((from, i) => Math.round(from + (RAMP[low + 1][i] - from) * share));
  return `rgb(${mix.join(", ")})`;
}

function makeSharding() {
  const body = byId("sharding-body");
  if (!tensors.length) {
    body.replaceChildren(el("p", { class: "empty" },
      "The inputs of this step are not known."));
    return;
  }
  const roles = [...new Set(tensors.map((t) => t.role))];
  const filter = { text: "", role: roles.includes("parameter") ? "parameter" : "" };
  const largest = Math.max(...tensors.map((t) => t.device_bytes), 1);
  const picture = el("div", { class: "picture", "aria-live": "polite" });
  const table = makeTable({
    label: "Inputs of the step", sort: "order", descending: false, columns: [
      { key: "order", title: "#", hint: "Order in the program", width: 44, right: true, value: (t) => tensors.indexOf(t) },
      { key: "name", title: "Name", width: 230, tail: true, value: (t) => t.name },
      { key: "role", title: "Role", width: 84, value: (t) => t.role },
      { key: "shape", title: "Shape", width: 130, value: (t) => shapeText(t.dtype, t.shape) },
      { key: "spec", title: "Split over", width: 130, value: (t) => specText(t) },
      { key: "device_bytes", title: "A device", hint: "Bytes on one device", width: 84, right: true, value: (t) => t.device_bytes,
        text: (t) => bytesText(t.device_bytes), cell: (t) => barCell(bytesText(t.device_bytes), t.device_bytes / largest) },
      { key: "copies", title: "Copies", hint: "Devices that hold the same piece", width: 66, right: true,
        value: (t) => t.copies, text: (t) => grouped(t.copies) },
    ],
    totals: (rows) => ({ name: plural(rows.length, "tensor"),
      device_bytes: bytesText(rows.reduce((total, t) => total + t.device_bytes, 0)) }),
    onOpen: (t) => picture.replaceChildren(...tensorPicture(t)),
  });
  const text = el("input", { type: "search", placeholder: "Name, axis, shape …",
    "aria-label": "Filter inputs by text", oninput: (e) => { filter.text = e.target.value; apply(); } });
  const role = el("select", { onchange: (e) => { filter.role = e.target.value; apply(); } },
    el("option", { value: "" }, "all"), ...roles.map((r) => el("option", { value: r }, r)));
  role.value = filter.role;
  const count = el("span", { class: "soft", role: "status" });

  function apply() {
    const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = tensors.filter((t) => (!filter.role || t.role === filter.role)
      && words.every((w) => `${t.name} ${t.role} ${shapeText(t.dtype, t.shape)} ${specText(t)}`
        .toLowerCase().includes(w)));
    count.textContent = `${grouped(kept.length)} of ${grouped(tensors.length)}`;
    table.show(kept);
    return kept;
  }

  body.replaceChildren(
    el("div", { class: "filters" }, text, el("label", {}, "Role ", role), count),
    el("div", { class: "list-and-picture" }, table.element, picture));
  const first = apply().reduce((best, t) => (!best || t.device_bytes > best.device_bytes ? t : best), null);
  openTensor = (t) => {
    Object.assign(filter, { text: "", role: "" });
    text.value = ""; role.value = "";
    apply();
    table.select(t);
    picture.replaceChildren(...tensorPicture(t));
    byId("sharding").scrollIntoView({ block: "start" });
  };
  if (first) { table.select(first); picture.replaceChildren(...tensorPicture(first)); }
}

function tensorPicture(t) {
  const head = [el("h3", {}, t.name), el("p", { class: "soft" },
    `${t.role} · ${shapeText(t.dtype, t.shape)} · ${bytesText(t.device_bytes)} on each device`)];
  const mesh = DATA.mesh;
  if (!mesh) {
    return [...head, el("p", {}, `${specText(t)}; each piece is on ${plural(t.copies, "device")}.`),
      el("p", { class: "soft" }, "A picture needs the mesh: name its axes with --mesh, such as --mesh fsdp=4,tensor=2.")];
  }
  const split = splitOf(t, mesh), pieces = numPieces(split);
  const copies = mesh.shape.reduce((a, b) => a * b, 1) / pieces;
  if (copies !== t.copies) {
    return [...head, el("p", {}, `${specText(t)}; each piece is on ${plural(t.copies, "device")}.`),
      el("p", { class: "soft" }, "How the axes of the mesh split it is not known.")];
  }
  const { drawn, folded, fixed } = axesToDraw(mesh, split);
  const note = el("p", { class: "hold", role: "status" });
  const cells = [];
  const tell = (number, text) => {
    for (const cell of cells) cell.classList.toggle("same", Number(cell.dataset.piece) === number);
    note.textContent = text;
  };
  const cell = (piece, text) => {
    const number = pieceNumber(piece, split);
    const node = el("button", { type: "button", class: "piece", "data-piece": number, "aria-label": text,
      onmouseenter: () => tell(number, text), onfocus: () => tell(number, text) }, String(number));
    cells.push(node);
    return node;
  };
  const holds = (piece) => `piece ${pieceNumber(piece, split)} of ${pieces}: ${rangeText(piece, split)}`;
  const parts = [...head, dimList(split), el("p", {}, piecesText(pieces, copies, folded)), note];
  if (pieces > 1) parts.push(el("h4", {}, "The tensor in pieces"), tensorGrid(split, (piece) => cell(piece, `${holds(piece)}, on ${plural(copies, "device")}`)));
  if (drawn.length) {
    parts.push(el("h4", {}, "Which place of the mesh holds which piece"), meshGrid(drawn, (place) => {
      const piece = pieceAt(place, split, mesh);
      const where = drawn.map((axis) => `${axis.name} ${place[axis.name]}`).join(", ");
      return cell(piece, `${where} holds ${holds(piece)}`);
    }));
  }
  if (fixed.length) parts.push(el("p", { class: "soft" }, `Drawn at ${fixed.map((a) => `${a.name} 0`).join(", ")}.`));
  paintPieces(cells);
  return parts;
}

// Colours are spread over the pieces that are drawn, so that neighbours differ.
function paintPieces(cells) {
  const numberOf = (node) => Number(node.dataset.piece);
  const drawn = [...new Set(cells.map(numberOf))].sort((a, b) => a - b);
  const rank = new Map(drawn.map((number, i) => [number, i]));
  for (const node of cells) {
    const fill = pieceColour(rank.get(numberOf(node)), drawn.length);
    node.style.background = fill;
    node.style.color = textOn(fill);
  }
}

function piecesText(pieces, copies, folded) {
  if (pieces === 1) return `Whole on each of ${plural(copies, "device")}.`;
  const same = folded.length
    ? ` The picture leaves out ${folded.map((a) => `${a.name} (${a.size})`).join(", ")}: every place along it holds the same.` : "";
  return `${plural(pieces, "piece")}, each on ${plural(copies, "device")}.${same}`;
}

function dimList(split) {
  return el("ul", { class: "dims" }, ...split.map(({ axes, ways, size, length }, dim) => {
    const rest = ways * length - size;
    return el("li", {}, `dim ${dim}: ${size}`, axes.length
      ? el("span", {}, " over ", el("strong", {}, axes.join(" + ")), ` = ${ways} × ${length}`,
        rest ? ` (${rest} of padding)` : "")
      : el("span", { class: "soft" }, " not split"));
  }));
}

// Rows and columns are the first two dims that are split; further ones are drawn at 0.
function tensorGrid(split, cell) {
  const dims = split.map((_, dim) => dim).filter((dim) => split[dim].ways > 1);
  const [down, across] = dims.length > 1 ? dims : [dims[0], -1];
  const rows = indicesOf(split[down].ways, 8);
  const columns = across < 0 ? [0] : indicesOf(split[across].ways, 12);
  const at = (row, col) => split.map((_, dim) => (dim === down ? row : dim === across ? col : 0));
  return grid(rows, columns, (row, col) => cell(at(row, col)),
    { down: (i) => spanText(split[down], i), across: (i) => (across < 0 ? "" : String(i * split[across].length)),
      caption: across < 0 ? `dim ${down} down` : `dim ${down} down, dim ${across} across (where a piece starts)`,
      wide: across < 0 });
}

function meshGrid(drawn, cell) {
  const axes = [...drawn];
  const across = axes.pop(), down = axes.pop(), out = axes.pop();
  const columns = indicesOf(across.size, down ? 12 : 16);
  const flat = (place) => grid(down ? indicesOf(down.size, 8) : [0], columns, (row, col) =>
    cell({ ...place, [across.name]: col, ...(down ? { [down.name]: row } : {}) }),
  { down: (i) => (down ? String(i) : ""), across: String,
    caption: down ? `${down.name} down, ${across.name} across` : `${across.name} across` });
  if (!out) return flat({});
  return el("div", { class: "planes" }, ...indicesOf(out.size, 6).map((i) => (i < 0
    ? el("div", { class: "gap" }, "⋯")
    : el("figure", {}, el("figcaption", {}, `${out.name} ${i}`), flat({ [out.name]: i })))));
}

const spanText = ({ size, length }, i) => (i * length >= size ? "padding"
  : `${i * length}:${Math.min(size, (i + 1) * length)}`);

function grid(rows, columns, cell, { down, across, caption, wide }) {
  const node = el("div", { class: "grid", role: "group" });
  const label = (text) => el("span", { class: "axis" }, text);
  const least = wide ? "4rem" : "1.45rem", most = wide ? "12rem" : "3.6rem";
  node.style.gridTemplateColumns = `auto repeat(${columns.length}, minmax(${least}, ${most}))`;
  node.append(label(""), ...columns.map((col) => label(col < 0 ? "⋯" : across(col))));
  for (const row of rows) {
    node.append(label(row < 0 ? "⋮" : down(row)));
    for (const col of columns) {
      node.append(row < 0 || col < 0 ? el("span", { class: "gap" }, row < 0 ? "⋮" : "⋯") : cell(row, col));
    }
  }
  return el("div", {}, el("div", { class: "axis caption" }, caption), node);
}
