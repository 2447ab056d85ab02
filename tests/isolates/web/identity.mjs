// Whatever the Host hands over is of the classes that the Worker knows. `given` is what the test's main module got from the Host.
import { streamOf, utf8 } from "./checks.mjs";

const plain = (value) => Object.getPrototypeOf(value) === Object.prototype;
const { subtle } = crypto;
const errorOf = async (make) => {
  try {
    await make();
  } catch (error) {
    return error;
  }
  return undefined;
};

export const checks = (given) => [
  ["env", () => plain(given.env), true],
  ["vars", () => [plain(given.env.V), Array.isArray(given.env.V.list), given.env.V.list instanceof Array, plain(given.env.V.list[0])], [true, true, true, true]],
  ["event and params", () => [plain(given.event), plain(given.event.params), given.event.params.list instanceof Array], [true, true, true]],
  ["step", () => [plain(given.step), given.step.do instanceof Function], [true, true]],
  ["a step's promise", () => given.promise instanceof Promise, true],
  ["a step's result", () => [plain(given.result), given.result.list instanceof Array, plain(given.result.list[0])], [true, true, true]],
  ["a step's error", () => [given.failure instanceof Error, given.failure.constructor === Error, given.failure.name], [true, true, "step_failed"]],
  ["a refusal of a step", () => given.refusal instanceof TypeError, true],
  ["text module", () => typeof given.text, "string"],
  ["bytes module", () => [given.bytes instanceof ArrayBuffer, given.bytes.constructor === ArrayBuffer], [true, true]],
  ["wasm module", () => given.wasm instanceof WebAssembly.Module, true],
  ["wasm instance", () => new WebAssembly.Instance(given.wasm) instanceof WebAssembly.Instance, true],
  ["namespace of import()", () => [given.namespace[Symbol.toStringTag], Object.isSealed(given.namespace)], ["Module", true]],
  ["an error of import()", async () => { const e = await errorOf(() => import("./nothing.mjs")); return [e instanceof Error, e.constructor === Error, e.name]; }, [true, true, "module_not_found"]],
  ["Binding", () => [plain(given.env.FLOW), given.env.FLOW.create instanceof Function], [true, true]],
  ["a Binding's promise and answer", async () => { const p = given.env.FLOW.get("x"); return [p instanceof Promise, plain(await p)]; }, [true, true]],
  ["an error of a Binding", async () => { const e = await errorOf(() => given.env.FLOW.create({ id: 1 })); return e instanceof TypeError; }, true],
  ["bytes of a body", async () => (await new Response("x").bytes()) instanceof Uint8Array, true],
  ["bytes are no subclass", async () => Object.getPrototypeOf(await new Response("x").bytes()) === Uint8Array.prototype, true],
  ["buffer of a body", async () => (await new Response("x").arrayBuffer()) instanceof ArrayBuffer, true],
  ["json of a body", async () => plain(await new Response('{"a":1}').json()), true],
  ["chunk of a body", async () => { const { value } = await new Response("x").body.getReader().read(); return [value instanceof Uint8Array, Object.getPrototypeOf(value) === Uint8Array.prototype]; }, [true, true]],
  ["chunk of a stream body", async () => (await new Response(streamOf(utf8("x"))).body.getReader().read()).value instanceof Uint8Array, true],
  ["chunk of an iterable body", async () => { const { value } = await new Response((async function* () { yield "x"; })()).body.getReader().read(); return Object.getPrototypeOf(value) === Uint8Array.prototype; }, true],
  ["body", () => new Response("x").body instanceof ReadableStream, true],
  ["headers", () => [new Response().headers instanceof Headers, new Request("https://a").headers instanceof Headers], [true, true]],
  ["signal", () => [new Request("https://a").signal instanceof AbortSignal, AbortSignal.timeout(1e6) instanceof AbortSignal, AbortSignal.any([]) instanceof AbortSignal], [true, true, true]],
  ["form", async () => (await new Response(new URLSearchParams("a=b")).formData()) instanceof FormData, true],
  ["encoded text", () => [utf8("x") instanceof Uint8Array, Object.getPrototypeOf(utf8("x")) === Uint8Array.prototype], [true, true]],
  ["encoder stream's chunk", async () => (await streamOf("x").pipeThrough(new TextEncoderStream()).getReader().read()).value instanceof Uint8Array, true],
  ["digest", async () => (await subtle.digest("SHA-256", utf8("x"))) instanceof ArrayBuffer, true],
  ["promise of crypto", () => { const p = subtle.digest("SHA-256", utf8("x")); return p instanceof Promise; }, true],
  ["error of crypto", async () => (await errorOf(() => subtle.digest("x", utf8("x")))) instanceof DOMException, true],
  ["error of URL", async () => { const e = await errorOf(() => new URL("x")); return [e instanceof TypeError, Object.prototype.toString.call(e)]; }, [true, "[object Error]"]],
  ["error of a too deep recursion", async () => { const f = () => f(); return (await errorOf(f)) instanceof RangeError; }, true],
  ["error of fetch", async () => (await errorOf(() => fetch("ftp://a"))) instanceof TypeError, true],
  ["promise of fetch", () => { const p = fetch("ftp://a"); p.catch(() => {}); return p instanceof Promise; }, true],
  ["iterators", () => [new Headers([["a", "b"]]).entries() instanceof Iterator, Array.isArray([...new Headers([["a", "b"]])][0])], [true, true]],
  ["an event", () => { let got; const t = new EventTarget(); t.addEventListener("x", (e) => { got = e; }); t.dispatchEvent(new CustomEvent("x")); return [got instanceof CustomEvent, got instanceof Event]; }, [true, true]],
  ["abort event", () => { let got; const c = new AbortController(); c.signal.onabort = (e) => { got = e; }; c.abort(); return got instanceof Event; }, true],
  ["clones", () => [structuredClone(new Map()) instanceof Map, structuredClone([]) instanceof Array, structuredClone(new Error()) instanceof Error], [true, true, true]],
  ["timers and console are functions", () => [setTimeout, queueMicrotask, console.log, fetch, structuredClone].every((f) => f instanceof Function), true],
  ["console", () => plain(console), true],
]; // prettier-ignore
