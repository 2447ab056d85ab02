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
  quote,
} from "./intrinsics.mjs";
import { Buffer } from "node:buffer";

const byteLength = Buffer.byteLength;

export const MAX_ROOT_PROPERTIES = 1024;
export const MAX_BYTES = 1_048_576;

/** Why a value is no document. `kind` is "invalid" or "too_large". */
export class DocumentFault {
  /** @param {"invalid" | "too_large"} kind @param {string} message */
  constructor(kind, message) {
    this.kind = kind;
    this.message = message;
  }
}

const invalid = (/** @type {string} */ what) => new DocumentFault("invalid", what);
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

/** Reads one container by descriptors only (W-043, W-044, W-046). @returns {Level | DocumentFault} */
function open(/** @type {object} */ object, /** @type {boolean} */ isRoot) {
  const isArray = ArrayIsArray(object);
  const prototype = ReflectGetPrototypeOf(object);
  if (isArray) {
    if (isRoot) return invalid("the root of a document is an object, not an array");
    if (prototype !== ArrayPrototype) return invalid("an array has another prototype than Array.prototype");
  } else if (prototype !== ObjectPrototype && prototype !== null) {
    return invalid("an object is not plain: its prototype is neither Object.prototype nor null");
  }
  const keys = ReflectOwnKeys(object);
  const count = keys.length;
  if (isRoot && count > MAX_ROOT_PROPERTIES) return invalid("the root has more than 1,024 properties");
  /** @type {any[]} */
  const values = [];
  if (isArray) {
    // Own keys of an array come in order: its indices, then "length", then whatever else there is.
    if (keys[count - 1] !== "length") return invalid("an array has extra properties");
    const length = /** @type {any} */ (ReflectGetOwnPropertyDescriptor(object, "length")).value;
    if (length !== count - 1) return invalid("an array has holes or extra properties");
    for (let i = 0; i < length; i++) {
      const found = ReflectGetOwnPropertyDescriptor(object, i);
      if (found === undefined || !ObjectHasOwn(found, "value") || !found.enumerable) {
        return invalid("an array has holes or accessors");
      }
      ArrayPush(values, found.value);
    }
    return new Level(object, values, null);
  }
  for (let i = 0; i < count; i++) {
    const key = keys[i];
    if (typeof key !== "string") return invalid("an object has a symbol key");
    if (!StringIsWellFormed(key)) return invalid("a key holds a lone surrogate");
  }
  ArraySort(keys); // by UTF-16 code units, as RFC 8785 wants it
  for (let i = 0; i < count; i++) {
    const found = ReflectGetOwnPropertyDescriptor(object, /** @type {string} */ (keys[i]));
    if (found === undefined || !ObjectHasOwn(found, "value")) return invalid("an object has an accessor property");
    if (!found.enumerable) return invalid("an object has a non-enumerable property");
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
    if (typeof root !== "object" || root === null) return invalid("the root of a document is an object");
    return write(root);
  } catch {
    return invalid("the value could not be inspected"); // a Proxy trap threw (W-046), or the stack was full
  }
}

function write(/** @type {object} */ root) {
  const ancestors = new SafeSet();
  const first = open(root, true);
  if (first instanceof DocumentFault) return first;
  let level = first;
  /** @type {Level[]} */
  const stack = [];
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
        if (!StringIsWellFormed(value)) return invalid("a string holds a lone surrogate");
        text += quote(value);
        break;
      case "number":
        if (!NumberIsFinite(value)) return invalid("a number is not finite");
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
        if (SetHas(ancestors, value)) return invalid("the value contains itself");
        const inner = open(value, false);
        if (inner instanceof DocumentFault) return inner;
        SetAdd(ancestors, value);
        ArrayPush(stack, level);
        level = inner;
        text += level.keys === null ? "[" : "{";
        break;
      }
      default:
        return invalid(`a value is of type ${typeof value}`);
    }
  }
  if (text.length > MAX_BYTES || byteLength(text) > MAX_BYTES) return tooLarge();
  return text;
}

/** A fresh clone (W-048). `JSON.parse` defines properties, so setters of a polluted prototype are never run. */
export const decodeDocument = (/** @type {string} */ text) => JSONParse(text);
