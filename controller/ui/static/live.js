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
      cache: "no-store", signal: AbortSignal.timeout(20000),
    });
    if (answer.status === 401) return location.reload();
    if (answer.status !== 304 && !answer.ok) throw new Error(`the server answered ${answer.status}`);
    if (answer.status === 200) replace(await answer.text());
    index = answer.headers.get("X-Remuda-Index") || "0";
    tag = answer.headers.get("ETag") || "";
    renewed = Date.now();
    lost = "";
  }

  function show() {
    const seconds = Math.round((Date.now() - renewed) / 1000);
    const text = lost ? `Not live: ${lost}.` : "Live.";
    if (state.textContent !== text) state.textContent = text; // screen readers read each change
    age.textContent = seconds > 1 ? `The data is ${seconds} s old.` : "The data is at most 1 s old.";
    document.body.classList.toggle("stale", lost !== "");
  }

  setInterval(show, 1000);
  (async () => {
    for (;;) {
      // A page that nobody sees asks for nothing, and one in which text is selected stays.
      if (!document.hidden && document.getSelection().isCollapsed) await renew().catch((e) => { lost = e.message; index = "0"; });
      await pause(lost ? 1000 : 200);
    }
  })();
})();
