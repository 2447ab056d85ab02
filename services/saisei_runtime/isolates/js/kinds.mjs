/** What a value is, in words, and what to do instead: for messages about documents. Runs no code of the value (W-046). */

import {
  ArrayIsArray,
  ObjectHasOwn,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  RegExpExec,
  StringSlice,
  StringToWellFormed,
  quote,
} from "./intrinsics.mjs";
import util from "node:util";

const { isProxy, isDate, isMap, isSet, isPromise, isRegExp, isNativeError, isTypedArray, isAnyArrayBuffer, isBoxedPrimitive } =
  util.types;
const IDENTIFIER = /^[A-Za-z_$][A-Za-z0-9_$]{0,63}$/;
const MAX_NAME = 64;

/** The name of the class that made the object, or "". */
function className(/** @type {object} */ value) {
  const prototype = ReflectGetPrototypeOf(value);
  if (prototype === null || isProxy(prototype)) return "";
  const made = ReflectGetOwnPropertyDescriptor(prototype, "constructor");
  if (made === undefined || !ObjectHasOwn(made, "value") || typeof made.value !== "function" || isProxy(made.value)) return "";
  const named = ReflectGetOwnPropertyDescriptor(made.value, "name");
  if (named === undefined || !ObjectHasOwn(named, "value") || typeof named.value !== "string") return "";
  return StringToWellFormed(StringSlice(named.value, 0, MAX_NAME));
}

const article = (/** @type {string} */ noun) => (RegExpExec(/^[aeiouAEIOU]/, noun) === null ? `a ${noun}` : `an ${noun}`);

/** "a Date", "an array", "null", "a function". */
export function nameOf(/** @type {unknown} */ value) {
  if (value === null || value === undefined) return `${value}`;
  if (typeof value === "number") return value === value && value - value === 0 ? "a number" : `${value}`;
  if (typeof value === "bigint") return "a BigInt";
  if (typeof value !== "object") return article(typeof value);
  if (isProxy(value)) return "a Proxy";
  if (ArrayIsArray(value)) return "an array";
  const name = className(value);
  return name === "" || name === "Object" ? "an object" : article(name);
}

/** What to write instead of a value that no document can hold; "" when nothing is better than the rule itself. */
export function advice(/** @type {unknown} */ value) {
  if (value === undefined) return "leave the key out, or use null";
  if (typeof value === "number") return "use null, or a string";
  if (typeof value === "bigint") return "use a string, or Number(value)";
  if (typeof value === "function" || typeof value === "symbol") return "documents hold data only";
  if (typeof value !== "object" || value === null || isProxy(value)) return "";
  if (isDate(value)) return "use its toISOString() or getTime()";
  if (isMap(value)) return "use Object.fromEntries(map)";
  if (isSet(value)) return "use an array: [...set]";
  if (isPromise(value)) return "await it first";
  if (isRegExp(value)) return "use its source";
  if (isNativeError(value)) return "use its message";
  if (isTypedArray(value) || isAnyArrayBuffer(value)) return "use an array of numbers, or a base64 string";
  if (isBoxedPrimitive(value)) return "use the primitive value";
  if (!ArrayIsArray(value)) return "make it a plain object: { ...value }";
  return "";
}

/** One more part of a path such as `$.items[3].due`. */
export function pathPart(/** @type {string | number} */ key) {
  if (typeof key === "number") return `[${key}]`;
  if (RegExpExec(IDENTIFIER, key) !== null) return `.${key}`;
  return `[${quote(StringToWellFormed(StringSlice(key, 0, MAX_NAME)))}]`;
}
