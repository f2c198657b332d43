// Live pages and forms that change something; every page can be read without JavaScript.
"use strict";

// An element with an id and data-live is updated by server-sent events, which end while the page is hidden. If the
// server has no further stream, the page is fetched again at intervals instead.
const events = new URL("../events", document.currentScript.src);

function beginLive() {
  if (!document.querySelector("[data-live]")) return;
  const latest = new Map();
  let source = null;
  let lost = false;
  const lose = (why) => {
    if (!lost) say(`Not updated since ${new Date().toLocaleTimeString()}${why}`, true);
    lost = true;
  };
  const end = () => {
    source?.close();
    source = null;
  };
  const begin = () => {
    if (source || document.visibilityState !== "visible") return;
    const url = new URL(events);
    url.searchParams.set("page", location.pathname + location.search);
    source = new EventSource(url);
    source.addEventListener("live", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) latest.set(id, html);
      update(latest);
      if (lost) say("The pages are up to date again.");
      lost = false;
    });
    source.addEventListener("lost", (event) => lose(`: ${event.data}`));
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return;
      end();
      removeEventListener("pageshow", begin);
      document.removeEventListener("visibilitychange", turn);
      poll();
    });
  };
  const turn = () => (document.visibilityState === "visible" ? begin() : end());
  document.addEventListener("visibilitychange", turn);
  addEventListener("pagehide", end);
  addEventListener("pageshow", begin);
  begin();
}

// Show the latest contents of live elements. An element in use keeps its contents until a later event.
function update(latest) {
  for (const [id, html] of latest) {
    const old = document.getElementById(id);
    if (!old || inUse(old)) continue;
    latest.delete(id);
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    put(old, fresh.content);
  }
  document.dispatchEvent(new CustomEvent("percolator:fresh"));
}

function put(old, content) {
  const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
  old.replaceChildren(content);
  document.getElementById(focused)?.focus({ preventScroll: true });
}

function poll() {
  const live = [...document.querySelectorAll("[data-live]")];
  const seconds = Math.min(...live.map((element) => Number(element.dataset.live) || 3));
  let failed = false;
  const look = async () => {
    if (document.visibilityState === "visible") {
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok) throw new Error(`${answer.status}`);
        replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
        if (failed) say("The store answers again.");
        failed = false;
      } catch (error) {
        if (!failed) say(`Not updated since ${new Date().toLocaleTimeString()}: ${error.message}`, true);
        failed = true;
      }
    }
    setTimeout(look, 1000 * seconds);
  };
  setTimeout(look, 1000 * seconds);
}

function replace(fresh, all = false) {
  for (const old of document.querySelectorAll(all ? "[data-live], [data-fresh]" : "[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now || (!all && inUse(old)) || now.innerHTML === old.innerHTML) continue;
    const content = document.createDocumentFragment();
    content.append(...document.importNode(now, true).childNodes);
    put(old, content);
  }
  document.dispatchEvent(new CustomEvent("percolator:fresh"));
}

// An element in use, with open details, ticks or the focus, is not updated. A focused link or button with an id does
// not count, because it gets the focus again after the update.
function inUse(element) {
  const focused = document.activeElement;
  if (element.querySelector("details[open], input:checked")) return true;
  return element.contains(focused) && !(focused.id && focused.matches("a, button"));
}

// A form with data-write is sent as JSON with the header that access control requires. data-ask is a question that
// is asked first. A button may have its own question, URL (formaction) and value. Afterwards the elements with
// data-live or data-fresh are updated.
async function write(form, button) {
  const asks = button?.dataset.ask === undefined ? form : button;
  if (asks.dataset.ask && !(await ask(asks.dataset.ask, asks.dataset.yes))) return;
  const body = {};
  for (const [name, value] of new FormData(form, button)) {
    if (name.endsWith("[]")) (body[name.slice(0, -2)] ??= []).push(value);
    else body[name] = value;
  }
  if (button) button.disabled = true;
  try {
    const answer = await fetch(button?.hasAttribute("formaction") ? button.formAction : form.action, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Percolator": "1" },
      body: JSON.stringify(body),
    });
    const result = await answer.json();
    say(result.said ?? result.error ?? result.detail ?? `${answer.status}`, !answer.ok);
    if (answer.ok) await refresh();
  } catch (error) {
    say(`The request failed: ${error.message}`, true);
  } finally {
    if (button) button.disabled = false;
    // A disabled button loses the focus, and the update may have removed the button.
    if (button && document.activeElement === document.body) {
      const place = button.isConnected ? button : document.getElementById(button.id);
      (place ?? document.getElementById("main")).focus({ preventScroll: true });
    }
  }
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"), true);
}

// The pages have their own dialog, because browsers show no dialogs of pages in Airflow's frame.
function ask(what, yes) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-what").textContent = what;
  document.getElementById("ask-yes").textContent = yes || "Continue";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((done) =>
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true }),
  );
}

function say(what, bad = false) {
  const place = document.getElementById("said");
  place.textContent = what;
  place.classList.toggle("bad", bad);
  place.classList.add("shown");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => place.classList.remove("shown"), bad ? 12000 : 6000);
}

document.addEventListener("submit", (event) => {
  if (event.target.dataset.write === undefined) return;
  event.preventDefault();
  write(event.target, event.submitter);
});
document.addEventListener("DOMContentLoaded", () => {
  beginLive();
  // On a narrow screen the current tab may be outside the view.
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
});
