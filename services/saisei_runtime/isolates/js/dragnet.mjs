/**
 * What Node's Web API keeps for itself and hands to builtin methods: lists, tables, patterns and functions of its modules (W-083).
 *
 * Its fetch classes are ordinary JavaScript: `nullBodyStatus.includes(status)` calls a tenant's `includes`, if there is one, with Node's
 * own list. What was put into it would outlive the context. Such objects are found by being fished for in the same way, are frozen, and
 * get the methods that they are used with as their own, so that no tenant's is ever called on them.
 */

import { types } from "node:util";
import { ReflectApply, SafeSet, SetAdd, SetHas } from "./intrinsics.mjs";
import { taint } from "./quiescence.mjs";

const { isMap, isRegExp, isSet, isWeakMap, isWeakSet } = types;

/** The builtin methods that ordinary JavaScript calls on what it holds. */
const OWNERS = [Array, Map, Set, WeakMap, WeakSet, RegExp, String, Function, Promise, Object].map((owner) => owner.prototype);

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
      if (key === "constructor" || typeof found.value !== "function" || !found.configurable) continue;
      const original = found.value;
      replaced.push([owner, key, found]);
      const value = function (/** @type {any[]} */ ...args) {
        // @ts-ignore whatever it is called on
        const self = this;
        if (!busy) {
          busy = true;
          take(self);
          for (let i = 0; i < args.length; i++) take(args[i]);
          busy = false;
        }
        return new.target === undefined ? ReflectApply(original, self, args) : undefined;
      };
      Object.defineProperty(owner, key, { ...found, value });
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
  if (Array.isArray(value)) return Array.prototype;
  if (isMap(value)) return Map.prototype;
  if (isSet(value)) return Set.prototype;
  if (isWeakMap(value)) return WeakMap.prototype;
  if (isWeakSet(value)) return WeakSet.prototype;
  if (isRegExp(value)) return RegExp.prototype;
  return null;
}

/** Gives each its methods as properties of its own, so that looking one up finds no tenant's. @param {any[]} kept */
export function ownMethods(kept) {
  for (const value of kept) {
    const prototype = prototypeOf(value);
    if (prototype === null || value === prototype || Object.isFrozen(value)) continue;
    for (const key of Reflect.ownKeys(prototype)) {
      if (Object.hasOwn(value, key)) continue;
      const found = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(prototype, key));
      Object.defineProperty(value, key, { ...found, enumerable: false });
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
