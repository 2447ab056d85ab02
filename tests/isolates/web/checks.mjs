/**
 * Runs the checks of one area inside a Worker. A check is `[name, make, expected]`; `expected` is a value, or what `throws` gives.
 * Names are unique in their area.
 */

const PATIENCE_MS = 30_000;

class Throws {
  /** @param {string} name @param {Function} [kind] the class that the error must be of */
  constructor(name, kind) {
    this.name = name;
    this.kind = kind;
  }
}

export const throws = (name, kind = globalThis[name]) => new Throws(name, kind);

/** Everything that a stream gives, in order. */
export async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

/** A stream of these chunks. */
export const streamOf = (...chunks) =>
  new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });

export const utf8 = (text) => new TextEncoder().encode(text);
export const text = (bytes) => new TextDecoder().decode(bytes);
export const hex = (bytes) => [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

function same(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null) return false;
  if (ArrayBuffer.isView(a)) a = [...new Uint8Array(a.buffer, a.byteOffset, a.byteLength)];
  if (a instanceof ArrayBuffer) a = [...new Uint8Array(a)];
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

function show(value) {
  try {
    return value instanceof Error || value instanceof DOMException ? `${value.name}: ${value.message}` : JSON.stringify(value) ?? `${value}`;
  } catch {
    return typeof value;
  }
}

async function verdict(make, expected) {
  let got;
  try {
    got = await Promise.race([make(), new Promise((_, reject) => setTimeout(() => reject(new Error("it does not settle")), PATIENCE_MS))]);
  } catch (error) {
    if (!(expected instanceof Throws)) return `threw ${show(error)}`;
    if (error?.name !== expected.name) return `threw ${show(error)}, not ${expected.name}`;
    return expected.kind !== undefined && !(error instanceof expected.kind) ? `threw a ${expected.name} of another class` : "";
  }
  if (expected instanceof Throws) return `gave ${show(got)}, but should throw ${expected.name}`;
  return same(got, expected) ? "" : `gave ${show(got)}, not ${show(expected)}`;
}

/** @returns {Promise<{ names: string[], failed: string[] }>} */
export async function run(checks) {
  const failed = [];
  for (const [name, make, expected] of checks) {
    const wrong = await verdict(make, expected);
    if (wrong !== "") failed.push(`${name}: ${wrong}`);
  }
  return { names: checks.map(([name]) => name), failed };
}
