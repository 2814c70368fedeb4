// What TensorBoard's profile plugin needs of Google Charts to draw its tables, which it
// loads from the internet. Tables are drawn as HTML; charts are left out.
(() => {
  const cell = (given) =>
    given !== null && typeof given === "object" && "v" in given ? given : { v: given };

  class DataTable {
    constructor(given) {
      const from = typeof given === "string" ? JSON.parse(given) : given || {};
      this.cols = (from.cols || []).map((col) => ({ ...col }));
      this.rows = (from.rows || []).map((row) => row.c.map(cell));
      this.properties = from.p || {};
    }
    getNumberOfColumns() { return this.cols.length; }
    getNumberOfRows() { return this.rows.length; }
    getColumnId(c) { return this.cols[c].id || ""; }
    getColumnLabel(c) { return this.cols[c].label || ""; }
    getColumnType(c) { return this.cols[c].type || "string"; }
    getColumnRole() { return ""; }
    getColumnProperty() { return null; }
    getColumnProperties() { return {}; }
    getColumnPattern() { return ""; }
    getColumnIndex(name) {
      if (typeof name === "number") return name;
      const at = this.cols.findIndex((col) => col.id === name);
      return at < 0 ? this.cols.findIndex((col) => col.label === name) : at;
    }
    getValue(r, c) { return this.rows[r][this.getColumnIndex(c)]?.v ?? null; }
    getFormattedValue(r, c) {
      const found = this.rows[r][this.getColumnIndex(c)];
      return found?.f ?? String(found?.v ?? "");
    }
    getTableProperty(name) { return this.properties[name] ?? null; }
    getTableProperties() { return this.properties; }
    setTableProperty(name, value) { this.properties[name] = value; }
    setTableProperties(given) { this.properties = given; }
    setColumnProperty() {}
    setColumnProperties() {}
    setColumnLabel(c, label) { this.cols[c].label = label; }
    setProperty() {}
    setProperties() {}
    setCell(r, c, v, f) { this.rows[r][c] = { v, f }; }
    setValue(r, c, v) { this.rows[r][c] = { v }; }
    setFormattedValue(r, c, f) { this.rows[r][c].f = f; }
    addColumn(type, label, id) {
      const col = typeof type === "object" ? { ...type } : { type, label, id };
      this.cols.push(col);
      this.rows.forEach((row) => row.push({ v: null }));
      return this.cols.length - 1;
    }
    insertColumn(at, type, label, id) {
      this.cols.splice(at, 0, { type, label, id });
      this.rows.forEach((row) => row.splice(at, 0, { v: null }));
    }
    removeColumn(at) { this.removeColumns(at, 1); }
    removeColumns(at, count) {
      this.cols.splice(at, count);
      this.rows.forEach((row) => row.splice(at, count));
    }
    addRow(row) { return this.rows.push((row || []).map(cell)) - 1; }
    addRows(rows) {
      if (typeof rows === "number") {
        for (let i = 0; i < rows; i++) this.rows.push(this.cols.map(() => ({ v: null })));
      } else rows.forEach((row) => this.addRow(row));
    }
    removeRow(at) { this.rows.splice(at, 1); }
    removeRows(at, count) { this.rows.splice(at, count); }
    getFilteredRows(filters) {
      const fits = (r, f) => {
        const value = this.getValue(r, f.column);
        if (f.test) return f.test(value, r, f.column, this);
        if ("value" in f) return value === f.value;
        return !(value < f.minValue) && !(value > f.maxValue);
      };
      return this.rows.map((_, r) => r).filter((r) => filters.every((f) => fits(r, f)));
    }
    getSortedRows(how) {
      const first = Array.isArray(how) ? how[0] : how;
      const { column, desc } = typeof first === "object" ? first : { column: first };
      const order = this.rows.map((_, r) => r);
      const key = (r) => this.getValue(r, column);
      order.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
      return desc ? order.reverse() : order;
    }
    getDistinctValues(c) {
      return [...new Set(this.rows.map((_, r) => this.getValue(r, c)))].sort();
    }
    getColumnRange(c) {
      const values = this.getDistinctValues(c);
      return { min: values[0] ?? null, max: values[values.length - 1] ?? null };
    }
    sort(how) { this.rows = this.getSortedRows(how).map((r) => this.rows[r]); }
    clone() {
      const made = new DataTable({ p: this.properties });
      made.cols = this.cols.map((col) => ({ ...col }));
      made.rows = this.rows.map((row) => row.map((found) => ({ ...found })));
      return made;
    }
    toJSON() {
      return JSON.stringify({
        cols: this.cols, rows: this.rows.map((c) => ({ c })), p: this.properties,
      });
    }
    toDataTable() { return this.clone(); }
  }

  class DataView extends DataTable {
    constructor(table) {
      super();
      Object.assign(this, table.clone());
    }
    setRows(first, last) {
      const list = Array.isArray(first)
        ? first
        : Array.from({ length: last - first + 1 }, (_, i) => first + i);
      this.rows = list.map((r) => this.rows[r]);
    }
    setColumns(wanted) {
      const before = this.clone();
      const one = (c) => (typeof c === "object" ? c : { sourceColumn: before.getColumnIndex(c) });
      const list = wanted.map(one);
      this.cols = list.map((c) => ({ ...before.cols[c.sourceColumn], ...c }));
      this.rows = before.rows.map((row, r) =>
        list.map((c) =>
          typeof c.calc === "function" ? cell(c.calc(before, r)) : { ...row[c.sourceColumn] }));
    }
    hideColumns(hidden) {
      this.setColumns(this.cols.map((_, c) => c).filter((c) => !hidden.includes(c)));
    }
    hideRows(hidden) { this.rows = this.rows.filter((_, r) => !hidden.includes(r)); }
  }

  class Nothing {
    draw() {}
    getSelection() { return []; }
    setSelection() {}
    clearChart() {}
    format() {}
  }

  class Table extends Nothing {
    constructor(element) {
      super();
      this.element = element;
    }
    draw(data) {
      const drawn = document.createElement("table");
      drawn.className = "stand-in";
      const head = drawn.insertRow();
      data.cols.forEach((col) => { head.insertCell().textContent = col.label || col.id; });
      data.rows.forEach((_, r) => {
        const row = drawn.insertRow();
        data.cols.forEach((_, c) => {
          row.insertCell().textContent = data.getFormattedValue(r, c);
        });
      });
      this.element.replaceChildren(drawn);
    }
  }

  const group = (table, keys, sums) => {
    const made = new DataTable();
    keys.forEach((key) => made.addColumn({ ...table.cols[key.column ?? key] }));
    sums.forEach((sum) => made.addColumn({ ...table.cols[sum.column], type: sum.type }));
    const found = new Map();
    table.rows.forEach((_, r) => {
      const name = keys.map((key) => table.getValue(r, key.column ?? key));
      const text = JSON.stringify(name);
      if (!found.has(text)) found.set(text, [name, sums.map(() => [])]);
      sums.forEach((sum, i) => found.get(text)[1][i].push(table.getValue(r, sum.column)));
    });
    [...found.values()].forEach(([name, values]) =>
      made.addRow([...name, ...values.map((list, i) => sums[i].aggregation(list))]));
    return made;
  };

  const total = (list) => list.reduce((a, b) => a + (b || 0), 0);
  const visualization = {
    DataTable, DataView, Table,
    arrayToDataTable: ([head, ...rows]) => {
      const made = new DataTable();
      head.forEach((label) => made.addColumn(
        typeof label === "object" ? label : { label, type: "string" }));
      made.addRows(rows);
      return made;
    },
    data: { group, sum: total, count: (list) => list.length, avg: (l) => total(l) / l.length },
    events: { addListener() {}, trigger() {}, removeListener() {}, removeAllListeners() {} },
  };
  window.google = {
    charts: {
      load: () => Promise.resolve(),
      safeLoad: () => Promise.resolve(),
      setOnLoadCallback: (done) => setTimeout(done, 0),
    },
    visualization: new Proxy(visualization, { get: (all, name) => all[name] ?? Nothing }),
  };
})();
