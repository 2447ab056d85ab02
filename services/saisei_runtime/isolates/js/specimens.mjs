/**
 * One instance of each kind of object that a tenant can get from the Web API or the language: what they lead to — by their properties, by
 * symbols of Node's, by getters that only work on an instance — is part of the realm as much as what the globals lead to (W-083).
 */

import { createHistogram } from "node:perf_hooks";
import { BlockList, SocketAddress } from "node:net";
import { AsyncResource } from "node:async_hooks";
import { keptByNode, ownMethods, tapped } from "./dragnet.mjs";

/** What throws gives its error. */
function thrownBy(/** @type {() => unknown} */ fn) {
  try {
    return fn();
  } catch (error) {
    return error;
  }
}

/** Values of promises that never reject unheard. */
const seen = (/** @type {any} */ promise) => {
  if (promise instanceof Promise) promise.catch(() => {});
  return promise;
};

function streams() {
  /** @type {any} */
  let sink;
  /** @type {any} */
  let bytes;
  /** @type {any} */
  let write;
  /** @type {any} */
  let transform;
  const readable = new ReadableStream({ start: (c) => void (sink = c), pull() {}, cancel() {} });
  const plain = new ReadableStream();
  const byob = new ReadableStream({ type: "bytes", start: (c) => void (bytes = c) });
  const byobReader = byob.getReader({ mode: "byob" });
  const reading = seen(byobReader.read(new Uint8Array(8)));
  const pending = bytes.byobRequest;
  const automatic = new ReadableStream({ type: "bytes", autoAllocateChunkSize: 8, start: (c) => c.enqueue(new Uint8Array(1)) });
  const writable = new WritableStream({ start: (c) => void (write = c) });
  const writer = writable.getWriter();
  const through = new TransformStream({ start: (c) => void (transform = c) });
  const encoder = new TextEncoderStream();
  const decoder = new TextDecoderStream();
  const reader = readable.getReader();
  const forked = new ReadableStream().tee();
  const forkedBytes = new ReadableStream({ type: "bytes" }).tee();
  const from = /** @type {any} */ (ReadableStream).from([1]);
  const iterator = new ReadableStream().values();
  const piped = seen(new ReadableStream().pipeTo(new WritableStream()));
  const through2 = new ReadableStream().pipeThrough(new TransformStream());
  const closed = new ReadableStream({ start: (c) => c.close() });
  const failed = new ReadableStream({ start: (c) => c.error(new Error("x")) });
  return [
    readable, plain, sink, byob, bytes, byobReader, reading, pending, automatic, writable, write, writer, through, transform, encoder,
    decoder, reader, seen(reader.read()), seen(reader.closed), seen(writer.ready), seen(writer.write("x")), seen(writer.closed), ...forked,
    ...forkedBytes, from, from.values(), iterator, seen(iterator.next()), piped, through2, closed, failed, seen(failed.getReader().closed),
    new WritableStream(), new TransformStream(), new CountQueuingStrategy({ highWaterMark: 1 }),
    new ByteLengthQueuingStrategy({ highWaterMark: 1 }), new ReadableStream({}, new CountQueuingStrategy({ highWaterMark: 1 })),
  ]; // prettier-ignore
}

function fetchClasses() {
  const form = new FormData();
  form.append("a", "b");
  form.append("f", new File(["x"], "f"));
  const request = new Request("http://specimen.invalid/", { method: "POST", body: "x", signal: new AbortController().signal });
  const response = new Response("x", { headers: { a: "b" } });
  return [
    form, form.get("f"), form.entries(), form.keys(), form.values(), request, request.clone(), request.headers, request.signal,
    request.body, response, response.clone(), response.headers, response.body, response.headers.entries(), response.headers.keys(),
    response.headers.values(), Response.json({}), Response.error(), Response.redirect("http://specimen.invalid/"),
    seen(new Response("x").text()), new Response(form), new Response(new URLSearchParams("a=b")), new Response(new Uint8Array(1)),
    thrownBy(() => new Request("x")), thrownBy(() => new Response("x", { status: 1 })), thrownBy(() => new Headers(/** @type {any} */ ([["a"]]))),
    thrownBy(() => Reflect.get(Request.prototype, "url")),
  ]; // prettier-ignore
}

function events() {
  const target = new EventTarget();
  /** @type {any[]} */
  const found = [];
  target.addEventListener("x", (event) => found.push(event, event.composedPath()));
  target.dispatchEvent(new CustomEvent("x", { detail: {} }));
  const controller = new AbortController();
  controller.signal.onabort = (event) => found.push(event);
  controller.abort();
  const timeout = AbortSignal.timeout(1e9);
  return [
    target, ...found, controller, controller.signal, controller.signal.reason, timeout, AbortSignal.any([timeout]), AbortSignal.abort(),
    new Event("x"), new CustomEvent("x"), thrownBy(() => target.dispatchEvent(/** @type {any} */ ({}))),
    thrownBy(() => new EventTarget().addEventListener("x", /** @type {any} */ (1))), thrownBy(() => controller.signal.throwIfAborted()),
  ]; // prettier-ignore
}

function values() {
  const url = new URL("http://specimen.invalid/a?b=c#d");
  const pattern = new URLPattern({ pathname: "/:x" });
  const decoder = new TextDecoder();
  const other = new TextDecoder("latin1", { fatal: true });
  return [
    url, url.searchParams, url.searchParams.entries(), url.searchParams.keys(), new URLSearchParams("a=b").values(), pattern,
    pattern.exec("http://specimen.invalid/a"), decoder, decoder.decode(new Uint8Array(1), { stream: true }), other, new TextEncoder(),
    new TextEncoder().encodeInto("x", new Uint8Array(2)), new Blob(["x"]), new Blob(["x"]).slice(0, 1), new File(["x"], "y"), structuredClone(new Blob(["x"])),
    new DOMException("x"), structuredClone(new DOMException("x")), thrownBy(() => new URL("x")), thrownBy(() => structuredClone(() => {})),
    thrownBy(() => atob("%")), thrownBy(() => new TextDecoder("nothing")), thrownBy(() => new URLPattern("%")),
    thrownBy(() => new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array([255]))),
    thrownBy(() => crypto.getRandomValues(/** @type {any} */ ({}))), crypto, crypto.subtle,
    // Classes that only come out of structuredClone, when a tenant has it restore one of Node's.
    new BlockList(), new SocketAddress({}), createHistogram(),
  ]; // prettier-ignore
}

function language() {
  const error = new Error("x", { cause: 1 });
  const generator = (function* () {})();
  const asyncGenerator = (async function* () {})();
  const wasm = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]);
  const module = new WebAssembly.Module(wasm);
  const instance = new WebAssembly.Instance(module);
  const disposables = [new DisposableStack(), new AsyncDisposableStack()];
  const segments = new Intl.Segmenter("en", { granularity: "word" }).segment("a b");
  const format = new Intl.NumberFormat("en");
  const args = (function () {
    return arguments;
  })(); // prettier-ignore
  return [
    error, new AggregateError([1]), thrownBy(() => /** @type {any} */ (null).x), thrownBy(() => JSON.parse("{")), new SuppressedError(1, 2),
    generator, asyncGenerator, seen(asyncGenerator.next()), generator.next(), module, instance, instance.exports, ...disposables, segments, segments[Symbol.iterator](), segments.containing(0),
    format.format, format.resolvedOptions(),
    args, /(?<a>a)/d.exec("a"), "a".matchAll(/a/g), [].entries(), new Map().entries(), new Set().values(), ""[Symbol.iterator](),
    [].values().map((x) => x), Iterator.from({ next: () => ({ done: true, value: 0 }) }), new Uint8Array(1), new DataView(new ArrayBuffer(1)), new SharedArrayBuffer(1),
    new WeakRef({}), new Proxy({}, {}), Promise.resolve(), Promise.withResolvers(), Symbol("x"), new Date(), new Map(), new WeakMap(), new Set(), new WeakSet(),
    async () => {}, function () {}, class {}, () => {}, ((/** @type {any} */ strings) => strings)`x`,
    Array.fromAsync([]), Proxy.revocable({}, {}), new Float16Array(1), Object(1n), Object(Symbol.iterator),
    new WebAssembly.Memory({ initial: 0 }), new WebAssembly.Table({ initial: 0, element: "anyfunc" }), new WebAssembly.Global({ value: "i32" }, 0),
    new WebAssembly.Tag({ parameters: [] }), new WebAssembly.Exception(new WebAssembly.Tag({ parameters: [] }), []), thrownBy(() => new WebAssembly.Module(new Uint8Array(1))),
  ]; // prettier-ignore
}

/** Settled a little later: keys, results and errors of asynchronous functions. */
async function later() {
  const { subtle } = crypto;
  const key = await subtle.generateKey({ name: "HMAC", hash: "SHA-256" }, true, ["sign"]);
  const refused = await subtle.digest("nothing", new Uint8Array(1)).catch((/** @type {unknown} */ error) => error);
  const failed = await subtle.importKey("raw", new Uint8Array(1), "AES-GCM", false, ["encrypt"]).catch((error) => error);
  const text = await new Response(new ReadableStream({ start: (c) => (c.enqueue("x"), c.close()) })).text().catch((error) => error);
  return [
    key, structuredClone(key), await subtle.exportKey("jwk", key), await subtle.digest("SHA-256", new Uint8Array(1)), refused, failed, text,
    await WebAssembly.instantiate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])),
    await WebAssembly.compile(new Uint8Array(1)).catch((error) => error),
    await new Response("{").json().catch((error) => error), await new Response("x").formData().catch((error) => error),
    await /** @type {any} */ (ReadableStream).from([1]).getReader().read(),
  ]; // prettier-ignore
}

/** A place of a stack, as `Error.prepareStackTrace` gets it. */
function places() {
  const found = Object.getOwnPropertyDescriptor(Error, "prepareStackTrace");
  Error.prepareStackTrace = (_error, sites) => sites;
  const sites = /** @type {any} */ (new Error("x").stack);
  Reflect.deleteProperty(Error, "prepareStackTrace");
  if (found !== undefined) Object.defineProperty(Error, "prepareStackTrace", found);
  return Array.isArray(sites) ? sites : [];
}

/** More of what Node's fetch classes decide by lists and patterns of their own. */
function decisions() {
  const init = {
    method: "PUT", body: "x", headers: [["a", "b"], ["content-type", "text/plain;charset=utf-8"], ["set-cookie", "c=d"]], mode: "cors",
    credentials: "include", cache: "no-store", redirect: "follow", integrity: "", keepalive: false, referrer: "about:client",
    referrerPolicy: "no-referrer", duplex: "half", window: null,
  }; // prettier-ignore
  const request = new Request("http://specimen.invalid/", /** @type {any} */ (init));
  const headers = new Headers(/** @type {any} */ ({ accept: "text/html", Cookie: "a=b" }));
  const more = /** @type {const} */ ([["x", "y"], ["set-cookie", "a=b"], ["content-type", "application/json"]]); // prettier-ignore
  for (const [key, value] of more) headers.append(key, value);
  headers.set("x", "z");
  headers.delete("x");
  headers.forEach(() => {});
  const codes = [200, 204, 205, 304, 404, 599].map((status) => thrownBy(() => new Response(null, { status, statusText: "x", headers })));
  const redirects = [301, 302, 303, 307, 308, 200].map((status) => thrownBy(() => Response.redirect("http://specimen.invalid/", status)));
  const refused = ["CONNECT", "TRACK", "a b", "get"].map((method) => thrownBy(() => new Request(request.url, { method })));
  const wrong = ["mode", "credentials", "cache", "redirect", "referrerPolicy", "duplex", "signal", "window", "priority"].map((key) =>
    thrownBy(() => new Request(request.url, /** @type {any} */ ({ [key]: "nothing" }))),
  );
  return [
    request, new Request(request.clone(), { method: "POST", body: "y" }), headers, headers.getSetCookie(), [...headers], ...codes,
    ...redirects, ...refused, ...wrong, thrownBy(() => new Headers([["a b", "c"]])), thrownBy(() => new Headers({ a: "b\nc" })),
    thrownBy(() => new Response("x", { status: 204 })), thrownBy(() => new Request("http://a:b@c/")), structuredClone(new Blob(["x"], { type: "a/b" })),
  ]; // prettier-ignore
}

const made = () => [...streams(), ...fetchClasses(), ...events(), ...values(), ...language(), ...decisions()];

/**
 * A fresh set, and what Node keeps for all of them. What two sets have in common belongs to the realm. Making one leaves timers, counted
 * work and a taint behind. @returns {Promise<unknown[]>}
 */
export async function specimens() {
  const kept = keptByNode(made);
  ownMethods(kept);
  // Before the waits below: what is still at work must not be frozen.
  const first = made();
  /** @type {unknown[]} */
  let last = [];
  // Requests to read of pipes and iterators, and the members of dictionaries, which no property leads to.
  const inner = await tapped(["reader", "writer", "validator", "code"], async () => {
    await Promise.all([piped(), iterated()]);
    last = await later();
  });
  // Of instances only the class: their streams are still at work.
  const shared = inner.map((value) => (Object.getPrototypeOf(value) === Object.prototype ? value : Object.getPrototypeOf(value)));
  return [...first, ...last, ...kept, ...new Set(shared), ...places(), AsyncResource.prototype];
}

const ending = () => new ReadableStream({ start: (c) => (c.enqueue(1), c.close()) });
const piped = () => ending().pipeThrough(new TransformStream()).pipeTo(new WritableStream());
async function iterated() {
  for await (const _ of ending());
}
