/**
 * Documents (W-040 … W-051): from a tenant's value to canonical RFC 8785 text and back, without running tenant code.
 */

import {
  ArrayIsArray,
  ArrayPop,
  ArrayPrototype,
  ArrayPush,
  ArraySort,
  JSONParse,
  NumberIsFinite,
  ObjectHasOwn,
  ObjectPrototype,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  ReflectOwnKeys,
  SafeSet,
  SetAdd,
  SetDelete,
  SetHas,
  StringIsWellFormed,
  newList,
  quote,
} from "./intrinsics.mjs";
import { Buffer } from "node:buffer";
import { advice, nameOf, pathPart } from "./kinds.mjs";

const byteLength = Buffer.byteLength;

export const MAX_ROOT_PROPERTIES = 1024;
export const MAX_BYTES = 1_048_576;
/** A path to a deep value names this many of its last parts. */
const MAX_PATH = 12;

/** Why a value is no document. `kind` is "invalid" or "too_large". */
export class DocumentFault {
  /** @param {"invalid" | "too_large"} kind @param {string} message */
  constructor(kind, message) {
    this.kind = kind;
    this.message = message;
  }
}
// Made next to tenant code: a setter on Object.prototype would be given them, and with them the class.
Object.setPrototypeOf(DocumentFault.prototype, null);

const invalid = (/** @type {string} */ what) => new DocumentFault("invalid", what);
/** "a Date, which …: use …" */
const unfit = (/** @type {unknown} */ value, /** @type {string} */ why) => {
  const instead = advice(value);
  return invalid(`is ${nameOf(value)}, and ${why}${instead === "" ? "" : `: ${instead}`}`);
};
const NOT_HELD = "a document holds plain objects, arrays, strings, finite numbers, booleans and null";
const tooLarge = () => new DocumentFault("too_large", "the document is over 1,048,576 canonical bytes");

/** One container being written. `values` and `keys` were read by descriptor before anything of it was written. */
class Level {
  /** @param {object} object @param {any[]} values @param {string[] | null} keys */
  constructor(object, values, keys) {
    this.object = object;
    this.values = values;
    this.keys = keys;
    this.next = 0;
  }
}
Object.setPrototypeOf(Level.prototype, null);

/** Where the value lies that is written now: `$.items[3].due`. */
function pathOf(/** @type {Level[]} */ stack, /** @type {Level | null} */ level) {
  let path = "";
  const first = stack.length + 1 > MAX_PATH ? stack.length + 1 - MAX_PATH : 0;
  for (let i = first; i <= stack.length; i++) {
    const at = i < stack.length ? stack[i] : level;
    if (at === null || at === undefined || at.next === 0) continue;
    const index = at.next - 1;
    path += pathPart(at.keys === null ? index : /** @type {string} */ (at.keys[index]));
  }
  return `$${first > 0 ? "…" : ""}${path}`;
}

/** Reads one container by descriptors only (W-043, W-044, W-046). @returns {Level | DocumentFault} */
function open(/** @type {object} */ object, /** @type {boolean} */ isRoot) {
  const isArray = ArrayIsArray(object);
  const prototype = ReflectGetPrototypeOf(object);
  if (isArray) {
    if (isRoot) return invalid("is an array, and a document is a plain object: wrap it, for example in { items: [...] }");
    if (prototype !== ArrayPrototype) return invalid("is an array with another prototype than Array.prototype: use [...value]");
  } else if (prototype !== ObjectPrototype && prototype !== null) {
    return unfit(object, isRoot ? "a document is a plain object" : NOT_HELD);
  }
  const keys = ReflectOwnKeys(object);
  const count = keys.length;
  if (isRoot && count > MAX_ROOT_PROPERTIES) return invalid("has more than 1,024 properties");
  /** @type {any[]} */
  const values = newList();
  if (isArray) {
    // Own keys of an array come in order: its indices, then "length", then whatever else there is.
    if (keys[count - 1] !== "length") return invalid("is an array with properties of its own beside its elements");
    const length = /** @type {any} */ (ReflectGetOwnPropertyDescriptor(object, "length")).value;
    if (length !== count - 1) return invalid("is an array with holes, or with properties of its own beside its elements");
    for (let i = 0; i < length; i++) {
      const found = ReflectGetOwnPropertyDescriptor(object, i);
      if (found === undefined || !ObjectHasOwn(found, "value") || !found.enumerable) {
        return invalid("is an array with holes or accessors");
      }
      ArrayPush(values, found.value);
    }
    return new Level(object, values, null);
  }
  for (let i = 0; i < count; i++) {
    const key = keys[i];
    if (typeof key !== "string") return invalid("has a symbol key; keys are strings");
    if (!StringIsWellFormed(key)) return invalid("has a key with a lone surrogate: use toWellFormed()");
  }
  ArraySort(keys); // by UTF-16 code units, as RFC 8785 wants it
  for (let i = 0; i < count; i++) {
    const found = ReflectGetOwnPropertyDescriptor(object, /** @type {string} */ (keys[i]));
    if (found === undefined || !ObjectHasOwn(found, "value")) {
      return invalid(`has the accessor property ${quote(/** @type {string} */ (keys[i]))}; a document holds data only`);
    }
    if (!found.enumerable) return invalid(`has the non-enumerable property ${quote(/** @type {string} */ (keys[i]))}`);
    ArrayPush(values, found.value);
  }
  return new Level(object, values, /** @type {string[]} */ (keys));
}

/**
 * The canonical text of a document.
 *
 * Iterative: depth is bounded by the size limit only (W-047). Stops as soon as the text is over the limit, so shared
 * objects cannot blow it up. @returns {string | DocumentFault}
 */
export function encodeDocument(/** @type {unknown} */ root) {
  try {
    if (typeof root !== "object" || root === null) {
      const hint = typeof root === "function" || typeof root === "symbol" ? "" : ": wrap it, for example in { value: ... }";
      return invalid(`$ is ${nameOf(root)}, and a document is a plain object${hint}`);
    }
    return write(root);
  } catch {
    return invalid("the value could not be inspected"); // a Proxy trap threw (W-046), or the stack was full
  }
}

function write(/** @type {object} */ root) {
  const ancestors = new SafeSet();
  /** @type {Level[]} */
  const stack = newList();
  const first = open(root, true);
  if (first instanceof DocumentFault) return invalid(`$ ${first.message}`);
  let level = first;
  const at = (/** @type {DocumentFault} */ fault) => invalid(`${pathOf(stack, level)} ${fault.message}`);
  SetAdd(ancestors, root);
  let text = level.keys === null ? "[" : "{";
  for (;;) {
    if (level.next === level.values.length) {
      text += level.keys === null ? "]" : "}";
      SetDelete(ancestors, level.object);
      const parent = ArrayPop(stack);
      if (parent === undefined) break;
      level = parent;
      continue;
    }
    if (text.length > MAX_BYTES) return tooLarge();
    const index = level.next++;
    if (index > 0) text += ",";
    if (level.keys !== null) text += quote(/** @type {string} */ (level.keys[index])) + ":";
    const value = level.values[index];
    switch (typeof value) {
      case "string":
        if (value.length > MAX_BYTES) return tooLarge();
        if (!StringIsWellFormed(value)) return at(invalid("is a string with a lone surrogate: use toWellFormed()"));
        text += quote(value);
        break;
      case "number":
        if (!NumberIsFinite(value)) return at(unfit(value, "numbers are finite"));
        text += value === 0 ? "0" : `${value}`;
        break;
      case "boolean":
        text += value ? "true" : "false";
        break;
      case "object": {
        if (value === null) {
          text += "null";
          break;
        }
        if (SetHas(ancestors, value)) return at(invalid("contains itself"));
        const inner = open(value, false);
        if (inner instanceof DocumentFault) return at(inner);
        SetAdd(ancestors, value);
        ArrayPush(stack, level);
        level = inner;
        text += level.keys === null ? "[" : "{";
        break;
      }
      default:
        return at(unfit(value, NOT_HELD));
    }
  }
  if (text.length > MAX_BYTES || byteLength(text) > MAX_BYTES) return tooLarge();
  return text;
}

/** A fresh clone (W-048). `JSON.parse` defines properties, so setters of a polluted prototype are never run. */
export const decodeDocument = (/** @type {string} */ text) => JSONParse(text);
