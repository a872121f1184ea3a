// The library openai: every case that this prints is required by clients_test.go.
import assert from 'node:assert/strict';
import OpenAI, { toFile } from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  all, breaksOff, engineIsFree, essay, fails, given, inFlight, notRetried, occupy, post, question, recorder, retriedOnce, run, slots, wav, writeEssay,
} from './cases.mjs';

const { model, cuts, idle } = given;
const connect = (more = {}) => new OpenAI({ baseURL: `${given.gateway}/v1`, apiKey: given.key, maxRetries: 0, ...more });
const client = connect();
const chat = (more = {}, options = {}, c = client) => c.chat.completions.create({ model, messages: question, max_tokens: 24, ...more }, options);
const respond = (more = {}, options = {}, c = client) => c.responses.create({ model, input: 'What is a remuda?', max_output_tokens: 24, ...more }, options);
const endless = { max_tokens: 8000, ignore_eos: true };
const endlessly = { input: writeEssay, max_output_tokens: 8000, tools: [{ type: 'function', ...essay }] };

const weather = {
  name: 'get_weather',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
};
const City = z.object({ city: z.string(), people: z.number().int(), old: z.boolean() });
const textOf = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? '').join('');

const cases = {
  models: async () => {
    const names = (await all(client.models.list())).map((m) => m.id);
    assert.ok(names.includes(model), names.join());
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  'chat streamed': async () => {
    const whole = await chat();
    const chunks = await all(await chat({ stream: true }));
    assert.equal(textOf(chunks), whole.choices[0].message.content);
    assert.ok(chunks.length > 3, `${chunks.length} chunks`);
    assert.equal(chunks.at(-1).choices[0].finish_reason, whole.choices[0].finish_reason);
    const final = await client.chat.completions.stream({ model, messages: question, max_tokens: 24 }).finalContent();
    assert.equal(final, whole.choices[0].message.content);
  },

  'usage only where asked': async () => {
    const without = await all(await chat({ stream: true }));
    assert.ok(without.every((c) => !c.usage && c.choices.length === 1), JSON.stringify(without));
    const asked = await all(await chat({ stream: true, stream_options: { include_usage: true } }));
    assert.deepEqual(asked.at(-1).choices, []);
    assert.deepEqual(asked.at(-1).usage, (await chat()).usage);
  },

  completions: async () => {
    const body = { model, prompt: 'Once', max_tokens: 12 };
    const whole = await client.completions.create(body);
    const chunks = await all(await client.completions.create({ ...body, stream: true }));
    assert.equal(chunks.map((c) => c.choices[0].text).join(''), whole.choices[0].text);
  },

  'chat tools': async () => {
    const tools = [{ type: 'function', function: weather }];
    const messages = [{ role: 'user', content: 'Use get_weather' }];
    const { message, finish_reason: finish } = (await chat({ messages, tools, max_tokens: 200 })).choices[0];
    assert.equal(finish, 'tool_calls');
    const [call] = message.tool_calls;
    assert.equal(call.function.name, 'get_weather');
    assert.equal(typeof JSON.parse(call.function.arguments).city, 'string');
    const streamed = await client.chat.completions.stream({ model, messages, tools, max_tokens: 200 }).finalMessage();
    assert.equal(streamed.tool_calls[0].function.name, 'get_weather');
    assert.equal(streamed.tool_calls[0].function.arguments, call.function.arguments);
    const answered = [...messages, message, { role: 'tool', tool_call_id: call.id, content: 'sunny' }];
    const answer = (await chat({ messages: answered, tools })).choices[0].message.content;
    assert.ok(answer);
    assert.equal(textOf(await all(await chat({ messages: answered, tools, stream: true }))), answer);
    const runner = client.chat.completions.runTools({
      model, messages, max_tokens: 200, tools: [{ type: 'function', function: { ...weather, parse: JSON.parse, function: ({ city }) => `sunny in ${city}` } }],
    });
    assert.ok(await runner.finalContent());
  },

  'chat JSON schema': async () => {
    const body = { model, messages: question, max_tokens: 400, response_format: zodResponseFormat(City, 'city') };
    const { parsed } = (await client.chat.completions.parse(body)).choices[0].message;
    City.parse(parsed);
    const streamed = await client.chat.completions.stream(body).finalChatCompletion();
    assert.deepEqual(streamed.choices[0].message.parsed, parsed);
  },

  embeddings: async () => {
    const { data, usage } = await client.embeddings.create({ model, input: ['one', 'two'] }); // as base64
    const plain = await client.embeddings.create({ model, input: ['one', 'two'], encoding_format: 'float' });
    assert.equal(data.length, 2);
    assert.ok(data[0].embedding.length > 1 && data[0].embedding.every((v, i) => Math.abs(v - plain.data[0].embedding[i]) < 1e-6));
    assert.ok(usage.prompt_tokens > 0);
  },

  'responses streamed': async () => {
    const whole = await respond();
    const events = await all(await respond({ stream: true }));
    assert.equal(events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta).join(''), whole.output_text);
    const last = events.at(-1);
    assert.ok(['response.completed', 'response.incomplete'].includes(last.type), last.type);
    assert.deepEqual(last.response.usage, whole.usage);
    assert.equal((await client.responses.stream({ model, input: 'What is a remuda?', max_output_tokens: 24 }).finalResponse()).output_text, whole.output_text);
  },

  'responses go on': async () => {
    const first = await respond();
    assert.ok((await respond({ input: 'And then?', previous_response_id: first.id })).output_text);
  },

  'responses tools': async () => {
    const tools = [{ type: 'function', strict: true, ...weather }];
    const body = { input: 'Use get_weather', tools, max_output_tokens: 200 };
    const whole = await respond(body);
    const call = whole.output.find((o) => o.type === 'function_call');
    assert.equal(call.name, 'get_weather');
    const streamed = await client.responses.stream({ model, ...body }).finalResponse();
    assert.equal(streamed.output.find((o) => o.type === 'function_call').arguments, call.arguments);
    const output = { type: 'function_call_output', call_id: call.call_id, output: 'sunny' };
    assert.ok((await respond({ input: [{ role: 'user', content: 'Use get_weather' }, call, output], tools })).output_text);
  },

  'responses JSON schema': async () => {
    const parsed = await client.responses.parse({ model, input: 'Which city?', max_output_tokens: 400, text: { format: zodTextFormat(City, 'city') } });
    City.parse(parsed.output_parsed);
  },

  transcriptions: async () => {
    const file = await toFile(wav(), 'silence.wav');
    const { text } = await client.audio.transcriptions.create({ model, file });
    assert.ok(text);
    const events = await all(await client.audio.transcriptions.create({ model, file, stream: true }));
    assert.equal(events.at(-1).type, 'transcript.text.done');
    assert.equal(events.at(-1).text, text);
  },

  speech: async () => {
    const input = { model, input: 'Ride on.', voice: 'alloy', response_format: 'wav' };
    const sound = Buffer.from(await (await client.audio.speech.create(input)).arrayBuffer());
    assert.equal(sound.subarray(0, 4).toString(), 'RIFF');
    assert.equal(sound.readUInt32LE(4), sound.length - 8);
  },

  images: async () => {
    const { data } = await client.images.generate({ model, prompt: 'a horse', size: '64x64', n: 2 });
    assert.equal(data.length, 2);
    for (const { b64_json } of data) assert.equal(Buffer.from(b64_json, 'base64').subarray(1, 4).toString(), 'PNG');
  },

  moderations: async () => {
    const { results } = await client.moderations.create({ model, input: ['a horse', 'much violence'] });
    assert.deepEqual(results.map((r) => r.flagged), [false, true]);
  },

  'a route that the engine has not': async () => {
    await fails(client.images.generate({ model: cuts, prompt: 'a horse' }), OpenAI.NotFoundError, { status: 404, code: 'route_not_supported' });
  },

  rerank: async () => {
    const { results } = await post('/v1/rerank', { model, query: 'horse', documents: ['a horse', 'a fish', 'a cow'], top_n: 2 });
    assert.equal(results.length, 2);
    assert.ok(results[0].relevance_score >= results[1].relevance_score);
  },

  'an aborted stream frees the engine': async () => {
    const stream = await chat({ ...endless, stream: true });
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    await engineIsFree();
    const leave = new AbortController(); // after which the stream ends without an error
    for await (const chunk of await chat({ ...endless, stream: true }, { signal: leave.signal })) if (chunk.choices[0].delta.content) leave.abort();
    await engineIsFree();
  },

  'an aborted request frees the engine': async () => {
    for (const ask of [
      (signal) => chat(endless, { signal }),
      (signal) => respond(endlessly, { signal }),
    ]) {
      const leave = new AbortController();
      const answer = fails(ask(leave.signal), OpenAI.APIUserAbortError);
      await inFlight(1);
      leave.abort();
      await answer;
      await engineIsFree();
    }
  },

  'its own time-out': async () => {
    await fails(chat(endless, { timeout: 200 }), OpenAI.APIConnectionTimeoutError);
    await engineIsFree();
  },

  'a wrong key': async () => {
    const stranger = connect({ apiKey: 'sk-wrong' });
    await fails(chat({}, {}, stranger), OpenAI.AuthenticationError, { status: 401, code: 'invalid_api_key' });
    await fails(chat({ stream: true }, {}, stranger), OpenAI.AuthenticationError, { status: 401 });
    await fails(respond({}, {}, stranger), OpenAI.AuthenticationError, { status: 401 });
    await fails(all(stranger.models.list()), OpenAI.AuthenticationError, { status: 401 });
  },

  'an unknown model': async () => {
    const want = { status: 404, code: 'model_not_found', param: 'model' };
    await fails(chat({ model: 'nope' }), OpenAI.NotFoundError, want);
    await fails(respond({ model: 'nope', stream: true }), OpenAI.NotFoundError, want);
    await fails(client.embeddings.create({ model: 'nope', input: 'x' }), OpenAI.NotFoundError, want);
    await fails(client.models.retrieve('nope'), OpenAI.NotFoundError, want);
  },

  'a bad request': async () => {
    await fails(chat({ max_tokens: -1 }), OpenAI.BadRequestError, { status: 400 });
    await fails(chat({ messages: 'none', stream: true }), OpenAI.BadRequestError, { status: 400 });
    await fails(respond({ max_output_tokens: 0 }), OpenAI.BadRequestError, { status: 400 });
    await fails(client.embeddings.create({ model }), OpenAI.BadRequestError, { status: 400 });
  },

  'a model that the key may not call': async () => {
    const narrow = connect({ apiKey: given.narrow });
    const want = { status: 403, code: 'model_not_allowed' };
    await fails(chat({ model: idle }, {}, narrow), OpenAI.PermissionDeniedError, want);
    await fails(respond({ model: idle }, {}, narrow), OpenAI.PermissionDeniedError, want);
    assert.ok(await chat({}, {}, narrow));
  },

  'a 429 is retried': async () => {
    let release = await occupy(1, given.limited);
    await fails(chat({}, {}, connect({ apiKey: given.limited })), OpenAI.RateLimitError, { status: 429, code: 'rate_limit_exceeded' });
    const { fetch, answers } = recorder(() => release());
    assert.ok(await chat({}, {}, connect({ apiKey: given.limited, maxRetries: 2, fetch })));
    retriedOnce(answers, 429);
  },

  'a 429 that is final': async () => {
    const { fetch, answers } = recorder();
    await fails(chat({}, {}, connect({ apiKey: given.spent, maxRetries: 2, fetch })), OpenAI.RateLimitError, { status: 429, code: 'insufficient_quota' });
    notRetried(answers, 429);
  },

  'a 503 is retried': async () => {
    const release = await occupy(slots);
    const hurry = { headers: { 'X-Remuda-Timeout': '300ms' } };
    await fails(chat({}, hurry), OpenAI.InternalServerError, { status: 503, code: 'queue_timeout' });
    const { fetch, answers } = recorder((answer) => answer.status === 503 && release());
    assert.ok(await respond({}, hurry, connect({ maxRetries: 2, fetch })));
    retriedOnce(answers, 503);
  },

  'an error while a stream waits': async () => {
    const release = await occupy(slots);
    const hurry = { headers: { 'X-Remuda-Timeout': '600ms' } };
    await fails(chat({ stream: true }, hurry).then(all), OpenAI.APIError, { code: 'queue_timeout', status: undefined });
    await fails(respond({ stream: true }, hurry).then(all), OpenAI.APIError, { code: 'queue_timeout', status: undefined });
    await release();
  },

  'an engine that breaks off': async () => {
    const want = [OpenAI.APIError, { code: 'engine_cut_off' }];
    return [
      await breaksOff(chat({ model: cuts, stream: true }).then(all), ...want),
      await breaksOff(client.completions.create({ model: cuts, prompt: 'Once', max_tokens: 24, stream: true }).then(all), ...want),
      await breaksOff(respond({ model: cuts, stream: true }).then(all), ...want),
      await breaksOff(client.chat.completions.stream({ model: cuts, messages: question, max_tokens: 24 }).finalContent(), ...want),
      await breaksOff(client.responses.stream({ model: cuts, input: 'Hello' }).finalResponse(), ...want),
    ].join();
  },

  'responses that are stored': async () => {
    const first = await respond();
    assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
    await client.responses.delete(first.id);
    await fails(client.responses.retrieve(first.id), OpenAI.NotFoundError, { status: 404 });
    await fails(client.responses.retrieve('resp_nope'), OpenAI.NotFoundError, { status: 404 });

    const background = await respond({ ...endlessly, background: true });
    assert.ok(['queued', 'in_progress'].includes(background.status), background.status);
    assert.equal((await client.responses.cancel(background.id)).status, 'cancelled');
    assert.equal((await client.responses.retrieve(background.id)).status, 'cancelled');
    await engineIsFree();
  },
};

await run(cases);
