"use strict";

// The button of a column sorts the rows of its table; cells without a finite value come last in both directions.
const valueOf = (row, column) => {
  const { number, text } = row.cells[column].dataset;
  if (number === undefined) return text;
  return Number.isFinite(Number(number)) ? Number(number) : undefined;
};

const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));

const sortBy = (head) => {
  const heads = [...head.parentElement.cells];
  const body = head.closest("table").tBodies[0];
  const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  const column = head.cellIndex;
  const rows = [...body.rows].sort((one, other) => {
    const a = valueOf(one, column);
    const b = valueOf(other, column);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return direction * compare(a, b);
  });
  heads.forEach((other) => other.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  body.append(...rows);
};

document.querySelectorAll("table.sorts th button").forEach((button) => {
  button.addEventListener("click", () => sortBy(button.closest("th")));
});

// Everything is unfolded for printing.
const folded = () => document.querySelectorAll("details:not([open])");
let opened = [];
window.addEventListener("beforeprint", () => {
  opened = [...folded()];
  opened.forEach((details) => (details.open = true));
});
window.addEventListener("afterprint", () => opened.forEach((details) => (details.open = false)));
