// The library ai with @ai-sdk/openai-compatible: every case that this prints is required by
// clients_test.go.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, Output, RetryError, embedMany, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { all, breaksOff, engineIsFree, fails, given, inFlight, occupy, recorder, retriedOnce, run, slots } from './cases.mjs';

const { cuts, idle } = given;
const connect = (more = {}) => createOpenAICompatible({
  name: 'remuda', baseURL: `${given.gateway}/v1`, apiKey: given.key, includeUsage: true, supportsStructuredOutputs: true, ...more,
});
const provider = connect();
const asking = (more = {}) => ({ model: provider(given.model), prompt: 'What is a remuda?', maxOutputTokens: 24, maxRetries: 0, onError() {}, ...more });
const ask = (more) => generateText(asking(more));
const stream = (more) => streamText(asking(more));
const endless = { maxOutputTokens: 8000, providerOptions: { remuda: { ignore_eos: true } } };

/** Collects the parts of a stream and raises the error that one of them reports, if one does. */
async function parts(more) {
  const items = await all(stream(more).fullStream);
  const failed = items.find((p) => p.type === 'error');
  if (failed) throw failed.error;
  return items;
}

/** Requires that a request fails with an answer of the gateway. */
const refused = (promise, statusCode, code) => fails(promise, APICallError, { statusCode }).then((e) => assert.equal(e.data.error.code, code));

const tools = {
  get_weather: tool({ description: 'The weather of a city', inputSchema: z.object({ city: z.string() }), execute: ({ city }) => `sunny in ${city}` }),
};

await run({
  'text streamed': async () => {
    const whole = await ask();
    assert.ok(whole.text);
    const streamed = stream();
    assert.equal((await all(streamed.textStream)).join(''), whole.text);
    assert.equal(await streamed.finishReason, whole.finishReason);
  },

  'usage only where asked': async () => {
    const { usage } = await ask();
    const asked = stream();
    await asked.consumeStream();
    assert.ok(usage.outputTokens > 0);
    assert.equal((await asked.usage).totalTokens, usage.totalTokens);
    const without = stream({ model: connect({ includeUsage: false })(given.model) });
    await without.consumeStream();
    assert.equal((await without.usage).totalTokens, undefined);
  },

  completions: async () => {
    const model = provider.completionModel(given.model);
    const { text } = await ask({ model });
    assert.equal((await all(stream({ model }).textStream)).join(''), text);
  },

  tools: async () => {
    const more = { prompt: 'Use get_weather', tools, maxOutputTokens: 200, stopWhen: stepCountIs(2) };
    const { steps, text } = await ask(more);
    assert.equal(steps[0].toolResults[0].toolName, 'get_weather');
    assert.match(steps[0].toolResults[0].output, /^sunny in /);
    assert.ok(text);
    const streamed = stream(more);
    assert.equal((await all(streamed.textStream)).join(''), text);
    assert.deepEqual((await streamed.steps)[0].toolCalls[0].input, steps[0].toolCalls[0].input);
  },

  'JSON schema': async () => {
    const output = Output.object({ schema: z.object({ city: z.string(), people: z.number().int() }) });
    const whole = await ask({ output, maxOutputTokens: 400 });
    assert.equal(typeof whole.output.city, 'string');
    const streamed = stream({ output, maxOutputTokens: 400 });
    assert.deepEqual((await all(streamed.partialOutputStream)).at(-1), whole.output);
  },

  embeddings: async () => {
    const { embeddings, usage } = await embedMany({ model: provider.embeddingModel(given.model), values: ['one', 'two'] });
    assert.equal(embeddings.length, 2);
    assert.ok(embeddings[0].length > 1 && usage.tokens > 0);
  },

  'an aborted stream frees the engine': async () => {
    const leave = new AbortController();
    const types = [];
    for await (const part of stream({ ...endless, abortSignal: leave.signal }).fullStream) {
      types.push(part.type);
      if (part.type === 'text-delta') leave.abort();
    }
    assert.equal(types.at(-1), 'abort');
    await engineIsFree();
  },

  'an aborted request frees the engine': async () => {
    const leave = new AbortController();
    const answer = fails(ask({ ...endless, abortSignal: leave.signal }), DOMException, { name: 'AbortError' });
    await inFlight(1);
    leave.abort();
    await answer;
    await engineIsFree();
  },

  'its own time-out': async () => {
    await fails(ask({ ...endless, timeout: 200 }), DOMException, { name: 'TimeoutError' });
    await engineIsFree();
  },

  'a wrong key': async () => {
    const model = connect({ apiKey: 'sk-wrong' })(given.model);
    await refused(ask({ model }), 401, 'invalid_api_key');
    await refused(parts({ model }), 401, 'invalid_api_key');
  },

  'an unknown model': async () => {
    await refused(ask({ model: provider('nope') }), 404, 'model_not_found');
    await refused(parts({ model: provider('nope') }), 404, 'model_not_found');
    await refused(embedMany({ model: provider.embeddingModel('nope'), values: ['x'], maxRetries: 0 }), 404, 'model_not_found');
  },

  'a bad request': async () => {
    await fails(ask({ temperature: -1 }), APICallError, { statusCode: 400 });
  },

  'a model that the key may not call': async () => {
    await refused(ask({ model: connect({ apiKey: given.narrow })(idle) }), 403, 'model_not_allowed');
  },

  'a 429 is retried': async () => {
    const release = await occupy(1, given.limited);
    await refused(ask({ model: connect({ apiKey: given.limited })(given.model) }), 429, 'rate_limit_exceeded');
    const { fetch, answers } = recorder(() => release());
    assert.ok(await ask({ model: connect({ apiKey: given.limited, fetch })(given.model), maxRetries: 2 }));
    retriedOnce(answers, 429);
  },

  // The library does not know X-Should-Retry.
  'a 429 that is final': async () => {
    const { fetch, answers } = recorder();
    const { lastError } = await fails(ask({ model: connect({ apiKey: given.spent, fetch })(given.model), maxRetries: 1 }), RetryError);
    assert.equal(lastError.data.error.code, 'insufficient_quota');
    assert.deepEqual(answers.map((a) => a.status), [429, 429]);
  },

  'a 503 is retried': async () => {
    const release = await occupy(slots);
    const hurry = { headers: { 'X-Remuda-Timeout': '300ms' } };
    await refused(ask(hurry), 503, 'queue_timeout');
    const { fetch, answers } = recorder((answer) => answer.status === 503 && release());
    assert.ok(await ask({ ...hurry, model: connect({ fetch })(given.model), maxRetries: 2 }));
    retriedOnce(answers, 503);
  },

  'an error while a stream waits': async () => {
    const release = await occupy(slots);
    await fails(parts({ headers: { 'X-Remuda-Timeout': '600ms' } }), Object, { code: 'queue_timeout' });
    await release();
  },

  'an engine that breaks off': async () => {
    const want = [Object, { code: 'engine_cut_off' }];
    return [
      await breaksOff(parts({ model: provider(cuts) }), ...want),
      await breaksOff(parts({ model: provider.completionModel(cuts) }), ...want),
      await breaksOff(stream({ model: provider(cuts) }).text, ...want),
    ].join();
  },
});
