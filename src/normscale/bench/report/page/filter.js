const form = document.getElementById("filter-rows");
const networks = Array.from(document.querySelectorAll('section[id^="network-"]'));
const sections = [document.getElementById("overview"), ...networks].filter(Boolean);
const title = (section) => section.querySelector("h2").textContent;
const caption = (table) => table.caption.textContent.split(", ").at(-1).toLowerCase();

/** What each detector reads: the column of the networks' tables that says so. */
const reads = new Map();
for (const table of document.querySelectorAll('section[id^="network-"] > .tables table')) {
  const place = Array.from(table.tHead.rows[0].cells).findIndex((cell) => cell.textContent.trim() === "Reads");
  for (const row of table.tBodies[0].rows) reads.set(row.cells[0].textContent, row.cells[place].textContent);
}

function fill(select, values) {
  for (const value of new Set(values)) if (value) select.add(new Option(value, value));
}

fill(form.network, networks.map(title));
const ranked = sections.flatMap((section) => Array.from(section.querySelectorAll("table.sortable")));
fill(form.statistics, ranked.map(caption));
fill(form.reads, Array.from(reads.values()).sort());

function show() {
  const words = form.words.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
  let shown = 0, all = 0;
  for (const section of sections) {
    const named = !form.network.value || title(section) === form.network.value;
    let left = 0;
    for (const table of section.querySelectorAll("table.sortable")) {
      const measured = !form.statistics.value || caption(table) === form.statistics.value;
      let rows = 0;
      for (const row of table.tBodies[0].rows) {
        const detector = row.cells[0].textContent;
        const text = `${row.textContent} ${reads.get(detector) ?? ""}`.toLowerCase();
        const fits = !form.reads.value || reads.get(detector) === form.reads.value;
        row.hidden = !(named && measured && fits && (!words.length || words.some((word) => text.includes(word))));
        rows += !row.hidden;
        if (!table.closest("details") && section.id !== "overview") { shown += !row.hidden; all += 1; }
      }
      table.closest(".scroll").hidden = rows === 0;
      left += rows;
    }
    section.hidden = left === 0;
  }
  form.shown.value = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
}

form.addEventListener("input", show);
form.addEventListener("reset", () => setTimeout(show));
form.addEventListener("submit", (event) => event.preventDefault());
show();
