// Data of the page, and short ways to build elements. Text from the data only ever
// becomes text nodes, never markup.

const DATA = JSON.parse(document.getElementById("data").textContent);

function column(packed, length) {
  if (Array.isArray(packed)) return packed;
  if ("words" in packed) return packed.at.map((i) => packed.words[i]);
  return new Array(length).fill(packed.all);
}

// Columns -> a list of objects.
function rowsOf(packed) {
  if (!packed) return [];
  const rows = Array.from({ length: packed.length }, () => ({}));
  for (const [key, values] of Object.entries(packed.columns)) {
    column(values, packed.length).forEach((value, i) => { rows[i][key] = value; });
  }
  return rows;
}

const byId = (id) => document.getElementById(id);

// el("p", { class: "note", onclick: f }, "text", child)
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Colours live in the style sheet, each for light and for dark: "rgb(0, 114, 178)".
const probe = document.body.appendChild(el("span", { hidden: true }));
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

// Called when light becomes dark or back.
const themeListeners = [];
const onTheme = (listener) => themeListeners.push(listener);

const ROLES = [
  "weight gather", "gradient reduction", "activation", "reshard", "input", "optimizer",
  "scalar", "unknown",
];
const KINDS = ["matmul", "fusion", "copy", "other"];
const PHASES = ["forward", "backward", "update"];

const roleClass = (role) => (ROLES.includes(role) ? role : "unknown");
const kindClass = (kind) => (KINDS.includes(kind) ? kind : "other");
const colourName = (name) => `c-${name.replace(/ /g, "-")}`;

function swatch(name) {
  const node = el("span", { class: "swatch", "aria-hidden": "true" });
  node.style.setProperty("background", `var(--${colourName(name)})`);
  if (name === "unknown") node.classList.add("hatched");
  return node;
}

const collectives = rowsOf(DATA.collectives);
collectives.forEach((c, i) => { c.index = i; c.moved = []; });
for (const moved of rowsOf(DATA.moved)) collectives[moved.of].moved.push(moved);
const collectiveByName = new Map(collectives.map((c) => [c.name, c]));
const tensors = rowsOf(DATA.memory && DATA.memory.tensors);
