// The values of the curves at a time, by pointer or arrow keys; and the buttons that hide curves.
"use strict";

const shows = {
  count: (value) => value.toLocaleString("en"),
  rate: (value) => value.toLocaleString("en", { maximumSignificantDigits: 3 }),
  age(value) {
    for (const [length, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (value >= 2 * length) return `${(value / length).toFixed(0)} ${unit}`;
    }
    return `${value.toFixed(1)} s`;
  },
  size(value) {
    const units = ["B", "KiB", "MiB", "GiB"];
    let at = 0;
    for (; value >= 1024 && at < 3; at += 1) value /= 1024;
    return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
  },
};
const left = new Set();
const known = new WeakMap();
const most = 9;

function read(plot) {
  if (!known.has(plot)) {
    const looks = document.getElementById("looks").dataset;
    const names = [...plot.querySelector("template").content.querySelectorAll("i")];
    known.set(plot, {
      times: JSON.parse(looks.times),
      shares: JSON.parse(looks.shares),
      values: JSON.parse(plot.dataset.values),
      names: names.map((one) => ({
        name: one.textContent,
        swatch: one.querySelector("svg"),
        style: one.dataset.style,
        always: one.dataset.always !== undefined,
      })),
      show: shows[plot.dataset.form],
    });
  }
  return known.get(plot);
}

// Return the visible curves, the highest first.
function at(plot, position) {
  const { values, names, show } = read(plot);
  return names
    .map((one, index) => ({ ...one, value: values[index][position] }))
    .filter((one) => one.value !== null && (one.always || !left.has(one.style)))
    .sort((a, b) => b.value - a.value)
    .map((one) => ({ ...one, text: show(one.value) }));
}

function moment(plot, position) {
  return `${new Date(1000 * read(plot).times[position]).toISOString().slice(0, 16).replace("T", " ")}Z`;
}

function point(plot, position) {
  for (const cursor of document.querySelectorAll(".plot .cursor")) {
    cursor.classList.remove("off");
    cursor.setAttribute("d", `M${(1000 * read(plot).shares[position]).toFixed(1)} 0v200`);
  }
  const found = at(plot, position);
  // Curves at 0 are only counted: many of them would hide the others.
  const high = found.filter((one) => one.value > 0).slice(0, most);
  const reading = plot.querySelector(".reading");
  const rows = high.map((one) => {
    const row = document.createElement("div");
    const value = document.createElement("b");
    value.textContent = one.text;
    row.append(document.importNode(one.swatch, true), one.name, value);
    return row;
  });
  const head = document.createElement("div");
  head.textContent = moment(plot, position);
  const rest = document.createElement("div");
  const others = found.length - high.length;
  const zeros = found.filter((one) => one.value === 0).length;
  if (others > 0) rest.textContent = others === zeros ? `${others} at 0` : `and ${others} more`;
  if (found.length === 0) rest.textContent = "no value";
  reading.replaceChildren(head, ...rows, rest);
  reading.hidden = false;
  const share = read(plot).shares[position];
  const field = plot.querySelector(".lines");
  const room = field.clientWidth - reading.offsetWidth;
  const x = share * field.clientWidth;
  reading.style.left = `${Math.max(Math.min(0, room), x > room - 14 ? x - reading.offsetWidth - 14 : x + 14)}px`;
  field.setAttribute("aria-valuenow", position);
  const words = (high.length ? high : found.slice(0, most)).map((one) => `${one.name} ${one.text}`);
  field.setAttribute("aria-valuetext", `${moment(plot, position)}: ${words.join(", ") || "no value"}`);
}

function leave(plot) {
  plot.querySelector(".reading").hidden = true;
  for (const cursor of document.querySelectorAll(".plot .cursor")) cursor.classList.add("off");
}

function nearest(plot, share) {
  const { shares } = read(plot);
  let best = 0;
  for (let index = 1; index < shares.length; index += 1) {
    if (Math.abs(shares[index] - share) < Math.abs(shares[best] - share)) best = index;
  }
  return best;
}

function leaveOut() {
  for (const curve of document.querySelectorAll(".plot [data-series]")) {
    curve.classList.toggle("off", left.has(curve.dataset.series));
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const plots = document.getElementById("plots");
  if (!plots) return;
  const plotOf = (event) => event.target.closest(".lines")?.closest(".plot");
  for (const kind of ["pointerdown", "pointermove"]) {
    plots.addEventListener(kind, (event) => {
      const plot = plotOf(event);
      if (!plot) return;
      const place = plot.querySelector(".lines").getBoundingClientRect();
      point(plot, nearest(plot, (event.clientX - place.x) / place.width));
    });
  }
  // After a touch the values stay visible.
  plots.addEventListener("pointerout", (event) => {
    const plot = plotOf(event);
    if (plot && event.pointerType !== "touch" && !plot.querySelector(".lines").contains(event.relatedTarget)) leave(plot);
  });
  plots.addEventListener("focusin", (event) => {
    const plot = plotOf(event);
    if (plot) point(plot, Number(plot.querySelector(".lines").getAttribute("aria-valuenow")));
  });
  plots.addEventListener("focusout", (event) => {
    const plot = plotOf(event);
    if (plot) leave(plot);
  });
  plots.addEventListener("keydown", (event) => {
    const plot = plotOf(event);
    if (!plot) return;
    const last = read(plot).times.length - 1;
    const now = Number(plot.querySelector(".lines").getAttribute("aria-valuenow"));
    const page = Math.max(1, Math.round(last / 10));
    const ways = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - page, PageUp: now + page, Home: 0, End: last };
    if (event.key === "Escape") leave(plot);
    if (!(event.key in ways)) return;
    event.preventDefault();
    point(plot, Math.min(last, Math.max(0, ways[event.key])));
  });
  for (const button of document.querySelectorAll(".legend [data-series]")) {
    button.addEventListener("click", () => {
      const shown = left.has(button.dataset.series);
      if (shown) left.delete(button.dataset.series);
      else left.add(button.dataset.series);
      button.setAttribute("aria-pressed", shown);
      leaveOut();
    });
  }
  document.addEventListener("percolator:fresh", leaveOut);
});
