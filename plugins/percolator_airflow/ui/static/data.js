// Checkboxes in a list: the number of ticked ones is shown on the buttons and in their questions.
"use strict";

function count(form) {
  const boxes = [...form.querySelectorAll('input[name="cells[]"]')];
  const ticked = boxes.filter((box) => box.checked).length;
  const all = form.querySelector("[data-tick-all]");
  if (all) {
    all.checked = ticked > 0 && ticked === boxes.length;
    all.indeterminate = ticked > 0 && ticked < boxes.length;
  }
  const cells = ticked === 1 ? "1 cell" : `${ticked} cells`;
  for (const button of form.querySelectorAll("[data-ticked]")) {
    button.disabled = ticked === 0;
    button.dataset.label ??= button.textContent;
    button.dataset.question ??= button.dataset.ask ?? "";
    button.textContent = button.dataset.label + (ticked ? ` (${ticked})` : "");
    if (button.dataset.question) button.dataset.ask = button.dataset.question.replace("{ticked}", cells);
  }
}

document.addEventListener("change", (event) => {
  const form = event.target.form;
  if (form?.dataset.ticks === undefined) return;
  if (event.target.dataset.tickAll !== undefined) {
    for (const box of form.querySelectorAll('input[name="cells[]"]')) box.checked = event.target.checked;
  }
  count(form);
});
// The browser restores ticks when the user comes back to the page.
addEventListener("pageshow", () => document.querySelectorAll("form[data-ticks]").forEach(count));
document.addEventListener("percolator:fresh", () => document.querySelectorAll("form[data-ticks]").forEach(count));
