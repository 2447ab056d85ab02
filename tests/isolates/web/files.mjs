// Reading Blobs and compressing are native work that costs the thread, so these have a context of their own.
import { all, streamOf, text, throws, utf8 } from "./checks.mjs";

const through = (bytes, ...transforms) => new Response(transforms.reduce((stream, next) => stream.pipeThrough(next), streamOf(bytes))).bytes();
const round = async (format) => text(await through(utf8("hello ".repeat(1000)), new CompressionStream(format), new DecompressionStream(format))).length;
const form = new FormData();
form.append("f", new File([new Uint8Array([0, 13, 10, 255])], 'a"b.bin', { type: "x/y" }));
form.append("t", "v");

export default [
  ["Blob text", () => new Blob(["a", utf8("ü"), new Blob(["c"])]).text(), "aüc"],
  ["Blob arrayBuffer", async () => { const b = await new Blob(["ab"]).arrayBuffer(); return [b instanceof ArrayBuffer, b.byteLength]; }, [true, 2]],
  ["Blob bytes", async () => { const b = await new Blob(["ab"]).bytes(); return [b instanceof Uint8Array, ...b]; }, [true, 97, 98]],
  ["Blob stream", async () => text((await all(new Blob(["xyz"]).stream()))[0]), "xyz"],
  ["text of a slice", () => new Blob(["hello"]).slice(1, 3).text(), "el"],
  ["native line endings are left", () => new Blob(["a\r\nb"], { endings: "transparent" }).text(), "a\r\nb"],
  ["body of a Blob", () => new Response(new Blob(["blob"])).text(), "blob"],
  ["content type of a Blob", () => new Response(new Blob(["x"], { type: "a/b" })).headers.get("content-type"), "a/b"],
  ["Response.blob", async () => { const b = await new Response("x", { headers: { "content-type": "a/b" } }).blob(); return [await b.text(), b.type]; }, ["x", "a/b"]],
  ["files in a form", async () => {
    const got = await new Response(form).formData();
    const file = got.get("f");
    return [file instanceof File, file.name, file.type, [...(await file.bytes())], got.get("t")];
  }, [true, 'a"b.bin', "x/y", [0, 13, 10, 255], "v"]],
  ["gzip and back", () => round("gzip"), 6000],
  ["deflate and back", () => round("deflate"), 6000],
  ["deflate-raw and back", () => round("deflate-raw"), 6000],
  ["gzip makes smaller", async () => (await through(utf8("hello ".repeat(1000)), new CompressionStream("gzip"))).length < 200, true],
  ["gzip has its magic", async () => [...(await through(utf8("x"), new CompressionStream("gzip")))].slice(0, 2), [0x1f, 0x8b]],
  ["compressed chunks are plain bytes", async () => (await all(streamOf(utf8("x")).pipeThrough(new CompressionStream("gzip")))).every((chunk) => chunk instanceof Uint8Array), true],
  ["broken gzip", () => through(utf8("no gzip at all"), new DecompressionStream("gzip")), throws("TypeError")],
  ["unknown format", () => new CompressionStream("nothing"), throws("TypeError")],
  ["structuredClone of a Blob", async () => structuredClone(new Blob(["x"], { type: "a/b" })).text(), "x"],
  ["transfer of an ArrayBuffer", () => { const a = new ArrayBuffer(8); const b = structuredClone(a, { transfer: [a] }); return [a.byteLength, a.detached, b.byteLength]; }, [0, true, 8]],
  ["a buffer inside a value", () => { const a = new Uint8Array([1, 2]); const b = structuredClone({ a }, { transfer: [a.buffer] }); return [a.length, [...b.a]]; }, [0, [1, 2]]],
  ["transfer of a ReadableStream", async () => { const rs = streamOf("a", { n: 1 }); return all(structuredClone(rs, { transfer: [rs] })); }, ["a", { n: 1 }]],
  ["the original is locked", () => { const rs = streamOf("a"); structuredClone(rs, { transfer: [rs] }); return rs.locked; }, true],
  ["chunks are clones", async () => { const chunk = { n: 1 }; const rs = streamOf(chunk); const [got] = await all(structuredClone(rs, { transfer: [rs] })); return got !== chunk && got.n === 1; }, true],
  ["a chunk that cannot be cloned", () => { const rs = streamOf(() => {}); return all(structuredClone(rs, { transfer: [rs] })); }, throws("DataCloneError", DOMException)],
  ["an error of the original", () => { const rs = new ReadableStream({ pull: () => Promise.reject(new RangeError("x")) }); return all(structuredClone(rs, { transfer: [rs] })); }, throws("RangeError")],
  ["cancel reaches the original", async () => { let why; const rs = new ReadableStream({ cancel: (reason) => { why = reason; } }); await structuredClone(rs, { transfer: [rs] }).cancel("done"); return why; }, "done"],
  ["back-pressure reaches the original", async () => {
    let pulled = 0;
    const rs = new ReadableStream({ pull(c) { pulled++; c.enqueue(pulled); } }, { highWaterMark: 0 });
    const reader = structuredClone(rs, { transfer: [rs] }).getReader();
    await reader.read(); await reader.read();
    return pulled;
  }, 2],
  ["a byte stream becomes a default one", async () => {
    const rs = new ReadableStream({ type: "bytes", start(c) { c.enqueue(utf8("x")); c.close(); } });
    return text((await all(structuredClone(rs, { transfer: [rs] })))[0]);
  }, "x"],
  ["transfer inside a value", async () => { const body = streamOf("a"); const got = structuredClone({ list: [body], n: 1 }, { transfer: [body] }); return [got.n, await all(got.list[0])]; }, [1, ["a"]]],
  ["transfer of a WritableStream", async () => {
    const got = [];
    const ws = new WritableStream({ write: (chunk) => void got.push(chunk), close: () => void got.push("closed") });
    const writer = structuredClone(ws, { transfer: [ws] }).getWriter();
    await writer.write("a"); await writer.write({ n: 1 }); await writer.close();
    return got;
  }, ["a", { n: 1 }, "closed"]],
  ["abort reaches the original", async () => { let why; const ws = new WritableStream({ abort: (reason) => { why = reason; } }); await structuredClone(ws, { transfer: [ws] }).abort("stop"); return why; }, "stop"],
  ["an error of the original sink", async () => {
    const ws = new WritableStream({ write: () => Promise.reject(new RangeError("x")) });
    const writer = structuredClone(ws, { transfer: [ws] }).getWriter();
    writer.closed.catch(() => {});
    await writer.write("a");
  }, throws("RangeError")],
  ["transfer of a TransformStream", async () => {
    const ts = new TransformStream({ transform: (chunk, c) => c.enqueue(chunk.toUpperCase()) });
    const { readable, writable } = structuredClone(ts, { transfer: [ts] });
    const writer = writable.getWriter(); void writer.write("a"); void writer.close();
    return all(readable);
  }, ["A"]],
  ["classes of transferred streams", () => {
    const list = [new ReadableStream(), new WritableStream(), new TransformStream()];
    const got = structuredClone(list, { transfer: list });
    return [got[0] instanceof ReadableStream, got[1] instanceof WritableStream, got[2] instanceof TransformStream, got[0].constructor === ReadableStream, Object.keys(got[0]).length];
  }, [true, true, true, true, 0]],
  ["a transferred stream as a body", () => { const rs = streamOf(utf8("x")); return new Response(structuredClone(rs, { transfer: [rs] })).text(); }, "x"],
  ["transferred twice", async () => { const rs = streamOf("a"); const once = structuredClone(rs, { transfer: [rs] }); return all(structuredClone(once, { transfer: [once] })); }, ["a"]],
  ["a locked stream", () => { const rs = new ReadableStream(); rs.getReader(); structuredClone(rs, { transfer: [rs] }); }, throws("DataCloneError", DOMException)],
  ["a locked WritableStream", () => { const ws = new WritableStream(); ws.getWriter(); structuredClone(ws, { transfer: [ws] }); }, throws("DataCloneError", DOMException)],
  ["half of a TransformStream is locked", () => { const ts = new TransformStream(); ts.readable.getReader(); structuredClone(ts, { transfer: [ts] }); }, throws("DataCloneError", DOMException)],
  ["a stream that is not transferred", () => structuredClone(new ReadableStream()), throws("DataCloneError", DOMException)],
  ["a stream twice in the list", () => { const rs = new ReadableStream(); structuredClone(rs, { transfer: [rs, rs] }); }, throws("DataCloneError", DOMException)],
  ["a failed clone takes nothing", async () => { const rs = streamOf("a"); try { structuredClone({ rs, f() {} }, { transfer: [rs] }); } catch { return [rs.locked, await all(rs)]; } }, [false, ["a"]]],
]; // prettier-ignore
