// What the programs of the client libraries share: how cases run, and what they need of the cluster.
import assert from 'node:assert/strict';

/**
 * What the Go test has set up:
 *   gateway, engine     URLs of the gateway, and of the one engine of the model
 *   model, cuts, idle   a model of this program alone; one whose engine drops every stream
 *                       after three tokens; one without an engine
 *   key, narrow, limited, spent
 *                       keys without limits; for no model but these; for one request at a time;
 *                       whose budget is used up
 */
export const given = JSON.parse(process.env.REMUDA_CLIENTS);

// A case that fails may leave a request behind that fails later.
process.on('unhandledRejection', (e) => console.error(e));

/** What ends the streams of occupy, in case that a test has failed before. */
const occupied = new Set();

/** Runs cases in turn and prints one line of JSON for each. */
export async function run(cases) {
  for (const [name, test] of Object.entries(cases)) {
    const begin = performance.now();
    let ok = true;
    let detail = '';
    try {
      detail = await test();
    } catch (e) {
      ok = false;
      detail = e?.stack ?? String(e);
      for (let cause = e?.cause; cause; cause = cause.cause) detail += `\ncaused by ${cause.stack ?? cause}`;
    }
    occupied.forEach((leave) => leave.abort());
    occupied.clear();
    console.log(JSON.stringify({ name, ok, detail: detail ?? '', ms: Math.round(performance.now() - begin) }));
  }
}

/** A fetch that keeps, for each request, when it was sent and what came. */
export function recorder(onAnswer = () => {}) {
  const answers = [];
  const record = async (url, init) => {
    const sent = performance.now();
    const answer = await fetch(url, init);
    answers.push({ sent, came: performance.now(), status: answer.status, headers: answer.headers });
    await onAnswer(answer);
    return answer;
  };
  return { fetch: record, answers };
}

/** Requires that the error of a promise is of a class and has these fields. */
export async function fails(promise, errorClass, fields = {}) {
  let error;
  try {
    await promise;
  } catch (e) {
    error = e;
  }
  assert.ok(error, 'no error was raised');
  assert.ok(error instanceof errorClass, `want ${errorClass.name}, got ${error?.stack ?? error}`);
  for (const [name, value] of Object.entries(fields)) {
    if (error[name] !== value) throw new Error(`${name} is ${error[name]}, not ${value}`, { cause: error });
  }
  return error;
}

/**
 * Requires that a stream fails as fails does, or with the cut of the connection that follows the
 * error event: Node.js drops what a program has not read when that comes. Returns which of them.
 */
export async function breaksOff(promise, errorClass, fields) {
  const error = await fails(promise, Object);
  for (let e = error; e; e = e.cause) if (e instanceof TypeError && e.message === 'terminated') return 'cut';
  await fails(Promise.reject(error), errorClass, fields);
  return 'error event';
}

/** Requires that a request was answered with a status, and sent again after Retry-After. */
export function retriedOnce(answers, status) {
  assert.deepEqual(answers.map((a) => a.status), [status, 200]);
  const wait = 1000 * Number(answers[0].headers.get('retry-after'));
  assert.ok(wait >= 1000, `Retry-After is ${wait} ms`);
  const waited = answers[1].sent - answers[0].came;
  assert.ok(waited >= wait - 20, `it was sent again after ${waited} ms, not ${wait} ms`);
}

/** Requires that a request was answered once, by a header that forbids another try. */
export function notRetried(answers, status) {
  assert.deepEqual(answers.map((a) => a.status), [status]);
  assert.equal(answers[0].headers.get('x-should-retry'), 'false');
}

/** Fills n slots of the program's engine until the function that it returns is called. */
export async function occupy(n, key = given.key) {
  const leave = new AbortController();
  occupied.add(leave);
  await Promise.all(Array.from({ length: n }, async () => {
    const answer = await fetch(`${given.gateway}/v1/chat/completions`, {
      method: 'POST',
      signal: leave.signal,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: given.model, stream: true, max_tokens: 8000, ignore_eos: true, messages: [{ role: 'user', content: 'Hold' }] }),
    });
    assert.equal(answer.status, 200);
    await answer.body.getReader().read();
  }));
  return async () => {
    leave.abort();
    await engineIsFree();
  };
}

/** How many slots an engine has. */
export const slots = 4;

/** Waits until the program's engine works on that many requests. */
export async function inFlight(n) {
  const deadline = performance.now() + 10_000;
  for (;;) {
    const { in_flight: now } = await (await fetch(`${given.engine}/sim/counters`)).json();
    if (now === n) return;
    assert.ok(performance.now() < deadline, `the engine works on ${now} requests, not on ${n}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export const engineIsFree = () => inFlight(0);

/** Collects what an iteration yields. */
export async function all(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}

/** Posts JSON for which the libraries have no function. */
export async function post(path, body) {
  const answer = await fetch(given.gateway + path, {
    method: 'POST',
    headers: { authorization: `Bearer ${given.key}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  assert.equal(answer.status, 200, await answer.clone().text());
  return answer.json();
}

/** A second of silence: 8 kHz, mono, 16 bits. */
export function wav() {
  const samples = Buffer.alloc(16_000);
  const head = Buffer.alloc(44);
  head.write('RIFF', 0);
  head.writeUInt32LE(36 + samples.length, 4);
  head.write('WAVEfmt ', 8);
  head.writeUInt32LE(16, 16);
  head.writeUInt16LE(1, 20);
  head.writeUInt16LE(1, 22);
  head.writeUInt32LE(8000, 24);
  head.writeUInt32LE(16_000, 28);
  head.writeUInt16LE(2, 32);
  head.writeUInt16LE(16, 34);
  head.write('data', 36);
  head.writeUInt32LE(samples.length, 40);
  return Buffer.concat([head, samples]);
}

/** A tool whose call is thousands of tokens long, and what makes the engine call it. */
export const essay = {
  name: 'essay',
  parameters: { type: 'object', properties: { lines: { type: 'array', minItems: 1000, items: { type: 'string', minLength: 40 } } }, required: ['lines'] },
};
export const writeEssay = [{ role: 'user', content: 'Use essay' }];

export const question = [{ role: 'user', content: 'What is a remuda?' }];