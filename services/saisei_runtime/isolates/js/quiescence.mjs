/**
 * What could still run code of a context (design 3): timers are ours and can be dropped; native asynchronous work is counted; what
 * cannot be counted taints the thread, which is then joined instead of reused.
 */

import timers from "node:timers";
import {
  MapClear,
  MapDelete,
  MapForEach,
  MapGet,
  MapSet,
  PromiseThen,
  ReflectApply,
  ReflectConstruct,
  SafeMap,
  SafePromise,
  SafeTypeError,
  getterOf,
  uncurryThis,
} from "./intrinsics.mjs";
import { needMuchStack, needStack } from "./stack.mjs";

const { setTimeout, setInterval, setImmediate, clearTimeout } = timers;

/** The host's own timer and macrotask functions: tenants only ever get the wrapped ones. */
export const hostTimers = { setTimeout, setImmediate, clearTimeout };

const LONGEST_DELAY = 2_147_483_647;

class Activity {
  /** Why this thread can never be proven quiescent again, or "". */
  tainted = "";
  /** Native operations whose Promise has not settled. */
  pending = 0;
  /** @type {Map<number, any>} */
  timers = new SafeMap();
  nextTimer = 1;
  /** Told about errors of callbacks, and of what kind these are. @type {(error: unknown, where: string) => void} */
  onUncaught = () => {};
}

export const activity = new Activity();

const settled = SafePromise.resolve();

export function taint(/** @type {string} */ why) {
  if (activity.tainted === "") activity.tainted = why;
}

/** Drops every timer: none of them can fire any more. */
export function dropTimers() {
  MapForEach(activity.timers, (/** @type {any} */ timer) => clearTimeout(timer));
  MapClear(activity.timers);
}

/** Forgets what was done while the realm was made ready. */
export function settle() {
  dropTimers();
  activity.tainted = "";
}

/** A function of the same name and length that runs `body` with the caller's `this` and arguments. */
function named(/** @type {Function} */ original, /** @type {(self: any, args: any[]) => any} */ body) {
  const wrapper = {
    method(/** @type {any[]} */ ...args) {
      needStack();
      return body(this, args);
    },
  }.method;
  Object.defineProperty(wrapper, "name", { value: original.name, configurable: true });
  Object.defineProperty(wrapper, "length", { value: original.length, configurable: true });
  return wrapper;
}

function replace(/** @type {any} */ owner, /** @type {PropertyKey} */ key, /** @type {any} */ body) {
  const found = Object.getOwnPropertyDescriptor(owner, key);
  if (found === undefined || typeof found.value !== "function") return;
  const original = found.value;
  Object.defineProperty(owner, key, { ...found, value: named(original, (self, args) => body(original, self, args)) });
}

/** Counts the Promise that the method returns. */
const counted = (/** @type {Function} */ original, /** @type {any} */ self, /** @type {any[]} */ args) => {
  const done = () => {
    activity.pending--;
  };
  activity.pending++;
  let promise;
  try {
    promise = ReflectApply(original, self, args);
  } catch (error) {
    done();
    throw error;
  }
  PromiseThen(promise, done, done);
  return promise;
};

const tainting =
  (/** @type {string} */ why) => (/** @type {Function} */ original, /** @type {any} */ self, /** @type {any[]} */ args) => {
    taint(why);
    return ReflectApply(original, self, args);
  };

/** A constructor that taints when used and is otherwise the same class. */
function taintingClass(/** @type {string} */ name) {
  const original = /** @type {any} */ (globalThis)[name];
  if (typeof original !== "function") return;
  const wrapper = new Proxy(original, {
    construct(target, args, newTarget) {
      needMuchStack();
      taint(name);
      return ReflectConstruct(target, args, newTarget);
    },
  });
  Object.defineProperty(original.prototype, "constructor", { value: wrapper, writable: true, configurable: true });
  Object.defineProperty(globalThis, name, { value: wrapper, writable: true, configurable: true });
}

function timerFunctions() {
  const start =
    (/** @type {boolean} */ repeat) =>
    (/** @type {any} */ callback, /** @type {any} */ delay, /** @type {any[]} */ ...args) => {
      if (typeof callback !== "function") throw new SafeTypeError("a timer needs a function");
      const id = activity.nextTimer++;
      let wait = +delay;
      if (!(wait >= 1)) wait = 1;
      if (wait > LONGEST_DELAY) wait = LONGEST_DELAY;
      const fire = () => {
        if (!repeat) MapDelete(activity.timers, id);
        try {
          ReflectApply(callback, undefined, args);
        } catch (error) {
          activity.onUncaught(error, "a timer");
        }
      };
      MapSet(activity.timers, id, (repeat ? setInterval : setTimeout)(fire, wait));
      return id;
    };
  const stop = (/** @type {any} */ id) => {
    const timer = MapGet(activity.timers, id);
    if (timer === undefined) return;
    clearTimeout(timer);
    MapDelete(activity.timers, id);
  };
  const define = (/** @type {string} */ name, /** @type {Function} */ fn, /** @type {number} */ length) => {
    const shown = named(fn, (_self, args) => ReflectApply(fn, undefined, args));
    Object.defineProperty(shown, "name", { value: name, configurable: true });
    Object.defineProperty(shown, "length", { value: length, configurable: true });
    Object.defineProperty(globalThis, name, { value: shown, writable: true, enumerable: false, configurable: true });
    return shown;
  };
  const timeout = define("setTimeout", start(false), 1);
  define("setInterval", start(true), 1);
  define("clearTimeout", stop, 0);
  define("clearInterval", stop, 0);
  return timeout;
}

/** Wraps each entry point of asynchronous native work. Runs once, before the realm is captured as pristine. */
export function install() {
  const setTenantTimeout = timerFunctions();

  const abort = uncurryThis(AbortController.prototype.abort);
  const signalOf = getterOf(AbortController.prototype, "signal");
  const Controller = AbortController;
  const Exception = DOMException;
  replace(AbortSignal, "timeout", (/** @type {any} */ _original, /** @type {any} */ _self, /** @type {any[]} */ args) => {
    const delay = +args[0];
    if (!(delay >= 0)) throw new SafeTypeError("AbortSignal.timeout needs a number of milliseconds");
    const controller = new Controller();
    setTenantTimeout(() => abort(controller, new Exception("The operation was aborted due to timeout", "TimeoutError")), delay);
    return signalOf(controller);
  });

  for (const key of Reflect.ownKeys(SubtleCrypto.prototype)) {
    if (key !== "constructor") replace(SubtleCrypto.prototype, key, counted);
  }
  for (const key of ["compile", "instantiate"]) replace(WebAssembly, key, counted);
  for (const key of ["compileStreaming", "instantiateStreaming"]) replace(WebAssembly, key, tainting(key));
  replace(Atomics, "waitAsync", tainting("Atomics.waitAsync"));
  // Node's hooks run while these make something; an error in a hook would end the thread.
  for (const key of ["getRandomValues", "randomUUID"]) replace(Crypto.prototype, key, ReflectApply);
  // Node's own makes a resource for each; this is the engine's queue itself.
  replace(globalThis, "queueMicrotask", (/** @type {any} */ _original, /** @type {any} */ _self, /** @type {any[]} */ args) => {
    const callback = args[0];
    if (typeof callback !== "function") throw new SafeTypeError("queueMicrotask needs a function");
    const run = () => {
      try {
        ReflectApply(callback, undefined, []);
      } catch (error) {
        taint("an uncaught error");
        activity.onUncaught(error, "a microtask");
      }
    };
    PromiseThen(settled, run);
  });
  taintingClass("FinalizationRegistry");
  taintingClass("CompressionStream");
  taintingClass("DecompressionStream");
}
