// Checkboxes in a list: the number of ticked ones is shown on the buttons and in their questions.
"use strict";

const cellsIn = (element) => [...element.querySelectorAll('input[name="cells[]"]')];

// Return the checkboxes that a checkbox with data-tick ticks: those of its group, or else all.
const ownCells = (box) => cellsIn(box.closest("li") ?? box.form);

function count(form) {
  for (const box of form.querySelectorAll("[data-tick]")) {
    const own = ownCells(box);
    const some = own.filter((one) => one.checked).length;
    box.checked = some > 0 && some === own.length;
    box.indeterminate = some > 0 && some < own.length;
  }
  const ticked = cellsIn(form).filter((box) => box.checked).length;
  const cells = ticked === 1 ? "1 cell" : `${ticked} cells`;
  for (const button of form.querySelectorAll("[data-ticked]")) {
    button.disabled = ticked === 0;
    button.dataset.label ??= button.textContent;
    button.dataset.question ??= button.dataset.ask ?? "";
    button.textContent = button.dataset.label + (ticked ? ` (${ticked})` : "");
    if (button.dataset.question) button.dataset.ask = button.dataset.question.replace("{ticked}", cells);
  }
}

const countAll = () => document.querySelectorAll("form[data-ticks]").forEach(count);

document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.form?.dataset.ticks === undefined) return;
  if (box.dataset.tick !== undefined) for (const one of ownCells(box)) one.checked = box.checked;
  count(box.form);
});
// The browser restores ticks when the user comes back to the page.
addEventListener("pageshow", countAll);
document.addEventListener("percolator:fresh", countAll);
