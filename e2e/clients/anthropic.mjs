// The library @anthropic-ai/sdk: every case that this prints is required by clients_test.go.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import {
  all, breaksOff, engineIsFree, essay, fails, given, inFlight, notRetried, occupy, question, recorder, retriedOnce, run, slots, writeEssay,
} from './cases.mjs';

const { model, cuts, idle } = given;
const connect = (more = {}) => new Anthropic({ baseURL: given.gateway, apiKey: given.key, maxRetries: 0, ...more });
const client = connect();
const ask = (more = {}, options = {}, c = client) => c.messages.create({ model, messages: question, max_tokens: 24, ...more }, options);
const tools = [{
  name: 'get_weather',
  description: 'The weather of a city',
  input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}];

const endless = { messages: writeEssay, max_tokens: 8000, tools: [{ name: essay.name, input_schema: essay.parameters }] };

/** The fields of Anthropic's errors. */
const told = (status, type) => ({ status, type });

await run({
  messages: async () => {
    const whole = await ask();
    assert.equal(whole.role, 'assistant');
    assert.ok(whole.content[0].text);
    assert.ok(whole.usage.input_tokens > 0 && whole.usage.output_tokens > 0);
    assert.deepEqual((await ask({}, {}, connect({ apiKey: null, authToken: given.key }))).content, whole.content);
  },

  'messages streamed': async () => {
    const whole = await ask();
    const events = await all(await ask({ stream: true }));
    assert.equal(events.map((e) => e.delta?.text ?? '').join(''), whole.content[0].text);
    assert.equal(events[0].type, 'message_start');
    assert.equal(events.at(-1).type, 'message_stop');
    const final = await client.messages.stream({ model, messages: question, max_tokens: 24 }).finalMessage();
    assert.deepEqual(final.content, whole.content);
    assert.equal(final.stop_reason, whole.stop_reason);
    assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
  },

  tools: async () => {
    const messages = [{ role: 'user', content: 'Use get_weather' }];
    const whole = await ask({ messages, tools, max_tokens: 200 });
    assert.equal(whole.stop_reason, 'tool_use');
    const call = whole.content.find((c) => c.type === 'tool_use');
    assert.equal(typeof call.input.city, 'string');
    const streamed = await client.messages.stream({ model, messages, tools, max_tokens: 200 }).finalMessage();
    assert.deepEqual(streamed.content.find((c) => c.type === 'tool_use').input, call.input);
    const answered = [...messages, { role: 'assistant', content: whole.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'sunny' }] }];
    const answer = await ask({ messages: answered, tools });
    assert.ok(answer.content[0].text);
    assert.deepEqual((await client.messages.stream({ model, messages: answered, tools, max_tokens: 24 }).finalMessage()).content, answer.content);
  },

  count_tokens: async () => {
    const { input_tokens: counted } = await client.messages.countTokens({ model, messages: question });
    const { usage } = await ask();
    assert.equal(counted, usage.input_tokens + (usage.cache_read_input_tokens ?? 0)); // the first are those that were not cached
  },

  'an aborted stream frees the engine': async () => {
    for await (const event of await ask({ ...endless, stream: true })) if (event.type === 'content_block_delta') break;
    await engineIsFree();
    const stream = client.messages.stream({ model, ...endless });
    stream.once('inputJson', () => stream.abort());
    await fails(stream.finalMessage(), Anthropic.APIUserAbortError);
    await engineIsFree();
  },

  'an aborted request frees the engine': async () => {
    const leave = new AbortController();
    const answer = fails(ask(endless, { signal: leave.signal }), Anthropic.APIUserAbortError);
    await inFlight(1);
    leave.abort();
    await answer;
    await engineIsFree();
  },

  'its own time-out': async () => {
    await fails(ask(endless, { timeout: 200 }), Anthropic.APIConnectionTimeoutError);
    await engineIsFree();
  },

  'a wrong key': async () => {
    for (const stranger of [connect({ apiKey: 'sk-wrong' }), connect({ apiKey: null, authToken: 'sk-wrong' })]) {
      await fails(ask({}, {}, stranger), Anthropic.AuthenticationError, told(401, 'authentication_error'));
      await fails(ask({ stream: true }, {}, stranger), Anthropic.AuthenticationError, told(401, 'authentication_error'));
      await fails(stranger.messages.countTokens({ model, messages: question }), Anthropic.AuthenticationError, told(401, 'authentication_error'));
    }
  },

  'an unknown model': async () => {
    await fails(ask({ model: 'nope' }), Anthropic.NotFoundError, told(404, 'not_found_error'));
    await fails(client.messages.countTokens({ model: 'nope', messages: question }), Anthropic.NotFoundError, told(404, 'not_found_error'));
  },

  'a bad request': async () => {
    await fails(ask({ max_tokens: 0 }), Anthropic.BadRequestError, told(400, 'invalid_request_error'));
    await fails(ask({ messages: [], stream: true }), Anthropic.BadRequestError, told(400, 'invalid_request_error'));
  },

  'a model that the key may not call': async () => {
    await fails(ask({ model: idle }, {}, connect({ apiKey: given.narrow })), Anthropic.PermissionDeniedError, told(403, 'permission_error'));
  },

  'a 429 is retried': async () => {
    const release = await occupy(1, given.limited);
    await fails(ask({}, {}, connect({ apiKey: given.limited })), Anthropic.RateLimitError, told(429, 'rate_limit_error'));
    const { fetch, answers } = recorder(() => release());
    assert.ok(await ask({}, {}, connect({ apiKey: given.limited, maxRetries: 2, fetch })));
    retriedOnce(answers, 429);
  },

  'a 429 that is final': async () => {
    const { fetch, answers } = recorder();
    await fails(ask({}, {}, connect({ apiKey: given.spent, maxRetries: 2, fetch })), Anthropic.RateLimitError, told(429, 'rate_limit_error'));
    notRetried(answers, 429);
  },

  'a 503 is retried': async () => {
    const release = await occupy(slots);
    const hurry = { headers: { 'X-Remuda-Timeout': '300ms' } };
    await fails(ask({}, hurry), Anthropic.InternalServerError, told(503, 'overloaded_error'));
    const { fetch, answers } = recorder((answer) => answer.status === 503 && release());
    assert.ok(await ask({}, hurry, connect({ maxRetries: 2, fetch })));
    retriedOnce(answers, 503);
  },

  'an error while a stream waits': async () => {
    const release = await occupy(slots);
    await fails(ask({ stream: true }, { headers: { 'X-Remuda-Timeout': '600ms' } }).then(all), Anthropic.APIError, told(undefined, 'overloaded_error'));
    await release();
  },

  'an engine that breaks off': async () => {
    const want = [Anthropic.APIError, told(undefined, 'api_error')];
    return [
      await breaksOff(ask({ model: cuts, stream: true }).then(all), ...want),
      await breaksOff(client.messages.stream({ model: cuts, messages: question, max_tokens: 24 }).finalMessage(), ...want),
    ].join();
  },
});
