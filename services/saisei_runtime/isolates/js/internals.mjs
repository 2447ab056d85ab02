/**
 * What Node's Web API would let out of Node (design 3): members under symbols of its own, handles, ports, weak listeners.
 *
 * Each of them is a way to have code called later that nobody counts (W-014). A symbol cannot be kept secret — a Proxy that Node looks
 * something up on is told it — so what is behind it is taken away, replaced, or costs the thread.
 */

import { createHook } from "node:async_hooks";
import { MessagePort } from "node:worker_threads";
import {
  ReflectApply,
  StringEndsWith,
  getterOf,
  uncurryThis,
} from "./intrinsics.mjs";
import { activity, taint } from "./quiescence.mjs";
import { needStack } from "./stack.mjs";

/** The key of `owner` that is a symbol of that description. */
function symbolOf(/** @type {object} */ owner, /** @type {string} */ description) {
  return Object.getOwnPropertySymbols(owner).find((key) => key.description === description);
}

/** Members that Node needs only where tenants must not come: transfer to other threads, inspection, composite signals. */
const TAKEN = [
  "messaging_transfer_symbol", "messaging_transfer_list_symbol", "kRemoveWeakListenerHelper", "kMakeTransferable",
  "nodejs.util.inspect.custom",
]; // prettier-ignore

function takeMembers() {
  for (const name of Object.getOwnPropertyNames(globalThis)) {
    const found = Object.getOwnPropertyDescriptor(globalThis, name);
    if (found === undefined || typeof found.value !== "function" || !/^[A-Z]/.test(name)) continue;
    const { prototype } = found.value;
    for (const owner of [found.value, prototype]) {
      if (owner === undefined) continue;
      for (const description of TAKEN) {
        const key = symbolOf(owner, description);
        if (key !== undefined) Reflect.deleteProperty(owner, key);
      }
    }
    // Streams and signals come out of a port; Blobs and exceptions are only copied.
    const restore = prototype === undefined ? undefined : symbolOf(prototype, "messaging_deserialize_symbol");
    if (restore !== undefined && symbolOf(prototype, "messaging_clone_symbol") === undefined) Reflect.deleteProperty(prototype, restore);
  }
  // `AbortSignal.any` and `timeout` are ours: what these do for Node's own would put a tenant's objects into its finalizers.
  for (const description of ["kNewListener", "kRemoveListener"]) {
    const key = symbolOf(AbortSignal.prototype, description);
    if (key !== undefined) Reflect.deleteProperty(AbortSignal.prototype, key);
  }
}

/** A method whose use costs the thread. */
function tainting(/** @type {any} */ owner, /** @type {string} */ key, /** @type {string} */ why) {
  const original = owner[key];
  const wrapper = {
    [key](/** @type {any[]} */ ...args) {
      needStack();
      taint(why);
      return ReflectApply(original, this, args);
    },
  }[key];
  Object.defineProperty(owner, key, { value: wrapper, writable: true, enumerable: false, configurable: true });
}

function guardHandles() {
  tainting(MessagePort.prototype, "postMessage", "MessagePort");
  const blob = new Blob(["x"]);
  const key = /** @type {symbol} */ (symbolOf(blob, "kHandle"));
  tainting(Object.getPrototypeOf(/** @type {any} */ (blob)[key]), "getReader", "Blob");
}

/** Listeners with only the options that there are: others of Node's own make weak listeners, whose cleaning up calls the target. */
function ownListeners() {
  const { prototype } = EventTarget;
  const add = prototype.addEventListener;
  const remove = prototype.removeEventListener;
  const aborted = getterOf(AbortSignal.prototype, "aborted");
  const wrapper = {
    addEventListener(/** @type {any} */ type, /** @type {any} */ listener, /** @type {any} */ options = undefined) {
      if (arguments.length < 2) return ReflectApply(add, this, arguments);
      const given = options;
      if ((typeof given !== "object" && typeof given !== "function") || given === null) {
        return ReflectApply(add, this, [type, listener, { __proto__: null, capture: !!given }]);
      }
      const own = { __proto__: null, capture: !!given.capture, once: !!given.once, passive: !!given.passive };
      const { signal } = given;
      if (signal !== undefined) {
        if (aborted(signal)) return undefined;
        const name = `${type}`;
        const drop = () => ReflectApply(remove, this, [name, listener, own]);
        ReflectApply(add, signal, ["abort", drop, { __proto__: null, once: true }]);
      }
      return ReflectApply(add, this, [type, listener, own]);
    },
  }.addEventListener;
  Object.defineProperty(wrapper, "length", { value: 2, configurable: true });
  Object.defineProperty(prototype, "addEventListener", { value: wrapper, writable: true, enumerable: true, configurable: true });

  const Controller = AbortController;
  const abort = uncurryThis(Controller.prototype.abort);
  const signalOf = getterOf(Controller.prototype, "signal");
  const reasonOf = getterOf(AbortSignal.prototype, "reason");
  const any = {
    any(/** @type {Iterable<AbortSignal>} */ signals) {
      const all = [...signals];
      const controller = new Controller();
      for (let i = 0; i < all.length; i++) if (aborted(all[i])) abort(controller, reasonOf(all[i]));
      const result = signalOf(controller);
      if (aborted(result)) return result;
      for (let i = 0; i < all.length; i++) {
        const source = all[i];
        ReflectApply(add, source, ["abort", () => abort(controller, reasonOf(source)), { __proto__: null, once: true }]);
      }
      return result;
    },
  }.any;
  Object.defineProperty(AbortSignal, "any", { value: any, writable: true, enumerable: true, configurable: true });
}

/**
 * Asynchronous resources that hold nothing of a tenant's after the context's end: timers are dropped, the rest runs before its check, and
 * random bytes are made while their caller waits.
 */
const HARMLESS = ["Timeout", "Immediate", "TickObject", "Microtask", "RANDOMBYTESREQUEST"];

/** From now on every native handle or request announces itself here; one that nobody counts costs the thread. */
export function watchResources() {
  const harmless = /** @type {any} */ ({ __proto__: null });
  for (const type of HARMLESS) harmless[type] = true;
  const hook = {
    __proto__: null,
    trackPromises: false,
    init(/** @type {number} */ _id, /** @type {string} */ type) {
      if (harmless[type] === true) return;
      // The jobs of `crypto.subtle`, whose Promises are counted.
      if (activity.pending > 0 && StringEndsWith(type, "REQUEST")) return;
      taint(type);
    },
  };
  createHook(/** @type {any} */ (hook)).enable();
}

/** Runs once, after `install` and before the realm is captured. */
export function closeInternals() {
  takeMembers();
  guardHandles();
  ownListeners();
}
