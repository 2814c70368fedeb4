// A table that sorts by any column and draws only the rows in sight, so that thousands
// of rows cost as much as thirty. Arrow keys move through rows, Enter opens one.

const ROW_PX = 30;
const inOrder = new Intl.Collator("en", { numeric: true }); // layers.2 before layers.10
let tablesMade = 0;

// columns: [{ key, title, hint, width, right, tail, value(row), text(row), cell(row) }]; of
// a name with a `tail` the end is shown where there is no room, for the end tells more.
// Returns { show(rows), sortBy(key, descending), select(row), element }.
function makeTable({ label, columns, sort, descending = true, totals, onHover, onOpen }) {
  const id = `table-${tablesMade += 1}`;
  let rows = [], shown = [], active = -1, drawn = [-1, -1];
  let sortKey = sort, isDescending = descending;
  const width = columns.reduce((sum, c) => sum + c.width, 0);

  const heads = columns.map((c) => el("th",
    { scope: "col", class: c.right ? "right" : null },
    el("button", {
      type: "button", title: c.hint || `Sort by ${c.title}`,
      onclick: () => sortBy(c.key, c.key === sortKey ? !isDescending : !!c.right),
    }, c.title, el("span", { class: "arrow", "aria-hidden": "true" }))));
  const body = el("tbody");
  const foot = totals ? el("tfoot") : null;
  const table = el("table", {
    role: "grid", tabindex: "0", "aria-label": label, onkeydown: onKey,
  }, el("colgroup", {}, ...columns.map((c) => {
    const col = el("col");
    col.style.width = `${(100 * c.width) / width}%`;
    return col;
  })), el("thead", {}, el("tr", { "aria-rowindex": "1" }, ...heads)), body, foot);
  table.style.minWidth = `${width}px`;
  const element = el("div", { class: "table", onscroll: () => draw(false) }, table);
  const empty = el("p", { class: "empty", hidden: true }, "Nothing matches.");

  body.addEventListener("mouseover", (event) => {
    const row = rowAt(event.target);
    if (row && onHover) onHover(row);
  });
  body.addEventListener("mouseleave", () => onHover && onHover(null));
  body.addEventListener("click", (event) => {
    const row = rowAt(event.target);
    if (row) { setActive(shown.indexOf(row), false); if (onOpen) onOpen(row); }
  });

  function rowAt(node) {
    const tr = node.closest("tr[data-i]");
    return tr ? shown[Number(tr.dataset.i)] : null;
  }

  function sortBy(key, down) {
    const chosen = columns.find((c) => c.key === key) || columns[0];
    const keep = shown[active];
    sortKey = chosen.key;
    isDescending = down;
    const valued = rows.map((row, i) => [chosen.value(row), i, row]);
    valued.sort(([a, i], [b, j]) => {
      const order = typeof a === "string" && typeof b === "string"
        ? inOrder.compare(a, b) : Number(a) - Number(b);
      return (isDescending ? -order : order) || i - j;
    });
    shown = valued.map((entry) => entry[2]);
    active = keep ? shown.indexOf(keep) : -1;
    heads.forEach((head, i) => {
      const is = columns[i].key === sortKey;
      head.setAttribute("aria-sort", !is ? "none" : isDescending ? "descending" : "ascending");
    });
    draw(true);
  }

  function show(newRows) {
    rows = newRows;
    element.hidden = rows.length === 0;
    empty.hidden = rows.length > 0;
    table.setAttribute("aria-rowcount", rows.length + 1);
    if (foot) foot.replaceChildren(totalsRow());
    element.scrollTop = 0;
    sortBy(sortKey, isDescending);
  }

  function totalsRow() {
    const cells = totals(rows);
    return el("tr", {}, ...columns.map((c) => el("td",
      { class: c.right ? "right" : null }, cells[c.key] || "")));
  }

  function draw(force) {
    const height = element.clientHeight || 480;
    const from = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - 8);
    const to = Math.min(shown.length, from + Math.ceil(height / ROW_PX) + 16);
    if (!force && from === drawn[0] && to === drawn[1]) return;
    drawn = [from, to];
    body.replaceChildren(
      spacer(from), ...shown.slice(from, to).map((row, i) => rowNode(row, from + i)),
      spacer(shown.length - to));
    const current = active >= from && active < to ? `${id}-${active}` : null;
    if (current) table.setAttribute("aria-activedescendant", current);
    else table.removeAttribute("aria-activedescendant");
  }

  function spacer(count) {
    const node = el("tr", { class: "spacer", "aria-hidden": "true" });
    node.style.height = `${count * ROW_PX}px`;
    return node;
  }

  function rowNode(row, i) {
    return el("tr", {
      id: `${id}-${i}`, "data-i": i, "aria-rowindex": i + 2,
      "aria-selected": i === active ? "true" : "false",
      class: onOpen ? "opens" : null,
    }, ...columns.map((c) => {
      const text = c.text ? c.text(row) : String(c.value(row));
      const inner = c.cell ? c.cell(row) : text;
      const parts = Array.isArray(inner) ? inner : [inner];
      return c.tail ? el("td", { class: "tail", title: text }, el("bdi", { dir: "ltr" }, ...parts))
        : el("td", { class: c.right ? "right" : null, title: text }, ...parts);
    }));
  }

  function setActive(i, scroll) {
    active = i;
    if (scroll && i >= 0) {
      const head = table.tHead.offsetHeight, tail = foot ? foot.offsetHeight : 0;
      const top = i * ROW_PX, room = element.clientHeight - head - tail - ROW_PX;
      if (top < element.scrollTop) element.scrollTop = top;
      else if (top > element.scrollTop + room) element.scrollTop = top - room;
    }
    draw(true);
  }

  function onKey(event) {
    const page = Math.max(1, Math.floor(element.clientHeight / ROW_PX) - 3);
    const moves = {
      ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
      Home: -shown.length, End: shown.length,
    };
    if (event.target !== table) return;
    if (event.key in moves && shown.length) {
      const next = active < 0 ? 0 : active + moves[event.key];
      setActive(Math.min(shown.length - 1, Math.max(0, next)), true);
      if (onHover) onHover(shown[active]);
    } else if (event.key === "Enter" && active >= 0 && onOpen) {
      onOpen(shown[active]);
    } else {
      return;
    }
    event.preventDefault();
  }

  const select = (row) => setActive(shown.indexOf(row), true);
  new ResizeObserver(() => draw(false)).observe(element);
  return { element: el("div", { class: "table-box" }, element, empty), show, sortBy, select };
}

// A cell with a bar behind its number.
function barCell(text, share) {
  const bar = el("span", { class: "cell-bar", "aria-hidden": "true" });
  bar.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return [bar, el("span", { class: "cell-text" }, text)];
}
