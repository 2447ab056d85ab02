import { all, streamOf, text, throws, utf8 } from "./checks.mjs";

const collect = () => {
  const got = [];
  const stream = new WritableStream({
    write: (chunk) => void got.push(chunk),
    close: () => void got.push("closed"),
    abort: (reason) => void got.push(`aborted ${reason}`),
  });
  return { got, stream };
};
const upper = () => new TransformStream({ transform: (chunk, controller) => controller.enqueue(chunk.toUpperCase()), flush: (controller) => controller.enqueue("end") });
const bytes = (...chunks) => new ReadableStream({ type: "bytes", start(c) { for (const chunk of chunks) c.enqueue(chunk); c.close(); } });
const turn = () => new Promise((resolve) => setTimeout(resolve, 1));
// Each chunk takes a turn of the event loop: else a pipe of it would leave nothing else its turn.
const endless = (highWaterMark = 0) => { const state = { pulled: 0, cancelled: undefined };
  state.stream = new ReadableStream({ async pull(c) { c.enqueue(++state.pulled); await turn(); }, cancel(reason) { state.cancelled = reason; } }, { highWaterMark });
  return state; }; // prettier-ignore

export default [
  ["chunks in order", () => all(streamOf(1, 2, 3)), [1, 2, 3]],
  ["read to the end", async () => { const r = streamOf("a").getReader(); return [await r.read(), await r.read(), await r.closed]; }, [{ done: false, value: "a" }, { done: true, value: undefined }, undefined]],
  ["locked", () => { const s = streamOf(); const r = s.getReader(); const before = s.locked; r.releaseLock(); return [before, s.locked]; }, [true, false]],
  ["two readers", () => { const s = streamOf(); s.getReader(); s.getReader(); }, throws("TypeError")],
  ["read after release", () => { const r = streamOf().getReader(); r.releaseLock(); return r.read(); }, throws("TypeError")],
  ["nothing is pulled at mark 0", async () => { const s = endless(); await turn(); return s.pulled; }, 0],
  ["as much as the mark is pulled", async () => { const s = endless(3); while (s.pulled < 3) await turn(); await turn(); await turn(); return s.pulled; }, 3],
  ["cancel", async () => { const s = endless(); await s.stream.cancel("why"); return s.cancelled; }, "why"],
  ["cancel of a locked stream", () => { const s = streamOf(); s.getReader(); return s.cancel(); }, throws("TypeError")],
  ["leaving a loop cancels", async () => { const s = endless(); for await (const _ of s.stream) break; return [s.stream.locked, "cancelled" in s]; }, [false, true]],
  ["preventCancel", async () => { const s = endless(); for await (const n of s.stream.values({ preventCancel: true })) if (n === 2) break; return [(await s.stream.getReader().read()).value, s.cancelled]; }, [3, undefined]],
  ["an error of pull", () => all(new ReadableStream({ pull: () => Promise.reject(new RangeError("x")) })), throws("RangeError")],
  ["an error of start", () => new ReadableStream({ start() { throw new RangeError("x"); } }), throws("RangeError")],
  ["controller.error", () => all(new ReadableStream({ start: (c) => c.error(new EvalError("x")) })), throws("EvalError")],
  ["enqueue after close", () => new ReadableStream({ start(c) { c.close(); c.enqueue(1); } }), throws("TypeError")],
  ["desiredSize", () => { let size; new ReadableStream({ start(c) { c.enqueue(1); size = c.desiredSize; } }, { highWaterMark: 3 }); return size; }, 2],
  ["a size of one's own", () => { let size; new ReadableStream({ start(c) { c.enqueue("abc"); size = c.desiredSize; } }, { highWaterMark: 10, size: (chunk) => chunk.length }); return size; }, 7],
  ["ByteLengthQueuingStrategy", () => { let size; new ReadableStream({ start(c) { c.enqueue(new Uint8Array(4)); size = c.desiredSize; } }, new ByteLengthQueuingStrategy({ highWaterMark: 10 })); return size; }, 6],
  ["CountQueuingStrategy", () => [new CountQueuingStrategy({ highWaterMark: 5 }).highWaterMark, new CountQueuingStrategy({ highWaterMark: 5 }).size("x")], [5, 1]],
  ["bad mark", () => new ReadableStream({}, { highWaterMark: -1 }), throws("RangeError")],
  ["from an array", () => all(ReadableStream.from([1, 2])), [1, 2]],
  ["from a generator", () => all(ReadableStream.from((function* () { yield 1; })())), [1]],
  ["from an async generator", () => all(ReadableStream.from((async function* () { yield 1; yield 2; })())), [1, 2]],
  ["from nothing iterable", () => ReadableStream.from(1), throws("TypeError")],
  ["tee", async () => { const [a, b] = streamOf(1, 2).tee(); return [await all(a), await all(b)]; }, [[1, 2], [1, 2]]],
  ["tee locks", () => { const s = streamOf(); s.tee(); return s.locked; }, true],
  ["tee cancels with both reasons", async () => { const s = endless(); const [a, b] = s.stream.tee(); const both = [a.cancel("x"), b.cancel("y")]; await Promise.all(both); return s.cancelled; }, ["x", "y"]],
  ["tee of bytes", async () => { const [a, b] = bytes(utf8("xy")).tee(); return [text((await all(a))[0]), text((await all(b))[0])]; }, ["xy", "xy"]],
  ["BYOB read", async () => { const r = bytes(utf8("abc")).getReader({ mode: "byob" }); const { value } = await r.read(new Uint8Array(2)); return [value.length, text(value)]; }, [2, "ab"]],
  ["BYOB rest and end", async () => { const r = bytes(utf8("abc")).getReader({ mode: "byob" }); await r.read(new Uint8Array(2)); const rest = await r.read(new Uint8Array(2)); const end = await r.read(new Uint8Array(2)); return [text(rest.value), end.done, end.value.length]; }, ["c", true, 0]],
  ["BYOB takes the buffer", async () => { const view = new Uint8Array(2); await bytes(utf8("a")).getReader({ mode: "byob" }).read(view); return view.byteLength; }, 0],
  ["BYOB with a minimum", async () => { const r = bytes(utf8("ab"), utf8("cd")).getReader({ mode: "byob" }); return text((await r.read(new Uint8Array(8), { min: 3 })).value); }, "abcd"],
  ["BYOB of another view", async () => (await bytes(new Uint8Array([1, 0, 2, 0])).getReader({ mode: "byob" }).read(new Uint16Array(2))).value, [1, 0, 2, 0]],
  ["BYOB request", async () => { const s = new ReadableStream({ type: "bytes", pull(c) { const { view } = c.byobRequest; view[0] = 7; c.byobRequest.respond(1); } }); return (await s.getReader({ mode: "byob" }).read(new Uint8Array(4))).value; }, [7]],
  ["respondWithNewView", async () => { const s = new ReadableStream({ type: "bytes", pull(c) { const { view } = c.byobRequest; view[0] = 9; c.byobRequest.respondWithNewView(new Uint8Array(view.buffer, 0, 1)); } }); return (await s.getReader({ mode: "byob" }).read(new Uint8Array(4))).value; }, [9]],
  ["autoAllocateChunkSize", async () => { const s = new ReadableStream({ type: "bytes", autoAllocateChunkSize: 4, pull(c) { c.byobRequest.view[0] = 5; c.byobRequest.respond(1); } }); return (await s.getReader().read()).value; }, [5]],
  ["BYOB of a default stream", () => streamOf().getReader({ mode: "byob" }), throws("TypeError")],
  ["BYOB into an empty view", () => bytes().getReader({ mode: "byob" }).read(new Uint8Array(0)), throws("TypeError")],
  ["write and close", async () => { const { got, stream } = collect(); const w = stream.getWriter(); await w.write(1); await w.close(); return got; }, [1, "closed"]],
  ["abort", async () => { const { got, stream } = collect(); await stream.abort("why"); return got; }, ["aborted why"]],
  ["write after close", async () => { const w = collect().stream.getWriter(); await w.close(); await w.write(1); }, throws("TypeError")],
  ["an error of write", async () => { const w = new WritableStream({ write() { throw new RangeError("x"); } }).getWriter(); w.closed.catch(() => {}); await w.write(1); }, throws("RangeError")],
  ["later writes fail too", async () => { const w = new WritableStream({ write() { throw new RangeError("x"); } }).getWriter(); w.closed.catch(() => {}); w.ready.catch(() => {}); await w.write(1).catch(() => {}); await w.write(2); }, throws("RangeError")],
  ["writer.desiredSize", () => { const w = new WritableStream({}, { highWaterMark: 3 }).getWriter(); void w.write(1); return w.desiredSize; }, 2],
  ["back-pressure of ready", async () => { let go; const w = new WritableStream({ write: () => new Promise((r) => { go = r; }) }).getWriter(); void w.write(1); const early = await Promise.race([w.ready.then(() => "ready"), turn().then(() => "waits")]); go(); await w.ready; return early; }, "waits"],
  ["signal of a sink", async () => { let signal; const s = new WritableStream({ start: (c) => void (signal = c.signal) }); await s.abort("r"); return [signal.aborted, signal.reason]; }, [true, "r"]],
  ["two writers", () => { const { stream } = collect(); stream.getWriter(); stream.getWriter(); }, throws("TypeError")],
  ["transform and flush", () => all(streamOf("a", "b").pipeThrough(upper())), ["A", "B", "end"]],
  ["identity", () => all(streamOf(1, 2).pipeThrough(new TransformStream())), [1, 2]],
  ["an error of transform", () => all(streamOf(1).pipeThrough(new TransformStream({ transform() { throw new RangeError("x"); } }))), throws("RangeError")],
  ["terminate", () => all(streamOf(1, 2, 3).pipeThrough(new TransformStream({ transform(chunk, c) { c.enqueue(chunk); if (chunk === 2) c.terminate(); } }))), [1, 2]],
  ["cancel of a transformer", async () => { let why; const t = new TransformStream({ cancel: (reason) => { why = reason; } }); await t.readable.cancel("r"); return why; }, "r"],
  ["pipeTo", async () => { const { got, stream } = collect(); await streamOf(1, 2).pipeTo(stream); return got; }, [1, 2, "closed"]],
  ["pipeTo with preventClose", async () => { const { got, stream } = collect(); await streamOf(1).pipeTo(stream, { preventClose: true }); await stream.getWriter().write(2); return got; }, [1, 2]],
  ["pipeTo of an erring source", async () => { const { got, stream } = collect(); await new ReadableStream({ pull: () => Promise.reject("e") }).pipeTo(stream).catch(() => {}); return got; }, ["aborted e"]],
  ["preventAbort", async () => { const { got, stream } = collect(); await new ReadableStream({ pull: () => Promise.reject("e") }).pipeTo(stream, { preventAbort: true }).catch(() => {}); return got; }, []],
  ["pipeTo of an erring sink", async () => { const s = endless(); await s.stream.pipeTo(new WritableStream({ write: () => Promise.reject("w") })).catch(() => {}); return s.cancelled; }, "w"],
  ["pipeTo with an aborted signal", () => streamOf(1).pipeTo(collect().stream, { signal: AbortSignal.abort() }), throws("AbortError", DOMException)],
  ["pipeTo that is aborted", async () => { const c = new AbortController(); const s = endless(); const { got, stream } = collect(); const done = s.stream.pipeTo(stream, { signal: c.signal }).catch((error) => error); await turn(); c.abort("stop"); return [await done, s.cancelled, got.at(-1)]; }, ["stop", "stop", "aborted stop"]],
  ["pipeTo a locked stream", () => { const { stream } = collect(); stream.getWriter(); return streamOf().pipeTo(stream); }, throws("TypeError")],
  ["pipeThrough a pair", () => { const t = new TransformStream(); return all(streamOf(1).pipeThrough({ readable: t.readable, writable: t.writable })); }, [1]],
  ["TextEncoderStream", async () => text((await all(streamOf("ü").pipeThrough(new TextEncoderStream())))[0]), "ü"],
  ["TextDecoderStream over a cut character", async () => (await all(streamOf(utf8("ü").subarray(0, 1), utf8("ü").subarray(1)).pipeThrough(new TextDecoderStream()))).join(""), "ü"],
  ["fatal TextDecoderStream", () => all(streamOf(new Uint8Array([255])).pipeThrough(new TextDecoderStream("utf-8", { fatal: true }))), throws("TypeError")],
  ["a response's body in parts", async () => { const r = new Response(streamOf(utf8("a"), utf8("b"))).body.getReader(); return [text((await r.read()).value), text((await r.read()).value)]; }, ["a", "b"]],
]; // prettier-ignore
