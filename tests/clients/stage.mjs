// Routers and their engines, as a suite asks the test for them: one line of JSON each way on standard input and output.
//
// What may be asked for stands in stage.rs; stage.py is the same for Python.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";

export const MODEL = "tiny";
// Milliseconds that anything may take that must happen.
export const PATIENCE_MS = 20_000;

const waiting = [];
createInterface({ input: process.stdin })
  .on("line", (line) => waiting.shift()(JSON.parse(line)))
  .on("close", () => process.exit(waiting.length ? 3 : 0));

// The ends that a request may come to, and their counters.
const ENDS = {
  served: "/served",
  failed: "/failed",
  expired: "/expired",
  cancelled: "/cancelled",
  invalid: "/invalid_requests",
  rejected: "/admission/rejected",
  refused: "/admission/refused",
};

function ask(what, more) {
  return new Promise((resolve) => {
    waiting.push(resolve);
    process.stdout.write(JSON.stringify({ do: what, ...more }) + "\n");
  });
}

// A recorded stream as chunks for a script, or a recorded answer.
export const recorded = (name) => ask("recorded", { name });

// One event of a scripted chat stream, with a token.
export function event(text) {
  const choice = { index: 0, delta: { content: text }, logprobs: null, finish_reason: null, token_ids: [7] };
  const whole = { id: "chatcmpl-1", object: "chat.completion.chunk", created: 1, model: MODEL, choices: [choice] };
  return `data: ${JSON.stringify(whole)}\n\n`;
}

// A router. Its engines are scripted, or simulated with words that tell their order.
export class World {
  static async start({ roles = ["prefill", "decode"], simulated = false, ...serving } = {}) {
    const started = await ask("start", { roles, simulated, serving });
    const world = new World();
    world.number = started.world;
    world.baseURL = started.url + "/v1";
    // Of simulated engines: what they say without a router is the truth.
    world.engineURLs = started.engines.map((url) => url + "/v1");
    return world;
  }

  ask(what, more) {
    return ask(what, { world: this.number, ...more });
  }

  // What engines say from now on.
  script(legs) {
    return this.ask("script", { legs });
  }

  legs(leg) {
    return this.ask("legs", { leg });
  }

  // Waits until so many requests came to this end.
  until(end, least) {
    return this.ask("until", { counter: ENDS[end], least });
  }

  // Waits until the router has closed its last leg of this kind, unfinished.
  untilLeft(leg = "decode") {
    return this.ask("left", { leg });
  }

  // How many requests came to which end, once none is under way.
  async ends() {
    const state = await this.ask("rest");
    const number = (pointer) => pointer.split("/").slice(1).reduce((value, name) => value[name], state);
    return Object.fromEntries(Object.entries(ENDS).map(([name, pointer]) => [name, number(pointer)]));
  }

  // The router counts these ends while `block` runs, and no others.
  async counts(wanted, block) {
    const before = await this.ends();
    await block();
    assert.deepEqual(grew(before, await this.ends()), wanted);
  }
}

// What counts more than before.
export function grew(before, after) {
  const pairs = Object.entries(after).map(([name, value]) => [name, value - before[name]]);
  return Object.fromEntries(pairs.filter(([, value]) => value !== 0));
}

// The promise fails with exactly this kind of error, with these members: the error.
export async function raises(kind, members, asked) {
  const error = await asked.then(
    () => assert.fail(`no ${kind.name}`),
    (error) => error,
  );
  assert.equal(error.constructor, kind, `${error.stack}`);
  for (const [name, value] of Object.entries(members)) {
    assert.deepEqual(error[name], value, `${name} of ${error}`);
  }
  return error;
}

// Runs tests, in order: name and function.
export async function run(tests) {
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
    } catch (error) {
      failed += 1;
      console.error(`${name} failed:`, error);
    }
  }
  await ask("done", { tests: Object.keys(tests).length, failed });
  process.exit(0);
}
