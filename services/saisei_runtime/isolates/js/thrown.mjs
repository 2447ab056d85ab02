/** What can be said of a thrown value without running any of its code (S-22, W-013). */

import {
  ObjectHasOwn,
  ReflectGetOwnPropertyDescriptor,
  ReflectGetPrototypeOf,
  StringCharCodeAt,
  StringSlice,
  StringToWellFormed,
} from "./intrinsics.mjs";
import util from "node:util";

const { isProxy } = util.types;
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

/** @returns {{ name: string, message: string }} */
export function describeThrown(/** @type {unknown} */ value) {
  if ((typeof value === "object" && value !== null) || typeof value === "function") {
    const name = dataString(value, "name");
    return { name: name ? shorten(name, 256) : "Error", message: shorten(dataString(value, "message") ?? "") };
  }
  return { name: "Error", message: shorten(typeof value === "symbol" ? "Symbol()" : `${value}`) };
}

/** The own string message of an Error-like value, for `status().error.message`; "" when it has none. */
export function ownMessage(/** @type {unknown} */ value) {
  if (typeof value !== "object" || value === null || isProxy(value)) return "";
  const found = ReflectGetOwnPropertyDescriptor(value, "message");
  return found !== undefined && ObjectHasOwn(found, "value") && typeof found.value === "string" ? shorten(found.value) : "";
}
