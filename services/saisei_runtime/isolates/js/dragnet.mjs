/**
 * What Node's Web API keeps for itself and hands to builtin methods: lists, tables, patterns and functions of its modules (W-083).
 *
 * Its fetch classes are ordinary JavaScript: `nullBodyStatus.includes(status)` calls a tenant's `includes`, if there is one, with Node's
 * own list. What was put into it would outlive the context. Such objects are found by being fished for in the same way, are frozen, and
 * get the methods that they are used with as their own, so that no tenant's is ever called on them.
 */

import { ReflectApply, SafeSet, SetAdd, SetHas } from "./intrinsics.mjs";
import { taint } from "./quiescence.mjs";

/** Whose methods and getters ordinary JavaScript uses on what it holds. The order matters for what has several of them. */
const OWNERS = [
  Array, Map, Set, WeakMap, WeakSet, WeakRef, RegExp, String, Function, Promise, Date, ArrayBuffer, Object.getPrototypeOf(Uint8Array),
  TextEncoder, TextDecoder, Headers, URL, URLSearchParams, AbortController, AbortSignal, EventTarget, Event, Object,
].map((owner) => owner.prototype); // prettier-ignore

/** Every object that is this or an argument of a builtin method while `use` runs. @param {() => unknown} use @returns {Set<any>} */
function caughtDuring(use) {
  const caught = new SafeSet();
  let busy = false;
  const take = (/** @type {any} */ value) => {
    if ((typeof value === "object" && value !== null) || typeof value === "function") SetAdd(caught, value);
  };
  /** @type {[object, PropertyKey, PropertyDescriptor][]} */
  const replaced = [];
  for (const owner of OWNERS) {
    for (const key of Reflect.ownKeys(owner)) {
      const found = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(owner, key));
      if (key === "constructor" || !found.configurable) continue;
      const watched = { ...found };
      for (const part of /** @type {const} */ (["value", "get"])) {
        const original = found[part];
        if (typeof original !== "function") continue;
        // A method, so that it is no constructor, as what it stands for.
        watched[part] = {
          /** @this {any} */
          watched(/** @type {any[]} */ ...args) {
            if (!busy) {
              busy = true;
              take(this);
              for (let i = 0; i < args.length; i++) take(args[i]);
              busy = false;
            }
            return ReflectApply(original, this, args);
          },
        }.watched;
      }
      replaced.push([owner, key, found]);
      Object.defineProperty(owner, key, watched);
    }
  }
  try {
    use();
  } finally {
    for (const [owner, key, found] of replaced) Reflect.defineProperty(owner, key, found);
  }
  return caught;
}

/**
 * What is used by both of two runs is Node's own.
 * @param {() => unknown} use makes and uses one object of each kind @returns {any[]}
 */
export function keptByNode(use) {
  const first = caughtDuring(use);
  const second = caughtDuring(use);
  return [...second].filter((value) => SetHas(first, value));
}

/** The prototype that has the methods of such an object. */
function prototypeOf(/** @type {any} */ value) {
  for (const owner of OWNERS) {
    if (owner !== Object.prototype && owner !== Function.prototype && Object.prototype.isPrototypeOf.call(owner, value)) return owner;
  }
  return null;
}

/**
 * The objects that a getter or setter of Object.prototype is called on while `use` runs.
 * @param {string[]} names @param {() => Promise<unknown>} use @returns {Promise<object[]>}
 */
export async function tapped(names, use) {
  /** @type {object[]} */
  const found = [];
  for (const name of names) {
    Object.defineProperty(Object.prototype, name, {
      get() {
        if (this !== Object.prototype && this !== globalThis) found.push(this);
        return undefined;
      },
      set(value) {
        found.push(this);
        Object.defineProperty(this, name, { value, writable: true, enumerable: true, configurable: true });
      },
      configurable: true,
    });
  }
  try {
    await use();
  } finally {
    for (const name of names) Reflect.deleteProperty(Object.prototype, name);
  }
  return found;
}

/** Gives each its methods as properties of its own, so that looking one up finds no tenant's. @param {any[]} kept */
export function ownMethods(kept) {
  for (const value of kept) {
    const prototype = prototypeOf(value);
    if (prototype === null || value === prototype || Object.isFrozen(value)) continue;
    for (const key of Reflect.ownKeys(prototype)) {
      if (Object.hasOwn(value, key)) continue;
      const found = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(prototype, key));
      Object.defineProperty(value, key, { ...found, enumerable: false, configurable: false });
    }
  }
}

/** The one method that alters even a frozen pattern. Nobody uses it. */
export function guardPatterns() {
  const { compile } = RegExp.prototype;
  const wrapper = {
    compile(/** @type {any} */ pattern, /** @type {any} */ flags) {
      taint("RegExp.prototype.compile");
      return ReflectApply(compile, this, [pattern, flags]);
    },
  }.compile;
  Object.defineProperty(RegExp.prototype, "compile", { value: wrapper, writable: true, enumerable: false, configurable: true });
}
