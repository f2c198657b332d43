// Live pages and writes; every page can be read without it.
"use strict";

// An element with data-live and an id is fetched again with its page, every so many seconds (data-live="3").
function beginLive() {
  const live = [...document.querySelectorAll("[data-live]")];
  if (live.length === 0) return;
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
        if (!failed) say(`No news since ${new Date().toLocaleTimeString()}: ${error.message}`, true);
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
    if (!now || (!all && worked(old)) || now.innerHTML === old.innerHTML) continue;
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    old.replaceChildren(...document.importNode(now, true).childNodes);
    document.getElementById(focused)?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new CustomEvent("percolator:fresh"));
}

// What a person works in stays as it is until he leaves it. A link with an id keeps the focus all the same.
function worked(element) {
  const focused = document.activeElement;
  if (element.querySelector("details[open], input:checked")) return true;
  return element.contains(focused) && !(focused.id && focused.matches("a, button"));
}

// A form with data-write is sent as JSON, with the header that makes it ours; data-ask is asked before. A button
// of it may have a question, a place to send to (formaction) and a value of its own. Afterwards the page's parts
// with data-live or data-fresh are drawn anew.
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
    const told = await answer.json();
    say(told.said ?? told.error ?? told.detail ?? `${answer.status}`, !answer.ok);
    if (answer.ok) await refresh();
  } catch (error) {
    say(`Nothing was heard: ${error.message}`, true);
  } finally {
    if (button) button.disabled = false;
    // What is disabled loses the focus, and the button may be gone with what it was for.
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

// A dialog of our own: in Airflow's frame the browser shows none of its own.
function ask(what, yes) {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-what").textContent = what;
  document.getElementById("ask-yes").textContent = yes || "Go on";
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
  // On a narrow screen the tabs do not all fit.
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
});
