// Renews the live part of a page. A request waits at the server until the state is another one,
// and not longer than 0.7 s; the pause between two requests is shorter than the rest of a second.
"use strict";
(() => {
  const live = document.getElementById("live");
  const state = document.getElementById("state");
  const age = document.getElementById("age");
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  let { index, tag } = live.dataset;
  let renewed = Date.now();
  let lost = "";

  const key = (element) => element.id || element.getAttribute("href") || element.getAttribute("action");
  function replace(html) {
    const focused = live.contains(document.activeElement) && key(document.activeElement);
    const open = [...live.querySelectorAll("details[open]")].map((d) => d.id);
    live.innerHTML = html;
    open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
    if (focused) [...live.querySelectorAll("a, button, summary, [tabindex]")].find((e) => key(e) === focused)?.focus();
  }

  async function renew() {
    const answer = await fetch(location.href, {
      headers: { "X-Remuda-Live": index, "If-None-Match": tag },
      cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(5000),
    });
    if (answer.type === "opaqueredirect") return location.reload(); // It leads to the login.
    if (answer.status !== 304 && !answer.ok) throw new Error(`the server answered ${answer.status}`);
    const body = answer.status === 200 && await answer.text();
    if (held()) return; // What it shows stays, and so does its age.
    if (body) replace(body);
    index = answer.headers.get("X-Remuda-Index") || "0";
    tag = answer.headers.get("ETag") || "";
    renewed = Date.now();
    lost = "";
  }

  // A page in which text is selected stays as it is.
  const held = () => !document.getSelection().isCollapsed;

  function show() {
    const old = Date.now() - renewed;
    let text = "Live.";
    if (lost) text = `Not live: ${lost}.`;
    else if (held()) text = "Not live while text is selected.";
    else if (old > 2000) text = "Not live: the server does not answer.";
    if (state.textContent !== text) state.textContent = text; // screen readers read each change
    age.textContent = old > 1000 ? `The data is ${(old / 1000).toFixed(old < 10000 ? 1 : 0)} s old.` : "The data is at most 1 s old.";
    if (old > 3000 && !held()) offer();
    document.body.classList.toggle("stale", text !== "Live.");
  }

  // offer links to the same page of the other servers.
  function offer() {
    const others = document.getElementById("others");
    if (others.firstChild || !others.dataset.servers) return;
    others.append("Other servers:");
    for (const server of others.dataset.servers.split(" ")) {
      const link = document.createElement("a");
      link.href = server + location.pathname + location.search;
      link.textContent = server;
      others.append(" ", link);
    }
  }

  setInterval(show, 250);
  (async () => {
    for (;;) {
      // A page that nobody sees asks for nothing.
      if (!document.hidden && !held()) await renew().catch((e) => { lost = e.name === "TimeoutError" ? "the server does not answer" : e.message; index = "0"; });
      await pause(lost ? 1000 : 200);
    }
  })();
})();
