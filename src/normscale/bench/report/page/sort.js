"use strict";
(() => {
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  function compare(a, b, number) {
    if (a === "" || b === "") return (a === "") - (b === "");
    return number ? Number(a) - Number(b) : words.compare(a, b);
  }

  function sort(table, header, column) {
    const number = header.classList.contains("number");
    const before = header.getAttribute("aria-sort");
    const falling = before === "none" ? number : before === "ascending";
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    rows.sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      const order = compare(a, b, number);
      return a === "" || b === "" || !falling ? order : -order;
    });
    body.append(...rows);
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", falling ? "descending" : "ascending");
    document.getElementById("said").textContent =
      `sorted by ${header.textContent.trim()}, ${falling ? "highest first" : "lowest first"}`;
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
      header.firstElementChild.addEventListener("click", () => sort(table, header, column));
    });
  }

  // a column out of sight must show: the edge behind which it lies fades
  for (const box of document.querySelectorAll(".scroll")) {
    const look = () => box.toggleAttribute("data-more", box.scrollLeft + box.clientWidth < box.scrollWidth - 2);
    box.addEventListener("scroll", look, { passive: true });
    new ResizeObserver(look).observe(box);
  }

  const closed = [];
  addEventListener("beforeprint", () => {
    closed.push(...document.querySelectorAll("details:not([open])"));
    for (const one of closed) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of closed.splice(0)) one.open = false;
  });
})();
