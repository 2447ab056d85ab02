/**
 * Node's own queues without a way in (design 3, W-014, W-083).
 *
 * Node's JavaScript shares the tenants' realm: where it stores `list[i]` or `this.x`, a setter of a tenant's on a shared prototype is
 * given the object; where it calls `list.pop()`, a tenant's method is. Whoever holds one of the queues below has his code called at any
 * time later, although the realm is as new again. So they inherit nothing that tenants can change.
 */

import { createRequire } from "node:module";
import { ReflectOwnKeys } from "./intrinsics.mjs";

const require = createRequire(import.meta.url);
const { internalBinding } = require("internal/test/binding");
const { Timeout, Immediate, immediateQueue, timerListMap } = require("internal/timers");
const FixedQueue = require("internal/fixed_queue");
const PriorityQueue = require("internal/priority_queue");
const { clearTimeout, setTimeout } = require("timers");
const { execution_async_resources: resources } = internalBinding("async_wrap");
const { runMicrotasks, tickInfo } = internalBinding("task_queue");
const { immediateInfo } = internalBinding("timers");

/** @param {any} prototype of a class of Node's */
function sever(prototype) {
  Object.setPrototypeOf(prototype, null);
  for (const key of Reflect.ownKeys(prototype)) {
    const method = Object.getOwnPropertyDescriptor(prototype, key)?.value;
    if (typeof method === "function") Object.freeze(method);
  }
  Object.freeze(prototype);
}

/** What lists of Node's inherit instead of Array.prototype. */
const LIST = Object.freeze(
  Object.assign(Object.create(null), { pop: Array.prototype.pop, push: Array.prototype.push, shift: Array.prototype.shift }),
);

/** The list that `use` calls `method` of. @param {"pop"} method @param {() => void} use @returns {any[]} */
function listBehind(method, use) {
  const original = Array.prototype[method];
  /** @type {any} */
  let found;
  Object.defineProperty(Array.prototype, method, {
    value(/** @type {any[]} */ ...args) {
      found ??= this;
      return Reflect.apply(original, this, args);
    },
    writable: true,
    enumerable: false,
    configurable: true,
  });
  use();
  Object.defineProperty(Array.prototype, method, { value: original, writable: true, enumerable: false, configurable: true });
  return found;
}

/** The heap of the timers' queue: where its next element is stored, a setter is told of it. */
function heapOfTimers() {
  /** @type {any} */
  let found;
  const made = [];
  const slots = Array.from({ length: 64 }, (_, slot) => `${slot}`);
  for (const slot of slots) {
    Object.defineProperty(Array.prototype, slot, {
      set(value) {
        if (timerListMap[value?.msecs] === value) found ??= this;
        Object.defineProperty(this, slot, { value, writable: true, enumerable: true, configurable: true });
      },
      configurable: true,
    });
  }
  for (let number = 0; number < slots.length && found === undefined; number++) made.push(setTimeout(() => {}, 1e9 + number));
  for (const slot of slots) Reflect.deleteProperty(Array.prototype, slot);
  for (const timer of made) clearTimeout(timer);
  return found;
}

/** Runs once, before the realm is captured. @throws {Error} when this Node keeps its queues otherwise */
export function severQueues() {
  // The first use of a list makes its class known.
  const timer = setTimeout(() => {}, 1e9);
  const TimersListPrototype = Object.getPrototypeOf(timerListMap[1e9]);
  clearTimeout(timer);
  const heap = heapOfTimers();
  const pool = listBehind("pop", () => new FixedQueue());
  if (!Array.isArray(heap) || !Array.isArray(pool) || !Array.isArray(resources)) throw new Error("this Node keeps its queues otherwise");
  for (const list of [heap, pool, resources]) Object.setPrototypeOf(list, LIST);
  const buffer = Object.getPrototypeOf(new FixedQueue().head);
  const classes = [Timeout, Immediate, PriorityQueue, FixedQueue];
  for (const prototype of [TimersListPrototype, Object.getPrototypeOf(immediateQueue), buffer, ...classes.map((one) => one.prototype)]) {
    sever(prototype);
  }
  for (const one of classes) Object.freeze(one);
  // Its length is asked for by name, and it is native memory: whoever alters it ends the process.
  const { async_ids_stack: ids } = internalBinding("async_wrap");
  Object.defineProperty(ids, "length", { value: ids.length, writable: false, enumerable: false, configurable: false });
}

/**
 * `process` as an emitter calls each listener with `listener.apply(process, …)`: a tenant's `apply` would be given the process. This one
 * calls the host's listeners and nobody else.
 * @param {NodeJS.Process} process @param {Record<string, (value: any) => void>} listeners
 */
export function listenOnly(process, listeners) {
  const known = Object.freeze(Object.assign(Object.create(null), listeners));
  const emit = (/** @type {string} */ name, /** @type {any} */ value) => {
    const listener = known[name];
    if (listener === undefined) return false;
    listener(value);
    return true;
  };
  Object.defineProperty(process, "emit", { value: emit, writable: false, enumerable: false, configurable: false });
}

const HAS_TICK = 0;
const HAS_REJECTION = 1;
const COUNT = 0;

/** Runs what the engine has queued. @returns {boolean} whether Node has nothing of its own left to run */
export function drained() {
  runMicrotasks();
  return tickInfo[HAS_TICK] === 0 && tickInfo[HAS_REJECTION] === 0 && immediateInfo[COUNT] === 0;
}

/** True when no timer waits: a tenant's are dropped before, and the host's own has just fired. */
export function hasNoTimers() {
  const durations = ReflectOwnKeys(timerListMap);
  for (let i = 0; i < durations.length; i++) {
    const list = timerListMap[/** @type {string} */ (durations[i])];
    if (list?._idleNext !== list) return false;
  }
  return true;
}
