// Scenes are workflows written as data, so that a test says what happens and what must be seen of it. The routes are what a Worker
// does with `subscribe`.
import everyEvent from "./guide/every-event.mjs";
import { filtered } from "./guide/filtered.mjs";
import { resumed } from "./guide/resumed.mjs";

export class Scene {
  constructor(env) {
    this.env = env;
  }

  async run(event, step) {
    const { acts = [], ...rest } = event.params ?? {};
    for (const act of acts) await this.perform(act, event.instanceId, step);
    return rest.silent ? undefined : rest;
  }

  async perform(act, id, step) {
    try {
      if (act.do !== undefined) await step.do(act.do, () => this.effect(act, id), act.policy);
      else if (act.sleep !== undefined) await step.sleep(act.sleep, act.seconds);
      else if (act.wait !== undefined) await step.waitForEvent(act.wait, { type: act.type, timeoutSeconds: act.seconds });
      else if (act.many !== undefined) for (let i = 0; i < act.many; i++) await step.do(`step ${i}`, () => this.pause(act.pause, i));
      else if (act.both !== undefined) await Promise.all(act.both.map((name) => step.do(name, () => this.pause(50, 0))));
      else throw new Error(act.fail);
    } catch (error) {
      if (!act.caught) throw error;
    }
  }

  async pause(milliseconds, i) {
    if (milliseconds > 0) await new Promise((resolve) => setTimeout(resolve, milliseconds));
    return { i };
  }

  async effect(act, id) {
    if (act.hold) await new Promise(() => setTimeout(() => {}, 3_600_000));
    if (act.result === "invalid") return new Date();
    if (act.size) return { text: "x".repeat(act.size) };
    if (act.result === "large") return { text: "x".repeat(1_048_577) };
    if (act.fails > 0 && (await this.attempt(`${id} ${act.do}`)) <= act.fails) throw new RangeError(act.message);
    return act.output;
  }

  /** Which attempt this is. Contexts share nothing, so each attempt leaves an instance behind that the next one runs into. */
  async attempt(key) {
    for (let number = 1; ; number += 1) {
      try {
        await this.env.MY_WORKFLOW.create({ id: `${key} ${number}` });
        return number;
      } catch (error) {
        if (error.name !== "instance_exists") throw error;
      }
    }
  }
}

const json = (value) => Response.json(value);
const nameOf = (promise) => promise.then(() => null, (error) => ({ name: error.name, isError: error instanceof Error }));

/** Everything that `next` gives, one event a line. */
function follow(subscription) {
  const text = new TextEncoder();
  return new Response(
    new ReadableStream({
      async pull(controller) {
        try {
          const result = await subscription.next();
          const record = result.done ? { type: "end", hasValue: result.value !== undefined } : result.value;
          controller.enqueue(text.encode(JSON.stringify(record) + "\n"));
          if (result.done) controller.close();
        } catch (error) {
          controller.enqueue(text.encode(JSON.stringify({ type: "error", name: error.name }) + "\n"));
          controller.close();
        }
      },
      cancel() {
        subscription[Symbol.dispose]();
      },
    }),
  );
}

const options = (url) => {
  const given = url.searchParams.get("options");
  return given === null ? undefined : JSON.parse(given);
};

const bad = {
  null: null,
  array: [],
  text: "1",
  unknownKey: { from: 1 },
  negative: { cursor: -1 },
  fraction: { cursor: 1.5 },
  notANumber: { cursor: NaN },
  infinite: { cursor: Infinity },
  textCursor: { cursor: "1" },
  bigCursor: { cursor: 1n },
  nullCursor: { cursor: null },
  filterText: { filter: "workflow_queued" },
  filterNull: { filter: null },
  filterSet: { filter: new Set(["workflow_queued"]) },
  unknownName: { filter: ["workflow_queued", "workflow_finished"] },
  nameNumber: { filter: [1] },
  hole: { filter: new Array(1) },
};

const routes = {
  "/follow": async (env, id, url) => follow(await (await env.MY_WORKFLOW.get(id)).subscribe(options(url))),
  /** From the object that `create` gave, at once. */
  "/created": async (env, id, url) => {
    const instance = await env.MY_WORKFLOW.create({ id, params: JSON.parse(url.searchParams.get("params")) });
    return follow(await instance.subscribe());
  },
  "/refused": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    const names = {};
    for (const [name, value] of Object.entries(bad)) names[name] = await nameOf(instance.subscribe(value));
    return json(names);
  },
  "/accepted": async (env, id, url) => {
    const instance = await env.MY_WORKFLOW.get(id);
    using one = await instance.subscribe({});
    using two = await instance.subscribe({ cursor: undefined, filter: undefined });
    using three = await instance.subscribe({ filter: ["workflow_queued", "workflow_queued"] });
    using four = await instance.subscribe({ filter: JSON.parse(url.searchParams.get("names")) });
    const first = [];
    for (const subscription of [one, two, three, four]) first.push((await subscription.next()).value.eventId);
    return json({ first, afterTheOnlyMatch: (await three.next()).done });
  },
  /** Many `next` at once: what each gave, and in which order they settled. */
  "/concurrent": async (env, id, url) => {
    using subscription = await (await env.MY_WORKFLOW.get(id)).subscribe();
    const settled = [];
    const calls = Array.from({ length: Number(url.searchParams.get("count")) }, (_, index) =>
      subscription.next().then((result) => {
        settled.push(index);
        return result.done ? null : result.value.eventId;
      }),
    );
    return json({ ids: await Promise.all(calls), settled });
  },
  /** Two pending `next` on a parked instance; dispose answers them, and nobody else. */
  "/disposed": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    const filter = ["workflow_completed"];
    const one = await instance.subscribe({ filter });
    using other = await instance.subscribe({ filter });
    const pending = [one.next(), one.next()];
    const answer = one[Symbol.dispose]();
    one[Symbol.dispose]();
    const ended = await Promise.all([...pending, one.next()]);
    const before = (await instance.status()).status;
    const waiting = other.next();
    await instance.sendEvent({ type: "go" });
    return json({
      callable: typeof one[Symbol.dispose],
      answer: answer === undefined,
      ended: ended.map((result) => [result.done, "value" in result, result.value === undefined]),
      before,
      other: (await waiting).value.type,
    });
  },
  /** `using` ends with its block. */
  "/using": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    let kept;
    {
      using subscription = await instance.subscribe();
      kept = subscription;
      await subscription.next();
    }
    return json({ done: (await kept.next()).done });
  },
  /** Leaves its subscriptions open when it returns, one with a pending `next`. */
  "/left": async (env, id, url) => {
    const instance = await env.MY_WORKFLOW.get(id);
    const count = Number(url.searchParams.get("count"));
    const opened = await Promise.all(Array.from({ length: count }, () => instance.subscribe({ filter: ["workflow_completed"] })));
    opened[0].next();
    instance.subscribe();
    return json({ opened: opened.length });
  },
  /** What one subscriber does to its values is nothing to another (and twice `done` is two objects). */
  "/clones": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    using one = await instance.subscribe({ filter: ["workflow_started", "workflow_completed"] });
    using two = await instance.subscribe({ filter: ["workflow_started", "workflow_completed"] });
    const first = (await one.next()).value;
    first.params.nested.text = "changed";
    const last = (await one.next()).value;
    last.output.nested.text = "changed";
    const others = [(await two.next()).value.params, (await two.next()).value.output];
    const ends = [await one.next(), await one.next()];
    return json({
      others,
      plain: Object.getPrototypeOf(first.params) === Object.prototype,
      ends: ends.map((end) => [Object.keys(end).sort().join(), end.done]),
      fresh: ends[0] !== ends[1],
    });
  },
  /** Asks until it is refused, and then goes on from where it was with a new subscription. */
  "/outage": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    let cursor = 0;
    const seen = [];
    const errors = [];
    for (;;) {
      try {
        using subscription = await instance.subscribe({ cursor });
        for (;;) {
          const result = await subscription.next();
          if (result.done) return json({ seen, errors });
          seen.push(result.value.eventId);
          cursor = result.value.eventId;
        }
      } catch (error) {
        errors.push(error.name);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  },
  /** Holds the handle over what a test does meanwhile to the instance. */
  "/stale": async (env, id) => {
    const instance = await env.MY_WORKFLOW.get(id);
    const open = await instance.subscribe({ cursor: 1 });
    for (;;) {
      const refused = await nameOf(instance.subscribe());
      if (refused !== null) return json({ refused, open: (await open.next()).done });
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  },
  "/guide/filtered": async (env) => {
    const lines = [];
    const note = (...words) => lines.push(words);
    await filtered(env, { log: note, error: note });
    return json({ lines });
  },
  "/guide/resumed": async (env, id, url) => {
    const processed = [];
    let saved = null;
    await resumed(
      await env.MY_WORKFLOW.get(id),
      Number(url.searchParams.get("after")),
      async (event) => processed.push([event.eventId, event.type]),
      async (eventId) => { saved = eventId; },
    ); // prettier-ignore
    return json({ processed, saved });
  },
  "/guide/every-event": (env, _id, _url, request) => everyEvent.fetch(request, env),
};

export default {
  async fetch(request, env) {
    const url = new URL(request.url);
    const route = routes[url.pathname];
    return route ? route(env, url.searchParams.get("id"), url, request) : new Response("not here", { status: 404 });
  },
};
