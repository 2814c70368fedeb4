// Numbers and names as text.

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function digits(value, count = 3) {
  if (Math.abs(value) >= 10 ** (count - 1)) return value.toFixed(0);
  return String(Number(value.toPrecision(count)));
}

function bytesText(count) {
  if (count === null || count === undefined) return "";
  let size = count, unit = 0;
  while (size >= 1000 && unit < BYTE_UNITS.length - 1) { size /= 1024; unit += 1; }
  return `${unit ? digits(size) : count} ${BYTE_UNITS[unit]}`;
}

function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds <= 0) return "0";
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
    if (Math.abs(seconds) >= scale) return `${digits(seconds / scale)} ${unit}`;
  }
  return `${digits(seconds / 1e-9)} ns`;
}

// What is small, but there, is not shown as none.
function percent(share) {
  if (share > 0 && share < 0.001) return "<0.1%";
  return `${(100 * share).toFixed(share > 0 && share < 0.0995 ? 1 : 0)}%`;
}
const grouped = (count) => String(count).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const plural = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;

// Mesh axes where there are some, else XLA's text of the device groups.
const axesText = (c) => (c.axes || []).join(", ") || c.groups || "";

// ["fsdp", null, ["a", "b"]] -> "(fsdp, –, a+b)". A dump without its mesh has no spec for
// what is split, so that the bytes have to tell.
function specText(tensor) {
  if (!tensor.spec || !tensor.spec.some((entry) => entryAxes(entry).length)) {
    return isSplit(tensor) ? "split, axes not known" : "whole on each";
  }
  const dims = tensor.spec.map((entry) => entryAxes(entry).join("+") || "–");
  return `(${dims.join(", ")})`;
}

function isSplit({ dtype, shape, device_bytes: bytes }) {
  const bits = Number((/\d+/.exec(dtype) || [8])[0]);
  return bytes * 8 < shape.reduce((product, size) => product * size, bits);
}

function entryAxes(entry) {
  if (entry === null || entry === undefined) return [];
  return Array.isArray(entry) ? entry : [entry];
}

const shapeText = (dtype, shape) => `${dtype}[${shape.join(",")}]`;

// "/home/a/model.py:12" -> "model.py:12"
const fileText = (source) => (source || "").replace(/^.*[/\\]/, "");

// "layers.12.attention" -> "layers.*.attention": the same in every layer.
const anyLayer = (text) => text.replace(/(^|[^A-Za-z0-9_])\d+(?=$|[^A-Za-z0-9_])/g, "$1*");
