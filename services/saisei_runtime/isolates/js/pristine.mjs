/**
 * Is the realm exactly as it was at boot, or can it be made so? (design 3: a thread is reused only if it is.)
 *
 * Every builtin object reachable from the globals is visited once at boot. A function without `prototype` is frozen: nobody extends
 * `Array.prototype.map` itself, and what is frozen needs no check. Of each other object the own keys in order, the descriptors, the
 * prototype and the extensibility are remembered and compared after each context. Reading keys is the dearest part, so the objects
 * that nobody polyfills (stream controllers, `Intl` classes, …) take no new properties; what they have can still be replaced.
 */

import { createRequire } from "node:module";
import util from "node:util";
import {
  ObjectIs,
  ReflectDefineProperty,
  ReflectDeleteProperty,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  ReflectIsExtensible,
  ReflectOwnKeys,
  RegExpExec,
} from "./intrinsics.mjs";
import { guardPatterns } from "./dragnet.mjs";
import { severQueues } from "./severed.mjs";

const { isMap, isSet } = util.types;

/** Classes and namespaces that applications and polyfills add to; they and their prototypes stay extensible. */
const EXTENSIBLE = [
  "AbortController", "AbortSignal", "AggregateError", "Array", "ArrayBuffer", "AsyncDisposableStack", "Atomics", "BigInt", "Blob",
  "Boolean", "DataView", "Date", "DisposableStack", "Error", "Event", "EventTarget", "File", "FormData", "Function", "Headers",
  "Intl", "Iterator", "JSON", "Map", "Math", "Number", "Object", "Promise", "RangeError", "ReadableStream", "Reflect", "RegExp",
  "Request", "Response", "Set", "String", "Symbol", "SyntaxError", "TextDecoder", "TextEncoder", "TypeError", "URL",
  "URLSearchParams", "Uint8Array", "WeakMap", "WeakRef", "WeakSet", "WritableStream", "console", "crypto",
]; // prettier-ignore

/** What can only be reached through syntax or instances. */
function hidden() {
  const proto = Object.getPrototypeOf;
  const generator = function* () {};
  const asyncGenerator = async function* () {};
  return [
    proto(generator), proto(asyncGenerator), proto(async () => {}),
    proto(proto(generator.prototype)), proto(proto(asyncGenerator.prototype)),
    proto([][Symbol.iterator]()), proto(new Map().entries()), proto(new Set().values()), proto(""[Symbol.iterator]()),
    proto("a".matchAll(/a/g)), proto(Iterator.from({ next: () => ({ done: true, value: 0 }) })), proto([].values().map((x) => x)),
    proto(new Headers().entries()), proto(new FormData().entries()), proto(new URLSearchParams().entries()),
    proto(new Intl.Segmenter().segment("")), proto(new Intl.Segmenter().segment("")[Symbol.iterator]()),
    proto(new ReadableStream().values()), proto(Uint8Array),
  ]; // prettier-ignore
}

/** Watched objects with their prototypes; those that may gain properties come with their keys. @type {object[]} */
const objects = [];
/** @type {(object | null)[]} */
const prototypes = [];
/** @type {boolean[]} */
const extensible = [];
/** `null`: cannot gain properties. @type {(PropertyKey[] | null)[]} */
const keysOf = [];
/** Properties that are taken back at most: a thread is cheaper than more of them. */
const MAX_ADDED = 4_096;
/** Some object has so many that its keys had better not be read again. */
let flooded = false;

/** Every property that can change: where, which, its value or getter, its setter, its flags. @type {object[]} */
const owners = [];
/** @type {PropertyKey[]} */
const names = [];
/** @type {any[]} */
const firsts = [];
/** @type {any[]} */
const setters = [];
/** @type {number[]} */
const shapes = [];

const CONFIGURABLE = 1;
const ENUMERABLE = 2;
const WRITABLE = 4;
const DATA = 8;

const shapeOf = (/** @type {PropertyDescriptor} */ d) =>
  (d.configurable ? CONFIGURABLE : 0) | (d.enumerable ? ENUMERABLE : 0) | (d.writable ? WRITABLE : 0) | (Object.hasOwn(d, "value") ? DATA : 0);

/** Node's errors have a class for each code, which only an error of that code leads to. */
function freezeErrors() {
  const { codes } = createRequire(import.meta.url)("internal/errors");
  for (const made of Object.values(codes)) {
    for (const key of Reflect.ownKeys(made.prototype)) {
      const d = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(made.prototype, key));
      for (const fn of [d.value, d.get]) if (typeof fn === "function" && fn !== made) Object.freeze(fn);
    }
    Object.freeze(made.prototype);
    Object.freeze(made);
  }
}

/** Getters are asked for what they give this far from a specimen; some give something new each time. */
const GETTERS_TO = 3;

/**
 * Freezes what only instances lead to: classes of Node's own, functions behind symbols, objects behind getters. Nobody extends these.
 * @param {unknown[]} specimens @param {Set<unknown>} known what the globals lead to
 */
function freezeHidden(specimens, known) {
  const seen = new Set();
  /** @type {Map<object, Function[]>} */
  const getters = new Map();
  const gettersOf = (/** @type {object} */ owner) => {
    let list = getters.get(owner);
    if (list === undefined) {
      list = Reflect.ownKeys(owner).flatMap((key) => Object.getOwnPropertyDescriptor(owner, key)?.get ?? []);
      getters.set(owner, list);
    }
    return list;
  };
  const queue = specimens.map((value) => ({ value, depth: 0 }));
  for (const { value, depth } of queue) {
    if ((typeof value !== "object" && typeof value !== "function") || value === null || seen.has(value)) continue;
    if (known.has(value) && depth > 0) continue;
    seen.add(value);
    const found = (/** @type {any} */ inner) => queue.push({ value: inner, depth: depth + 1 });
    for (const key of Reflect.ownKeys(value)) {
      const d = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(value, key));
      found(d.value);
      found(d.get);
      found(d.set);
    }
    found(Object.getPrototypeOf(value));
    // What a tenant takes out of an instance's Map with `Map.prototype.forEach`.
    if (isMap(value)) Map.prototype.forEach.call(value, (inner, key) => (found(inner), found(key)));
    else if (isSet(value)) Set.prototype.forEach.call(value, found);
    // Getters refuse prototypes and functions, and being refused is dear.
    if (depth >= GETTERS_TO || typeof value === "function" || Object.hasOwn(value, "constructor")) continue;
    for (let at = value; at !== null && !BARE.has(at); at = Object.getPrototypeOf(at)) {
      for (const get of gettersOf(at)) {
        try {
          found(Reflect.apply(get, value, []));
        } catch {
          // not for this object
        }
      }
    }
  }
  // Afterwards: a getter may have been at work on what is frozen now.
  for (const value of seen) {
    if (known.has(value) || ArrayBuffer.isView(value)) continue;
    Object.freeze(value);
  }
}
const BARE = new Set([Object.prototype, Function.prototype]);

/**
 * Remembers the realm. Runs once, as the last thing before tenant code may run.
 * @param {unknown[]} specimens of the objects that tenants can get
 * @returns {number} how many properties are watched
 */
export function capture(specimens) {
  severQueues();
  guardPatterns();
  const asyncIterator = Object.getPrototypeOf(Object.getPrototypeOf((async function* () {}).prototype));
  const open = new Set([Object.getPrototypeOf(Uint8Array), Object.getPrototypeOf(Uint8Array.prototype), globalThis, asyncIterator]);
  for (const name of EXTENSIBLE) {
    const value = /** @type {any} */ (globalThis)[name];
    open.add(value);
    if (typeof value === "function") open.add(value.prototype);
  }
  const seen = new Set();
  // Object.prototype first: as long as it is clean, reading a descriptor's fields cannot meet a tenant's property.
  const queue = [Object.prototype, globalThis, Array.prototype, Function.prototype, ...hidden()];
  for (const object of queue) {
    if ((typeof object !== "object" && typeof object !== "function") || object === null || seen.has(object)) continue;
    seen.add(object);
    queue.push(/** @type {any} */ (Object.getPrototypeOf(object)));
    for (const key of Reflect.ownKeys(object)) {
      const found = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(object, key));
      queue.push(found.value, /** @type {any} */ (found.get), /** @type {any} */ (found.set));
    }
    if (typeof object === "function" && !Object.hasOwn(object, "prototype") && !open.has(object)) Object.freeze(object);
    else if (!open.has(object)) Object.preventExtensions(object);
    if (!Object.isFrozen(object)) objects.push(object);
  }
  freezeErrors();
  const limit = Error.stackTraceLimit;
  Error.stackTraceLimit = 0; // nobody reads the stacks of refusals
  freezeHidden(specimens, seen);
  Error.stackTraceLimit = limit;
  for (const object of objects) {
    prototypes.push(Object.getPrototypeOf(object));
    extensible.push(Object.isExtensible(object));
    const keys = Reflect.ownKeys(object);
    keysOf.push(Object.isExtensible(object) ? keys : null);
    for (const key of keys) {
      const d = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(object, key));
      if (!d.configurable && !d.writable) continue; // can never change
      owners.push(object);
      names.push(key);
      firsts.push(Object.hasOwn(d, "value") ? d.value : d.get);
      setters.push(d.set);
      shapes.push(shapeOf(d));
    }
  }
  RegExpExec(/(?:)/, "");
  return owners.length;
}

/** True when every watched object is as remembered. Also empties the legacy statics of RegExp (`RegExp.$_`). */
export function isPristine() {
  flooded = false;
  RegExpExec(/(?:)/, "");
  // Object.prototype first: were it to have a `value` or `get` of a tenant's, reading a descriptor's fields would call it.
  return sameObject(0) && sameProperties() && sameObjects();
}

/**
 * Takes back what polyfills and libraries do to a realm: properties that were added or changed. Runs none of the tenant's code.
 *
 * A join and a new thread cost 190 ms of CPU. What cannot be taken back (a prototype, extensibility, a deleted or locked property)
 * still does. A tenant could as well tidy up by itself before it ends, so a realm that is as it was is trusted no more than before.
 * @returns {boolean} whether the realm is pristine now
 */
export function restore() {
  if (flooded) return false;
  const count = objects.length;
  let added = 0;
  for (let i = 0; i < count; i++) {
    const object = /** @type {object} */ (objects[i]);
    if (!sameKind(object, i)) return false;
    const keys = /** @type {PropertyKey[] | null} */ (keysOf[i]);
    if (keys === null) continue;
    const now = ReflectOwnKeys(object);
    const length = keys.length;
    if (now.length > length + MAX_ADDED) return false;
    for (let j = 0; j < now.length; j++) {
      const key = /** @type {PropertyKey} */ (now[j]);
      // Beyond its end a list would be asked for an index that Object.prototype may have a getter for.
      if ((j < length && keys[j] === key) || holds(keys, key)) continue;
      if (++added > MAX_ADDED || !ReflectDeleteProperty(object, key)) return false;
    }
  }
  // Object.prototype has its own keys only by now, so descriptors have no more fields than they show.
  for (let i = 0; i < owners.length; i++) {
    if (sameProperty(i)) continue;
    const name = /** @type {PropertyKey} */ (names[i]);
    if (!ReflectDefineProperty(/** @type {object} */ (owners[i]), name, firstDescriptor(i))) return false;
  }
  return isPristine();
}

function holds(/** @type {PropertyKey[]} */ keys, /** @type {PropertyKey} */ key) {
  for (let i = 0; i < keys.length; i++) if (keys[i] === key) return true;
  return false;
}

function firstDescriptor(/** @type {number} */ i) {
  const shape = /** @type {number} */ (shapes[i]);
  const enumerable = (shape & ENUMERABLE) !== 0;
  const configurable = (shape & CONFIGURABLE) !== 0;
  return /** @type {any} */ (
    (shape & DATA) !== 0
      ? { __proto__: null, value: firsts[i], writable: (shape & WRITABLE) !== 0, enumerable, configurable }
      : { __proto__: null, get: firsts[i], set: setters[i], enumerable, configurable }
  );
}

function sameProperties() {
  const count = owners.length;
  for (let i = 0; i < count; i++) if (!sameProperty(i)) return false;
  return true;
}

function sameProperty(/** @type {number} */ i) {
  const d = ReflectGetOwnPropertyDescriptor(/** @type {object} */ (owners[i]), /** @type {PropertyKey} */ (names[i]));
  if (d === undefined) return false;
  const shape = /** @type {number} */ (shapes[i]);
  const first = firsts[i];
  if ((shape & DATA) !== 0) {
    // An accessor has no `value` and no `writable` either.
    if ((d.value !== first && !ObjectIs(d.value, first)) || d.writable !== ((shape & WRITABLE) !== 0)) return false;
  } else if (d.get !== first || d.set !== setters[i]) return false;
  return d.configurable === ((shape & CONFIGURABLE) !== 0) && d.enumerable === ((shape & ENUMERABLE) !== 0);
}

function sameObjects() {
  const count = objects.length;
  for (let i = 0; i < count; i++) if (!sameObject(i)) return false;
  return true;
}

/** What cannot be taken back. */
function sameKind(/** @type {object} */ object, /** @type {number} */ i) {
  return ReflectGetPrototypeOf(object) === prototypes[i] && ReflectIsExtensible(object) === extensible[i];
}

function sameObject(/** @type {number} */ i) {
  const object = /** @type {object} */ (objects[i]);
  if (!sameKind(object, i)) return false;
  const keys = /** @type {PropertyKey[] | null} */ (keysOf[i]);
  if (keys === null) return true;
  const now = ReflectOwnKeys(object);
  const length = keys.length;
  if (now.length !== length) {
    flooded = now.length > length + MAX_ADDED;
    return false;
  }
  for (let j = 0; j < length; j++) if (now[j] !== keys[j]) return false;
  return true;
}
