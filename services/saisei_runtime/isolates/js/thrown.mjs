/** What can be said of a thrown value without running any of its code (S-22, W-013). */

import {
  ArrayPush,
  ObjectHasOwn,
  ReflectApply,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  RegExpExec,
  StringCharCodeAt,
  StringIncludes,
  StringSlice,
  StringSplit,
  StringStartsWith,
  StringToWellFormed,
  newList,
} from "./intrinsics.mjs";
import { encodeDocument } from "./documents.mjs";
import util from "node:util";

const { isProxy, isNativeError } = util.types;
/** Errors carry `stack` as an accessor of their own; this is the engine's. */
const stackGetter = ReflectGetOwnPropertyDescriptor(new Error(), "stack")?.get;
const TAG = /(?:context-[0-9]+|worker|inspection):\//;
const MAX_MESSAGE = 8_192;
const MAX_CHAIN = 64;

/** At most 8,192 scalars, well-formed. */
export function shorten(/** @type {string} */ text, limit = MAX_MESSAGE) {
  let whole = StringToWellFormed(text);
  if (whole.length <= limit) return whole;
  let units = 0;
  for (let count = 0; count < limit && units < whole.length; count++) {
    const unit = StringCharCodeAt(whole, units);
    units += unit >= 0xd800 && unit < 0xdc00 ? 2 : 1;
  }
  return StringSlice(whole, 0, units);
}

/** A string data property, own or inherited, that no getter or trap stands behind; else undefined. */
function dataString(/** @type {object} */ object, /** @type {string} */ key) {
  let at = /** @type {object | null} */ (object);
  for (let depth = 0; at !== null && depth < MAX_CHAIN; depth++) {
    if (isProxy(at)) return undefined;
    const found = ReflectGetOwnPropertyDescriptor(at, key);
    if (found !== undefined) return ObjectHasOwn(found, "value") && typeof found.value === "string" ? found.value : undefined;
    at = ReflectGetPrototypeOf(at);
  }
  return undefined;
}

/** The text of a thrown value that is no Error: a string itself, a plain object as JSON. */
function content(/** @type {unknown} */ value) {
  if (typeof value === "symbol") return "Symbol()";
  if ((typeof value !== "object" || value === null) && typeof value !== "function") return `${value}`;
  const text = isProxy(value) ? "" : encodeDocument(value);
  return typeof text === "string" ? text : "";
}

/** @returns {{ name: string, message: string }} */
export function describeThrown(/** @type {unknown} */ value) {
  if ((typeof value === "object" && value !== null) || typeof value === "function") {
    const name = dataString(value, "name");
    const message = dataString(value, "message") ?? (isNativeError(value) ? "" : content(value));
    return { name: name ? shorten(name, 256) : "Error", message: shorten(message) };
  }
  return { name: "Error", message: shorten(content(value)) };
}

/** For `status().error.message`: the own string message of an Error, or what else was thrown; "" when that says nothing. */
export function ownMessage(/** @type {unknown} */ value) {
  if (typeof value !== "object" || value === null) return shorten(content(value));
  if (isProxy(value)) return "";
  const found = ReflectGetOwnPropertyDescriptor(value, "message");
  if (found === undefined) return isNativeError(value) ? "" : shorten(content(value));
  return ObjectHasOwn(found, "value") && typeof found.value === "string" ? shorten(found.value) : "";
}

/** The name, message and places of a thrown value, for the log; places lie in the tenant's modules only. */
export function stackOf(/** @type {unknown} */ value) {
  const { name, message } = describeThrown(value);
  const head = message === "" ? name : `${name}: ${message}`;
  if (!isNativeError(value)) return head;
  try {
    const found = ReflectGetOwnPropertyDescriptor(value, "stack");
    if (found === undefined) return head;
    const stack = found.get === stackGetter ? ReflectApply(/** @type {any} */ (stackGetter), value, []) : found.value;
    return typeof stack === "string" ? `${head}${places(stack)}` : head;
  } catch {
    return head; // a tenant's Error.prepareStackTrace threw
  }
}

/** Lines `at …` of a stack that are the tenant's own. */
function places(/** @type {string} */ stack) {
  const lines = StringSplit(stack, "\n");
  let text = "";
  for (let i = 1; i < lines.length; i++) if (StringStartsWith(lines[i], "    at ") && isOwnPlace(lines[i])) text += `\n${lines[i]}`;
  return withoutTags(text);
}

const isOwnPlace = (/** @type {string} */ line) =>
  !StringIncludes(line, "file:///") && !StringIncludes(line, "node:") && !StringIncludes(line, "(<anonymous>)");

/** Text without the lines of stacks that show files of the Host. */
export function withoutHostPlaces(/** @type {string} */ text) {
  if (!StringIncludes(text, "    at ")) return text;
  const lines = StringSplit(text, "\n");
  /** @type {string[]} */
  const kept = newList();
  for (let i = 0; i < lines.length; i++) if (!StringIncludes(lines[i], "    at ") || isOwnPlace(lines[i])) ArrayPush(kept, lines[i]);
  let joined = "";
  for (let i = 0; i < kept.length; i++) joined += (i > 0 ? "\n" : "") + kept[i];
  return withoutTags(joined);
}

/** Modules are known to the engine as `context-7:/main.mjs`; people know them as `main.mjs`. */
function withoutTags(/** @type {string} */ text) {
  let rest = text;
  for (let found = RegExpExec(TAG, rest); found !== null; found = RegExpExec(TAG, rest)) {
    const at = /** @type {any} */ (found).index;
    rest = StringSlice(rest, 0, at) + StringSlice(rest, at + found[0].length);
  }
  return rest;
}
