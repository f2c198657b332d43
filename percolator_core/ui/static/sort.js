// Tables with data-sort are sorted by a press on a header; the order stays when their contents are updated. A header
// with a link leads to a page in the order of the server instead.
"use strict";

const orders = new Map();

// A cell with data-value is compared by it. Texts that are numbers are compared as numbers, and come first.
function valueOf(row, at) {
  const cell = row.children[at];
  const text = (cell?.dataset.value ?? cell?.textContent ?? "").trim();
  const number = Number(text.replaceAll(",", ""));
  return text === "" || text === "-" ? null : Number.isNaN(number) ? text : number;
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
  return typeof one === "number" ? one - other : one.localeCompare(other, "en");
}

function sort(table) {
  const order = orders.get(table.id);
  if (!order) return;
  const heads = [...table.tHead.rows[0].cells];
  for (const [at, head] of heads.entries()) {
    if (order.at === at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: valueOf(row, order.at) }));
  // An empty cell is last in both directions.
  rows.sort((one, other) => {
    const found = compare(one.value, other.value);
    return order.down && one.value !== null && other.value !== null ? -found : found;
  });
  table.tBodies[0].append(...rows.map((one) => one.row));
}

function prepare() {
  for (const table of document.querySelectorAll("table[data-sort]")) {
    for (const [at, head] of [...table.tHead.rows[0].cells].entries()) {
      if (head.querySelector("a, button, .hidden")) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.id = `${table.id}-sort-${at}`;
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const order = orders.get(table.id);
        // The first press on a column of numbers shows the highest one.
        const first = head.classList.contains("n");
        if (order?.at === at && order.down !== first) orders.delete(table.id);
        else orders.set(table.id, { at, down: order?.at === at ? !order.down : first });
        if (orders.has(table.id)) sort(table);
        else location.reload();
      });
    }
    sort(table);
  }
}

document.addEventListener("DOMContentLoaded", prepare);
document.addEventListener("percolator:fresh", prepare);
