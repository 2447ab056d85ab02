/**
 * Is the realm exactly as it was at boot? (design 3: a thread is reused only if it is.)
 *
 * Every builtin object reachable from the globals is visited once at boot. A function without `prototype` is frozen: nobody extends
 * `Array.prototype.map` itself, and frozen objects need no check. Of each other object the own keys in order, the descriptors, the
 * prototype and the extensibility are remembered and compared after each context.
 */

import {
  ObjectIs,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  ReflectIsExtensible,
  ReflectOwnKeys,
  RegExpExec,
} from "./intrinsics.mjs";

/** What can only be reached through syntax or instances. */
function hidden() {
  const proto = Object.getPrototypeOf;
  const generator = function* () {};
  const asyncGenerator = async function* () {};
  const found = [
    proto(generator), proto(asyncGenerator), proto(async () => {}),
    proto(proto(generator.prototype)), proto(proto(asyncGenerator.prototype)), proto(proto(proto(asyncGenerator.prototype))),
    proto([][Symbol.iterator]()), proto(new Map().entries()), proto(new Set().values()), proto(""[Symbol.iterator]()),
    proto("a".matchAll(/a/g)), proto(Iterator.from({ next() {} })), proto([].values().map((x) => x)),
    proto(new Headers().entries()), proto(new FormData().entries()), proto(new URLSearchParams().entries()),
    proto(new Intl.Segmenter().segment("")), proto(new Intl.Segmenter().segment("")[Symbol.iterator]()),
    proto(new ReadableStream().values()), proto(Uint8Array),
  ]; // prettier-ignore
  return found;
}

/** @type {object[]} */
const objects = [];
/** @type {(object | null)[]} */
const prototypes = [];
/** @type {boolean[]} */
const extensible = [];
/** @type {PropertyKey[][]} */
const keysOf = [];
/** For each key in turn: value or getter, setter, flags. @type {any[][]} */
const propertiesOf = [];

const flags = (/** @type {PropertyDescriptor} */ d) =>
  (d.configurable ? 1 : 0) | (d.enumerable ? 2 : 0) | (d.writable ? 4 : 0) | (Object.hasOwn(d, "value") ? 8 : 0);

/** Remembers the realm. Runs once, as the last thing before tenant code may run. Returns how many objects are watched. */
export function capture() {
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
    if (typeof object === "function" && !Object.hasOwn(object, "prototype")) {
      Object.freeze(object);
      continue;
    }
    if (Object.isFrozen(object)) continue;
    objects.push(object);
  }
  for (const object of objects) {
    prototypes.push(Object.getPrototypeOf(object));
    extensible.push(Object.isExtensible(object));
    const keys = Reflect.ownKeys(object);
    keysOf.push(keys);
    const properties = [];
    for (const key of keys) {
      const d = /** @type {PropertyDescriptor} */ (Object.getOwnPropertyDescriptor(object, key));
      properties.push(Object.hasOwn(d, "value") ? d.value : d.get, d.set, flags(d));
    }
    propertiesOf.push(properties);
  }
  return objects.length;
}

/** True when every watched object is as remembered. Also empties the legacy statics of RegExp (`RegExp.$_`). */
export function isPristine() {
  RegExpExec(/(?:)/, "");
  for (let i = 0; i < objects.length; i++) {
    const object = /** @type {object} */ (objects[i]);
    if (ReflectGetPrototypeOf(object) !== prototypes[i]) return false;
    if (ReflectIsExtensible(object) !== extensible[i]) return false;
    const keys = /** @type {PropertyKey[]} */ (keysOf[i]);
    const properties = /** @type {any[]} */ (propertiesOf[i]);
    const now = ReflectOwnKeys(object);
    const count = keys.length;
    if (now.length !== count) return false;
    for (let j = 0; j < count; j++) {
      const key = /** @type {PropertyKey} */ (keys[j]);
      if (now[j] !== key) return false;
      const d = /** @type {PropertyDescriptor} */ (ReflectGetOwnPropertyDescriptor(object, key));
      const shape = properties[j * 3 + 2];
      if (shape & 8) {
        if (d.get !== undefined || d.set !== undefined) return false;
        const value = properties[j * 3];
        if (d.value !== value && !ObjectIs(d.value, value)) return false;
        if (d.writable !== ((shape & 4) !== 0)) return false;
      } else if (d.get !== properties[j * 3] || d.set !== properties[j * 3 + 1]) return false;
      if (d.configurable !== ((shape & 1) !== 0) || d.enumerable !== ((shape & 2) !== 0)) return false;
    }
  }
  return true;
}
