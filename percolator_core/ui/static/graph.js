// Zoom and position of the drawing. Without JavaScript the drawing has its full size, and scrolls.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const pane = document.querySelector(".pane");
  if (!pane) return;
  const sheet = document.getElementById("drawing");
  const drawing = () => sheet.querySelector("svg.chain");
  const size = () => ({ width: Number(drawing().getAttribute("width")), height: Number(drawing().getAttribute("height")) });
  const kept = `percolator:zoom:${location.pathname}${location.search}`;
  let zoom = 1;

  // Below this zoom the texts would have less than 11 pixels.
  const readable = 0.85;

  function fitting() {
    const { width, height } = size();
    return Math.min(1, (pane.clientWidth - 18) / width, Math.max((innerHeight - 40) / height, 0.1));
  }

  // The zoom is set on the sheet, which stays when its drawing is replaced. The centre of the view stays, too.
  function setZoom(to) {
    const next = Math.min(2.5, Math.max(0.1, to));
    const x = (pane.scrollLeft + pane.clientWidth / 2) / zoom;
    const y = (pane.scrollTop + pane.clientHeight / 2) / zoom;
    zoom = next;
    sheet.style.zoom = zoom;
    sheet.classList.toggle("far", zoom < 0.55);
    pane.scrollTo(x * zoom - pane.clientWidth / 2, y * zoom - pane.clientHeight / 2);
    try {
      sessionStorage.setItem(kept, zoom);
    } catch {
      // Without session storage each page starts with the default zoom.
    }
  }

  function find(name) {
    for (const old of sheet.querySelectorAll(".found")) old.classList.remove("found");
    const box = name && document.getElementById(`observer-${name}`);
    if (!box) return;
    box.classList.add("found");
    if (zoom < 0.8) setZoom(1);
    box.scrollIntoView({ block: "nearest", inline: "center" });
    const place = box.getBoundingClientRect();
    const frame = pane.getBoundingClientRect();
    pane.scrollBy(place.x + place.width / 2 - frame.x - frame.width / 2, place.y + place.height / 2 - frame.y - frame.height / 2);
  }

  const choice = document.querySelector("[data-find]");
  choice.addEventListener("change", () => find(choice.value));
  document.addEventListener("percolator:fresh", () => {
    document.getElementById(`observer-${choice.value}`)?.classList.add("found");
  });

  const ways = { in: () => zoom * 1.25, out: () => zoom / 1.25, fit: fitting, full: () => 1 };
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => setZoom(ways[button.dataset.zoom]()));
  }
  pane.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    setZoom(zoom * Math.exp(-event.deltaY / 400));
  }, { passive: false });

  // The user can drag the background between the boxes.
  let from = null;
  pane.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest("a")) return;
    from = { x: event.clientX + pane.scrollLeft, y: event.clientY + pane.scrollTop };
    pane.setPointerCapture(event.pointerId);
    pane.classList.add("dragged");
  });
  pane.addEventListener("pointermove", (event) => {
    if (from) pane.scrollTo(from.x - event.clientX, from.y - event.clientY);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    pane.addEventListener(end, () => {
      from = null;
      pane.classList.remove("dragged");
    });
  }

  // The drawing is fitted to the pane as far as it stays readable. One of up to two screens does not scroll by itself.
  for (const tool of document.querySelectorAll("[data-scripted]")) tool.hidden = false;
  const before = Number(sessionStorage.getItem(kept));
  if (pane.clientWidth > 0) setZoom(before || Math.max(readable, fitting()));
  pane.classList.toggle("whole", size().height * zoom < 2 * innerHeight);
  // The view starts at the left, at the beginning of the chain.
  const first = drawing().querySelector(".node").getBoundingClientRect();
  const frame = pane.getBoundingClientRect();
  pane.scrollTo(first.x + first.width / 2 - frame.x - pane.clientWidth / 2, first.y - frame.y - pane.clientHeight / 2);
});

// Hide idle observers in the table.
document.addEventListener("DOMContentLoaded", () => {
  const choice = document.querySelector("[data-busy]");
  if (!choice) return;
  choice.parentElement.hidden = false;
  choice.addEventListener("change", () => {
    document.getElementById("figures").classList.toggle("busy", choice.checked);
  });
});
