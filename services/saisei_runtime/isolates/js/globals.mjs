/** The global object of tenants (MW-22): the language, the Web API, and nothing of Node. */

/** Web API that Node builds lazily or that tenants keep. */
const WEB = [
  "AbortController", "AbortSignal", "Blob", "ByteLengthQueuingStrategy", "CompressionStream", "CountQueuingStrategy", "Crypto",
  "CryptoKey", "CustomEvent", "DOMException", "DecompressionStream", "Event", "EventTarget", "File", "FormData", "Headers",
  "ReadableByteStreamController", "ReadableStream", "ReadableStreamBYOBReader", "ReadableStreamBYOBRequest",
  "ReadableStreamDefaultController", "ReadableStreamDefaultReader", "Request", "Response", "SubtleCrypto", "TextDecoder",
  "TextDecoderStream", "TextEncoder", "TextEncoderStream", "TransformStream", "TransformStreamDefaultController", "URL",
  "URLPattern", "URLSearchParams", "WritableStream", "WritableStreamDefaultController", "WritableStreamDefaultWriter", "atob",
  "btoa", "clearInterval", "clearTimeout", "console", "crypto", "fetch", "queueMicrotask", "setInterval", "setTimeout",
  "structuredClone",
]; // prettier-ignore

/** Globals of the language itself. */
const LANGUAGE = [
  "AggregateError", "Array", "ArrayBuffer", "AsyncDisposableStack", "Atomics", "BigInt", "BigInt64Array", "BigUint64Array",
  "Boolean", "DataView", "Date", "DisposableStack", "Error", "EvalError", "FinalizationRegistry", "Float16Array", "Float32Array",
  "Float64Array", "Function", "Infinity", "Int16Array", "Int32Array", "Int8Array", "Intl", "Iterator", "JSON", "Map", "Math",
  "NaN", "Number", "Object", "Promise", "Proxy", "RangeError", "ReferenceError", "Reflect", "RegExp", "Set", "SharedArrayBuffer",
  "String", "SuppressedError", "Symbol", "SyntaxError", "TypeError", "URIError", "Uint16Array", "Uint32Array", "Uint8Array",
  "Uint8ClampedArray", "WeakMap", "WeakRef", "WeakSet", "WebAssembly", "decodeURI", "decodeURIComponent", "encodeURI",
  "encodeURIComponent", "escape", "eval", "globalThis", "isFinite", "isNaN", "parseFloat", "parseInt", "undefined", "unescape",
]; // prettier-ignore

/** Touches what Node builds on first use, so that nothing appears later and looks like a tenant's doing. */
export function preload() {
  const request = new Request("http://preload.invalid/", { method: "POST", body: "x" });
  new Response(new ReadableStream()).headers.append("a", "b");
  new FormData().append("a", "b");
  new URL("http://preload.invalid/?a=b").searchParams.get("a");
  new TextDecoder().decode(new TextEncoder().encode("x"));
  new AbortController().abort();
  void request.signal;
  void crypto.subtle;
  crypto.randomUUID();
  structuredClone({});
  new Blob(["x"]);
  new Intl.DateTimeFormat();
}

/**
 * Leaves on `globalThis` only what a tenant may have.
 * @param {{ console: object, fetch: Function }} own the host's replacements
 */
export function strip(own) {
  const kept = new Set([...WEB, ...LANGUAGE]);
  const root = /** @type {any} */ (globalThis);
  const replacement = /** @type {Record<string, unknown>} */ ({
    console: own.console,
    fetch: own.fetch,
    performance: clockOf(root.performance),
  });
  for (const name of WEB) {
    if (!(name in root)) continue;
    const value = name in replacement ? replacement[name] : root[name];
    Object.defineProperty(root, name, { value, writable: true, enumerable: false, configurable: true });
  }
  for (const key of Reflect.ownKeys(root)) {
    if (typeof key === "string" && kept.has(key)) continue;
    if (Reflect.deleteProperty(root, key)) continue;
    // Undici's dispatchers cannot be deleted; emptied and locked they lead nowhere.
    Object.defineProperty(root, key, { value: undefined, writable: false, enumerable: false });
  }
  Object.defineProperty(root, "performance", {
    value: replacement["performance"],
    writable: true,
    enumerable: false,
    configurable: true,
  });
  // What browsers' and other Workers' code finds its global object by.
  Object.defineProperty(root, "self", { value: root, writable: true, enumerable: false, configurable: true });
  Object.defineProperty(root, Symbol.toStringTag, { value: "global", configurable: true });
  // Object URLs would live in a store of the whole process.
  for (const name of ["createObjectURL", "revokeObjectURL"]) Reflect.deleteProperty(URL, name);
  // A tenant's handler would be called by the engine while the host's own errors are made.
  if (Object.hasOwn(Error, "prepareStackTrace")) Reflect.deleteProperty(Error, "prepareStackTrace");
}

/** `performance` without its timeline, which would outlive a context. */
function clockOf(/** @type {Performance} */ performance) {
  const { timeOrigin } = performance;
  const now = performance.now.bind(performance);
  return Object.freeze({ now: () => now(), timeOrigin });
}

