// Chats with a model. What the model and the person write is text, never markup.
"use strict";
(() => {
  const form = document.getElementById("ask");
  if (!form) return;
  const [log, note, question, key, stop] = ["log", "note", "question", "key", "stop"].map((id) => document.getElementById(id));
  const said = [];
  let ending;

  function add(kind, text) {
    const line = log.appendChild(document.createElement("p"));
    line.className = kind;
    line.textContent = text;
    return line;
  }
  const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

  // read calls back with each line of an answer.
  async function read(answer, line) {
    const text = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { done, value } = await text.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      lines.forEach(line);
    }
  }

  async function ask(text) {
    const a = { began: performance.now(), tokens: 0, pause: 0, replica: "" };
    let out, done = false;
    const piece = (word) => {
      const now = performance.now();
      if (a.first) a.pause = Math.max(a.pause, now - a.last);
      a.first ??= now;
      a.last = now;
      a.tokens++;
      out ??= add("answer", "");
      out.textContent += word;
      log.scrollTop = log.scrollHeight;
      note.textContent = "";
    };
    const watch = setInterval(() => {
      const quiet = performance.now() - (a.last ?? a.began);
      if (a.first && quiet > 500) note.textContent = `No token for ${(quiet / 1000).toFixed(1)} s. ${a.state ?? ""}`;
    }, 100);
    ending = new AbortController();
    try {
      const answer = await fetch("/ui/chat", {
        method: "POST", signal: ending.signal, headers: { "Content-Type": "application/json", "X-Remuda-Key": key.value },
        body: JSON.stringify({ model: form.dataset.model, messages: [...said, { role: "user", content: text }], stream: true, stream_options: { include_usage: true } }),
      });
      if (!answer.ok) throw new Error((await answer.json()).error?.message ?? `the server answered ${answer.status}`);
      a.replica = answer.headers.get("X-Remuda-Replica") ?? "";
      await read(answer, (line) => {
        if (line.startsWith(": remuda replica=")) a.replica = line.slice(17).trim();
        else if (line.startsWith(": remuda ")) note.textContent = `Waiting: ${a.state = line.slice(9)}`;
        if (!line.startsWith("data:") || done) return;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return void (done = true);
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        if (event.usage) a.usage = event.usage.completion_tokens;
        for (const c of event.choices ?? []) {
          const word = (c.delta?.reasoning_content ?? c.delta?.reasoning ?? "") + (c.delta?.content ?? "");
          if (word) piece(word);
        }
      });
      if (!done) throw new Error("the answer broke off");
      said.push({ role: "user", content: text }, { role: "assistant", content: out?.textContent ?? "" });
      note.textContent = "";
    } catch (e) {
      note.textContent = "";
      add(e.name === "AbortError" ? "muted" : "bad", e.name === "AbortError" ? "Stopped." : e.message);
    } finally {
      clearInterval(watch);
    }
    const tokens = a.usage ?? a.tokens, parts = [];
    if (a.replica) parts.push(a.replica);
    if (a.first) {
      parts.push(`${tokens} tokens`);
      if (tokens > 1 && a.last > a.first) parts.push(`${((tokens - 1) / ((a.last - a.first) / 1000)).toFixed(1)} tokens/s`);
      parts.push(`first after ${seconds(a.first - a.began)}`, `longest pause ${seconds(a.pause)}`);
    }
    if (parts.length) add("muted", parts.join(", "));
    log.scrollTop = log.scrollHeight;
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (!text || !stop.disabled) return;
    question.value = "";
    add("question", text);
    stop.disabled = false;
    await ask(text);
    stop.disabled = true;
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => ending?.abort());
})();
