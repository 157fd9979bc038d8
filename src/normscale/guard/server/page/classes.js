// Class by class, the stream against training: shares, means and spreads; the most shifted first.

import { byId, grow, make, on, say, set } from "./dom.js";
import { count, decimal, isNumber, share, signed } from "./format.js";

const FEW = 20;
const CALM = 10; // seconds between new orders; rows that change places all the time cannot be read
const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const absolute = (value) => (isNumber(value) ? Math.abs(value) : null);

const COLUMNS = [
  { title: "Class", field: "name", as: String },
  { title: "Share", field: "recent_share", as: share, bar: "bar", hint: "Of the recent rows; the mark is training's" },
  { title: "training", field: "training_share", as: share },
  { title: "Shift / σ", field: "shift", as: signed, bar: "bar both", hint: "Of the mean, in training's deviations" },
  { title: "Mean", field: "running_mean", as: decimal, hint: "Of the class's logit, over all rows" },
  { title: "training", field: "training_mean", as: decimal },
  { title: "Std", field: "running_std", as: decimal },
  { title: "training", field: "training_std", as: decimal },
];
const [NAME, SHARE, , SHIFT] = COLUMNS;

export const nameOf = (view, index) => String(view.classes.name?.[index] ?? index);

export class Classes {
  constructor() {
    this.table = byId("classes");
    this.sorting = { column: SHIFT, falling: true };
    this.ordered = -Infinity;
    this.expanded = false;
    this.#addHeader();
    on(this.table, "pointerenter pointerleave", ({ type }) => (this.hovered = type === "pointerenter"));
    on(byId("show-all"), "click", () => {
      this.expanded = !this.expanded;
      this.#arrange();
    });
  }

  update(view) {
    const n = this.all?.length;
    this.all = records(view);
    this.limit = view.readings.find((reading) => reading.name === "shift")?.limit ?? Infinity;
    const moments = this.all.some((one) => isNumber(one.shift));
    set(this.table, "class", moments ? "" : "no-moments");
    if (!moments && this.sorting.column === SHIFT) this.sorting = { column: SHARE, falling: true };
    byId("classes-card").hidden = this.all.length === 0;
    byId("show-all").hidden = this.all.length <= FEW;
    const due = view.now - this.ordered > CALM && !this.hovered;
    if (due || n !== this.all.length) {
      this.ordered = view.now;
      this.#arrange();
    } else this.#fill();
  }

  #addHeader() {
    for (const column of COLUMNS) {
      const button = make("button", { type: "button", title: column.hint ?? "" }, column.title);
      const cell = make("th", { scope: "col", class: column === NAME ? "" : "number" }, button);
      on(button, "click", () => this.#sortBy(column));
      this.table.tHead.rows[0].append(cell);
    }
  }

  #sortBy(column) {
    const falling = this.sorting.column === column ? !this.sorting.falling : column !== NAME;
    this.sorting = { column, falling };
    this.#arrange();
    say(byId("said"), `sorted by ${column.title}, ${falling ? "highest first" : "lowest first"}`);
  }

  // Which classes are shown, and in which order.
  #arrange() {
    const { column, falling } = this.sorting;
    const key = (one) => (column === SHIFT ? absolute(one.shift) : one[column.field]);
    const sorted = this.all.toSorted((a, b) => compare(key(a), key(b), falling));
    this.order = sorted.slice(0, this.expanded ? undefined : FEW).map((one) => one.index);
    COLUMNS.forEach((one, k) => {
      const direction = falling ? "descending" : "ascending";
      set(this.table.tHead.rows[0].cells[k], "aria-sort", one === column ? direction : "none");
    });
    set(byId("show-all"), "aria-expanded", this.expanded);
    say(byId("show-all"), this.expanded ? `Show ${FEW}` : `Show all ${count(this.all.length)}`);
    const some = this.order.length < sorted.length ? `${this.order.length} of ` : "";
    const most = column === SHIFT && falling ? ", the most shifted first" : "";
    say(byId("classes-summary"), `${some}${count(sorted.length)} classes${most}.`);
    this.#fill();
  }

  // Rows keep their places in the document; only their texts change.
  #fill() {
    const rows = grow(this.table.tBodies[0], this.order.length, newRow);
    const most = (...fields) => Math.max(...this.all.flatMap((one) => fields.map((field) => absolute(one[field]) ?? 0)));
    const widths = { share: most("recent_share", "training_share") || 1, shift: Math.max(1, most("shift")) };
    this.order.forEach((index, k) => fillRow(rows[k], this.all[index], widths, this.limit));
  }
}

// One record a class, out of the view's lists, any of which may be missing.
function records(view) {
  const lists = Object.entries(view.classes).filter(([, list]) => Array.isArray(list));
  const n = Math.max(0, ...lists.map(([, list]) => list.length));
  return Array.from({ length: n }, (_, index) => {
    const one = Object.fromEntries(lists.map(([field, list]) => [field, list[index]]));
    const shift = (one.running_mean - one.training_mean) / one.training_std;
    return { ...one, index, name: nameOf(view, index), shift: isNumber(shift) ? shift : null };
  });
}

// What is not known comes last either way.
function compare(a, b, falling) {
  const [noA, noB] = [a, b].map((value) => (value ?? null) === null);
  if (noA || noB) return noA - noB;
  const order = typeof a === "string" ? words.compare(a, b) : a - b;
  return falling ? -order : order;
}

function newRow() {
  const bar = (kind) => make("span", { class: kind }, make("i", { class: "fill" }), make("i", { class: "mark" }));
  const cells = COLUMNS.slice(1).map((column) =>
    make("td", { class: "number" }, ...(column.bar ? [bar(column.bar)] : []), make("span")),
  );
  return make("tr", {}, make("th", { scope: "row" }, make("span")), ...cells);
}

function fillRow(row, one, widths, limit) {
  COLUMNS.forEach((column, k) => say(row.cells[k].lastChild, column.as(one[column.field])));
  const place = (column, left, width, mark) => {
    const [fill, line] = row.cells[COLUMNS.indexOf(column)].firstChild.children;
    Object.assign(fill.style, { left: `${left}%`, width: `${width}%` });
    line.style.left = `${mark}%`;
  };
  place(SHARE, 0, (100 * one.recent_share) / widths.share, (100 * one.training_share) / widths.share);
  const moved = (50 * one.shift) / widths.shift;
  place(SHIFT, 50 + Math.min(0, moved), Math.abs(moved), 50);
  set(row, "class", Math.abs(one.shift) > limit ? "far" : "");
}
