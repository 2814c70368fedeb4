// What a device holds: one bar against its capacity, and lists of what is large.

const ROLE_COLOURS = {
  parameter: "matmul", optimizer: "optimizer", input: "input", gradient: "gradient-reduction",
  constant: "copy", rng: "scalar", unknown: "fusion",
};
const TEMP_COLOUR = "reshard", OUTPUT_COLOUR = "activation";

function memoryParts(memory) {
  const parts = Object.entries(memory.argument_bytes_by_role)
    .filter(([, bytes]) => bytes > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([role, bytes]) => ({
      name: { parameter: "parameters", input: "batch", constant: "constants", unknown: "role not known" }[role] || role,
      bytes, colour: ROLE_COLOURS[role] || "fusion", hint: "argument",
    }));
  const named = parts.reduce((total, part) => total + part.bytes, 0);
  const rest = memory.argument_bytes - named;
  if (rest > 0) {
    parts.push({ name: parts.length ? "other arguments" : "arguments", bytes: rest,
      colour: "fusion", hint: "argument" });
  }
  const outputs = memory.output_bytes - memory.alias_bytes;
  if (outputs > 0) {
    parts.push({ name: "new outputs", bytes: outputs, colour: OUTPUT_COLOUR,
      hint: "outputs that take over no argument's memory" });
  }
  if (memory.temp_bytes > 0) {
    parts.push({ name: "temporaries", bytes: memory.temp_bytes, colour: TEMP_COLOUR,
      hint: "activations, gathered weights and gradients" });
  }
  return parts;
}

function makeMemory() {
  const memory = DATA.memory, body = byId("memory-body");
  if (!memory) {
    body.replaceChildren(el("p", { class: "empty" }, "The memory of this step is not known."));
    return;
  }
  const replicated = tensors.filter((t) => t.copies > 1)
    .sort((a, b) => b.device_bytes - a.device_bytes);
  const peak = rowsOf(memory.at_peak);
  body.replaceChildren(memoryBar(memory), memoryFigures(memory),
    el("div", { class: "two" }, peakPanel(memory, peak), replicatedPanel(replicated)));
}

function memoryBar(memory) {
  const parts = memoryParts(memory);
  const used = parts.reduce((total, part) => total + part.bytes, 0);
  const capacity = memory.capacity_bytes;
  const far = capacity && Math.max(used, memory.peak_bytes) < capacity / 20;
  const whole = Math.max(used, memory.peak_bytes, capacity && !far ? capacity : 0) * 1.02 || 1;
  const place = (node, at, width) => {
    node.style.left = `${(100 * at) / whole}%`;
    if (width !== undefined) node.style.width = `${(100 * width) / whole}%`;
    return node;
  };
  let at = 0;
  const segments = parts.map((part) => {
    const node = place(el("div", { class: "segment", title: `${part.name} (${part.hint}): ${bytesText(part.bytes)}` },
      el("span", {}, part.name)), at, part.bytes);
    node.style.background = `var(--c-${part.colour})`;
    node.style.color = textOn(colour(`c-${part.colour}`));
    onTheme(() => { node.style.color = textOn(colour(`c-${part.colour}`)); });
    at += part.bytes;
    return node;
  });
  const lines = [place(el("div", { class: "line peak" }, el("span", {}, `peak ${bytesText(memory.peak_bytes)}`)), memory.peak_bytes)];
  if (capacity && !far) {
    lines.push(place(el("div", { class: "line capacity" },
      el("span", {}, `capacity ${bytesText(capacity)}`)), capacity));
  }
  for (const line of lines) {
    if (parseFloat(line.style.left) > 55) line.classList.add("leftward");
  }
  const over = capacity && memory.peak_bytes > capacity;
  return el("div", { class: over ? "memory over" : "memory" },
    el("div", { class: "memory-bar", role: "img", "aria-label": `Memory of a device: ${
      parts.map((p) => `${p.name} ${bytesText(p.bytes)}`).join(", ")}; peak ${bytesText(memory.peak_bytes)}${
      capacity ? ` of ${bytesText(capacity)}` : ""}` }, ...segments, ...lines),
    el("ul", { class: "key" }, ...parts.map((part) => {
      const mark = el("span", { class: "swatch", "aria-hidden": "true" });
      mark.style.background = `var(--c-${part.colour})`;
      return el("li", { title: part.hint }, mark, `${part.name} `,
        el("strong", {}, bytesText(part.bytes)), el("span", { class: "soft" }, ` ${percent(part.bytes / used)}`));
    })),
    far ? el("p", { class: "soft" }, `The capacity, ${bytesText(capacity)}, is far to the right: ${
      percent(memory.peak_bytes / capacity)} of it is used.`) : null,
    !capacity ? el("p", { class: "soft" }, "No capacity line: the target's memory is not known.") : null);
}

function memoryFigures(memory) {
  const rows = [["arguments", memory.argument_bytes], ["outputs", memory.output_bytes],
    ["of them in an argument's memory", memory.alias_bytes], ["temporaries", memory.temp_bytes],
    ["allocated in all", memory.total_bytes], ["peak", memory.peak_bytes]];
  return el("dl", { class: "figures-row" }, ...rows.flatMap(([term, bytes]) => [
    el("div", {}, el("dt", {}, term), el("dd", { title: `${grouped(bytes)} bytes` }, bytesText(bytes)))]));
}

function panel(title, note, ...children) {
  return el("section", { "aria-label": title }, el("h3", {}, title),
    note ? el("p", { class: "soft" }, note) : null, ...children);
}

function peakPanel(memory, peak) {
  if (!peak.length) {
    return panel("Alive at the peak", null, el("p", { class: "empty" }, memory.origin === "compiled"
      ? "This backend does not say which buffers live at the peak."
      : "Known only when the program itself is compiled, with --target."));
  }
  const largest = peak[0].num_bytes;
  const table = makeTable({
    label: "Temporaries alive at the peak", sort: "num_bytes", columns: [
      { key: "num_bytes", title: "Bytes", width: 90, right: true, value: (b) => b.num_bytes,
        text: (b) => bytesText(b.num_bytes), cell: (b) => barCell(bytesText(b.num_bytes), b.num_bytes / largest) },
      { key: "shape", title: "Shape", width: 150, value: (b) => b.shape },
      { key: "module", title: "Module", width: 150, tail: true, value: (b) => b.module || "" },
      { key: "phase", title: "Phase", width: 76, value: (b) => b.phase || "" },
      { key: "op_name", title: "Operation", width: 180, tail: true, value: (b) => b.op_name || b.name },
    ],
    totals: (rows) => ({ num_bytes: bytesText(rows.reduce((t, b) => t + b.num_bytes, 0)), shape: plural(rows.length, "buffer") }),
  });
  table.show(peak);
  return panel("Alive at the peak", "Temporaries in memory when most of it is in use.", table.element);
}

function replicatedPanel(rows) {
  if (!rows.length) {
    return panel("Largest replicated tensors", null, el("p", { class: "empty" }, tensors.length
      ? "No device holds a piece that another holds too." : "The inputs of this step are not known."));
  }
  const largest = rows[0].device_bytes;
  const table = makeTable({
    label: "Replicated tensors", sort: "device_bytes", columns: [
      { key: "device_bytes", title: "Bytes", hint: "On one device", width: 90, right: true, value: (t) => t.device_bytes,
        text: (t) => bytesText(t.device_bytes), cell: (t) => barCell(bytesText(t.device_bytes), t.device_bytes / largest) },
      { key: "copies", title: "Copies", hint: "Devices that hold the same piece", width: 68, right: true,
        value: (t) => t.copies, text: (t) => grouped(t.copies) },
      { key: "name", title: "Name", width: 200, tail: true, value: (t) => t.name },
      { key: "role", title: "Role", width: 90, value: (t) => t.role },
      { key: "shape", title: "Shape", width: 130, value: (t) => shapeText(t.dtype, t.shape) },
    ],
    totals: (all) => ({ device_bytes: bytesText(all.reduce((t, r) => t + r.device_bytes, 0)), name: plural(all.length, "tensor") }),
    onOpen: (t) => openTensor(t),
  });
  table.show(rows);
  return panel("Largest replicated tensors",
    "Inputs of which several devices hold the same piece. Splitting one over more axes frees memory.", table.element);
}
