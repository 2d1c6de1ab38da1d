// The official OpenAI SDK for Node.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { MODEL, PATIENCE_MS, World, event, grew, raises, recorded, run } from "./stage.mjs";

const SIMULATED = await World.start({ simulated: true });
const PAIR = await World.start();

const USER = [{ role: "user", content: "Say it." }];
const HANG = { hang: true };
const TOOLS = ["get_weather", "get_time"].map((name) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties: { city: { type: "string" } } } },
}));

function client(world, options) {
  return new OpenAI({ baseURL: world.baseURL, apiKey: "any", maxRetries: 0, timeout: PATIENCE_MS, ...options });
}

function engine() {
  return client({ baseURL: SIMULATED.engineURLs[0] });
}

function chat(sdk, more) {
  return sdk.chat.completions.create({ model: MODEL, messages: USER, max_tokens: 40, ...more });
}

function text(sdk, more) {
  return sdk.completions.create({ model: MODEL, prompt: "Say it.", max_tokens: 40, ...more });
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) {
    chunks.push(chunk);
  }
  return chunks;
}

// What a stream of chat says, its finish reason and its usage.
function said(chunks) {
  let [words, finish, usage] = ["", null, null];
  for (const chunk of chunks) {
    usage = chunk.usage ?? usage;
    for (const choice of chunk.choices) {
      assert.equal(finish, null, "a choice goes on behind its end");
      words += choice.delta.content ?? "";
      finish = choice.finish_reason;
    }
  }
  return { words, finish, usage };
}

function counted({ prompt_tokens, completion_tokens, total_tokens }) {
  return { prompt_tokens, completion_tokens, total_tokens };
}

const calls = (message) => (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]);

await run({
  async models() {
    const models = await all(client(SIMULATED).models.list());
    assert.deepEqual(models.map((model) => model.id), [MODEL]);
  },

  async "chat is what the engine says"() {
    const truth = await chat(engine());
    const { content } = truth.choices[0].message;
    assert.ok(content.length > 40);
    await SIMULATED.counts({ served: 3 }, async () => {
      const whole = await chat(client(SIMULATED));
      assert.ok(whole._request_id);
      assert.equal(whole.choices[0].message.content, content);
      assert.equal(whole.choices[0].finish_reason, "length");
      assert.deepEqual(counted(whole.usage), counted(truth.usage));
      const asked = { stream: true, stream_options: { include_usage: true } };
      const got = said(await all(await chat(client(SIMULATED), asked)));
      assert.deepEqual([got.words, got.finish], [content, "length"]);
      assert.deepEqual(counted(got.usage), counted(truth.usage));
      const bare = said(await all(await chat(client(SIMULATED), { stream: true })));
      assert.deepEqual(bare, { words: content, finish: "length", usage: null });
    });
  },

  async "completions are what the engine says"() {
    const truth = await text(engine());
    await SIMULATED.counts({ served: 2 }, async () => {
      const whole = await text(client(SIMULATED));
      assert.equal(whole.choices[0].text, truth.choices[0].text);
      assert.deepEqual(counted(whole.usage), counted(truth.usage));
      const chunks = await all(await text(client(SIMULATED), { stream: true }));
      assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), truth.choices[0].text);
      assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
    });
  },

  async "a hundred streams at once are each complete and in order"() {
    const prompts = Array.from({ length: 100 }, (_, n) => [{ role: "user", content: `Say number ${n}.` }]);
    const direct = engine();
    const truths = [];
    for (const messages of prompts) {
      truths.push((await chat(direct, { messages })).choices[0].message.content);
    }
    assert.equal(new Set(truths).size, 100);
    const sdk = client(SIMULATED);
    await SIMULATED.counts({ served: 100 }, async () => {
      const asked = prompts.map(async (messages) => said(await all(await chat(sdk, { messages, stream: true }))));
      const want = truths.map((words) => ({ words, finish: "length", usage: null }));
      assert.deepEqual(await Promise.all(asked), want);
    });
  },

  async "tool calls are merged"() {
    const rows = [
      ["chat_stream_tools_auto_call", "chat_tools_auto_call"],
      ["chat_stream_tools_auto_two_calls", "chat_tools_auto_two_calls"],
      ["chat_stream_tools_auto_text_and_call", "chat_tools_auto_text_and_call"],
      ["chat_stream_tools_named", "chat_tools_named"],
      ["chat_stream_tools_required", "chat_tools_required"],
    ];
    for (const [stream, answer] of rows) {
      const want = (await recorded(answer)).choices[0];
      await PAIR.script({ decode: { chunks: await recorded(stream) } });
      await PAIR.counts({ served: 2 }, async () => {
        const events = client(PAIR).chat.completions.stream({ model: MODEL, messages: USER, tools: TOOLS });
        const merged = (await events.finalChatCompletion()).choices[0];
        const whole = (await chat(client(PAIR), { tools: TOOLS })).choices[0];
        assert.ok(calls(want.message).length > 0, stream);
        assert.deepEqual(calls(merged.message), calls(want.message), stream);
        assert.deepEqual(calls(whole.message), calls(want.message), stream);
        // Where there is none, the SDK says null and the engine's stream "".
        assert.equal(whole.message.content || null, merged.message.content || null, stream);
        assert.equal(whole.finish_reason, want.finish_reason, stream);
        assert.equal(merged.finish_reason, want.finish_reason, stream);
      });
      for (const leg of await PAIR.legs("decode")) {
        assert.deepEqual(leg.body.tools, TOOLS, stream);
      }
    }
  },

  async logprobs() {
    await PAIR.script({ decode: { chunks: await recorded("chat_stream_logprobs") } });
    await PAIR.counts({ served: 2 }, async () => {
      const asked = { logprobs: true, top_logprobs: 2 };
      const whole = (await chat(client(PAIR), asked)).choices[0].logprobs.content;
      const chunks = await all(await chat(client(PAIR), { ...asked, stream: true }));
      const tokens = chunks.flatMap((chunk) => chunk.choices[0]?.logprobs?.content ?? []);
      assert.ok(tokens.length > 5);
      assert.deepEqual(whole, tokens);
    });
    await PAIR.script({ decode: { chunks: await recorded("completion_stream_logprobs") } });
    await PAIR.counts({ served: 2 }, async () => {
      const whole = (await text(client(PAIR), { logprobs: 2 })).choices[0].logprobs;
      const chunks = await all(await text(client(PAIR), { logprobs: 2, stream: true }));
      for (const name of ["tokens", "token_logprobs", "text_offset", "top_logprobs"]) {
        const joined = chunks.flatMap((chunk) => chunk.choices[0].logprobs[name]);
        assert.ok(joined.length > 3);
        assert.deepEqual(whole[name], joined, name);
      }
    });
  },

  async "faults of the request"() {
    const sdk = client(PAIR);
    await PAIR.script({});
    await PAIR.counts({ invalid: 4 }, async () => {
      const unknown = { status: 404, code: "model_not_found" };
      await raises(OpenAI.NotFoundError, unknown, chat(sdk, { model: "another" }));
      const invalid = { status: 400, type: "invalid_request_error" };
      for (const stream of [false, true]) {
        await raises(OpenAI.BadRequestError, invalid, chat(sdk, { n: 2, stream }));
      }
      await raises(OpenAI.BadRequestError, { status: 400, param: "max_tokens" }, chat(sdk, { max_tokens: "many" }));
    });
    assert.deepEqual(await PAIR.legs("prefill"), []);
    // What the engine refuses itself, in its own words.
    const refusal = { message: "the temperature is not for me", type: "BadRequestError", param: null, code: 400 };
    await PAIR.script({ prefill: { status: 400, body: { error: refusal } } });
    const error = await raises(OpenAI.BadRequestError, { status: 400 }, chat(sdk, { temperature: 9, stream: true }));
    assert.equal(error.error.message, refusal.message);
  },

  async "faults of the fleet"() {
    const once = await World.start({ max_attempts: 1 });
    for (const stream of [false, true]) {
      for (const leg of ["prefill", "decode"]) {
        for (const [status, answer] of [[500, 502], [504, 504]]) {
          await once.script({ [leg]: { status, body: "secret" } });
          await once.counts({ failed: 1 }, async () => {
            const failed = { status: answer, type: leg, code: leg };
            await raises(OpenAI.InternalServerError, failed, chat(client(once), { stream }));
          });
        }
      }
    }
    const headless = await World.start({ roles: ["prefill"] });
    const unavailable = { status: 503, code: "backend_unavailable" };
    const error = await raises(OpenAI.InternalServerError, unavailable, chat(client(headless)));
    assert.equal(error.headers.get("retry-after"), "1");
  },

  async "an error after output is raised from the stream"() {
    for (const end of [{ reset: true }, { close: true }, 'data: {"error":{"message":"secret","code":500}}\n\n']) {
      await PAIR.script({ decode: { chunks: [event("a"), event("b"), end] } });
      const words = [];
      const read = async () => {
        for await (const chunk of await chat(client(PAIR), { stream: true })) {
          words.push(chunk.choices[0].delta.content);
        }
      };
      await PAIR.counts({ failed: 1 }, async () => {
        await raises(OpenAI.APIError, { type: "decode", code: "failed" }, read());
      });
      assert.deepEqual(words, ["a", "b"]);
    }
  },

  async "a full router is a rate limit"() {
    const world = await World.start({ max_connections: 1 });
    await world.script({ decode: { chunks: [event("a"), HANG] } });
    await world.counts({ rejected: 2, cancelled: 1 }, async () => {
      const holder = await chat(client(world), { stream: true });
      for (const stream of [false, true]) {
        const full = { status: 429, type: "server_overloaded_error" };
        const error = await raises(OpenAI.RateLimitError, full, chat(client(world), { stream }));
        assert.equal(error.headers.get("retry-after"), "1");
      }
      holder.controller.abort();
      await world.untilLeft();
    });
  },

  async "retry-after is waited for"() {
    const world = await World.start({ max_connections: 1 });
    for (const stream of [false, true]) {
      await world.script({ decode: [{ chunks: [event("a"), HANG] }, { default: true }] });
      const before = await world.ends();
      const holder = await chat(client(world), { stream: true });
      const started = performance.now();
      const asked = chat(client(world, { maxRetries: 5 }), { stream });
      await world.until("rejected", before.rejected + 1);
      holder.controller.abort();
      const answer = await asked;
      const words = stream ? said(await all(answer)).words : answer.choices[0].message.content;
      const took = performance.now() - started;
      assert.equal(words, " w7".repeat(40));
      const { rejected, ...others } = grew(before, await world.ends());
      assert.deepEqual(others, { served: 1, cancelled: 1 });
      // Each refusal is a request of its own, and costs a second at least.
      assert.ok(rejected >= 1 && took >= rejected * 999, `${took} ms for ${rejected}`);
    }
  },

  async "leaving a stream closes its leg"() {
    await PAIR.script({ decode: { chunks: [event("a"), event("b"), HANG] } });
    await PAIR.counts({ cancelled: 1 }, async () => {
      for await (const chunk of await chat(client(PAIR), { stream: true })) {
        assert.equal(chunk.choices[0].delta.content, "a");
        break;
      }
      await PAIR.untilLeft();
    });
    await PAIR.counts({ cancelled: 1 }, async () => {
      const stream = await chat(client(PAIR), { stream: true });
      stream.controller.abort();
      await PAIR.untilLeft();
    });
  },

  async "a client that waits no longer closes its leg"() {
    for (const leg of ["prefill", "decode"]) {
      await PAIR.script({ [leg]: { raw: [HANG] } });
      await PAIR.counts({ cancelled: 1 }, async () => {
        await raises(OpenAI.APIConnectionTimeoutError, {}, chat(client(PAIR, { timeout: 500 })));
        await PAIR.untilLeft(leg);
      });
    }
  },
});
