import { all, streamOf, text, throws, utf8 } from "./checks.mjs";

const post = (body, more = {}) => new Request("https://a/", { method: "POST", body, ...more });
const headers = (init, change = () => {}) => {
  const made = new Headers(init);
  change(made);
  return [...made];
};
const typeOf = (body) => new Response(body).headers.get("content-type");
const bytes = new Uint8Array([1, 2, 3]);
async function* parts() {
  yield "a";
  yield utf8("b");
  yield new Uint8Array(0);
  yield new DataView(utf8("xcx").buffer, 1, 1);
  yield utf8("d").buffer;
  yield new Uint16Array([0x6665]);
}
const form = (...entries) => {
  const made = new FormData();
  for (const entry of entries) made.append(...entry);
  return made;
};

export default [
  ["headers are sorted and lower-case", () => headers({ B: "2", a: "1" }), [["a", "1"], ["b", "2"]]],
  ["headers are joined", () => headers([["a", "1"], ["A", "2"]]), [["a", "1, 2"]]],
  ["set-cookie is not joined", () => headers([["set-cookie", "a=1"], ["set-cookie", "b=2"]]), [["set-cookie", "a=1"], ["set-cookie", "b=2"]]],
  ["getSetCookie", () => new Headers([["set-cookie", "a=1"], ["Set-Cookie", "b=2"]]).getSetCookie(), ["a=1", "b=2"]],
  ["set replaces", () => headers({ a: "1" }, (h) => h.set("A", "2")), [["a", "2"]]],
  ["append adds", () => headers({ a: "1" }, (h) => h.append("a", "2")), [["a", "1, 2"]]],
  ["delete and has", () => { const h = new Headers({ a: "1" }); h.delete("A"); return [h.has("a"), h.get("a")]; }, [false, null]],
  ["values are trimmed", () => new Headers({ a: "  x\t" }).get("a"), "x"],
  ["bad header name", () => new Headers({ "a b": "1" }), throws("TypeError")],
  ["bad header value", () => new Headers({ a: "x\ny" }), throws("TypeError")],
  ["headers of headers", () => headers(new Headers({ a: "1" })), [["a", "1"]]],
  ["bad pairs", () => new Headers([["a"]]), throws("TypeError")],
  ["headers forEach", () => { const got = []; new Headers({ a: "1" }).forEach((v, k) => got.push(k, v)); return got; }, ["a", "1"]],
  ["request defaults", () => { const r = new Request("https://a/b"); return [r.method, r.url, r.redirect, r.body, r.bodyUsed]; }, ["GET", "https://a/b", "follow", null, false]],
  ["method is normalised", () => [new Request("https://a", { method: "post" }).method, new Request("https://a", { method: "patch" }).method], ["POST", "patch"]],
  ["bad method", () => new Request("https://a", { method: "TRACE" }), throws("TypeError")],
  ["GET with a body", () => new Request("https://a", { body: "x" }), throws("TypeError")],
  ["relative request", () => new Request("/x"), throws("TypeError")],
  ["credentials in a URL", () => new Request("https://u:p@a/"), throws("TypeError")],
  ["a fragment stays in url", () => new Request("https://a/#x").url, "https://a/#x"],
  ["request of a URL", () => new Request(new URL("https://a/x")).url, "https://a/x"],
  ["request of a request", async () => { const r = new Request(post("x", { headers: { h: "1" } }), { headers: { h: "2" } }); return [r.method, r.headers.get("h"), await r.text()]; }, ["POST", "2", "x"]],
  ["a request's body moves", () => { const r = post("x"); new Request(r); return r.bodyUsed; }, true],
  ["clone of a request", async () => { const r = post("x"); const c = r.clone(); return [await r.text(), await c.text(), c.method]; }, ["x", "x", "POST"]],
  ["clone of a used body", async () => { const r = post("x"); await r.text(); r.clone(); }, throws("TypeError")],
  ["signal of a request follows", () => { const c = new AbortController(); const r = new Request("https://a", { signal: c.signal }); c.abort("why"); return [r.signal.aborted, r.signal.reason]; }, [true, "why"]],
  ["a stream needs duplex", () => post(streamOf(utf8("x"))), throws("TypeError")],
  ["a stream as request body", () => post(streamOf(utf8("x"), utf8("y")), { duplex: "half" }).text(), "xy"],
  ["an async generator as request body", () => post(parts(), { duplex: "half" }).text(), "abcdef"],
  ["an async generator as response body", () => new Response(parts()).text(), "abcdef"],
  ["an async iterable as response body", () => new Response({ [Symbol.asyncIterator]: parts }).text(), "abcdef"],
  ["each step of an iterable is read when wanted", async () => {
    let steps = 0;
    async function* endless() { for (;;) { steps++; yield "x"; } }
    const reader = new Response(endless()).body.getReader();
    await reader.read(); await reader.read(); await reader.cancel();
    return steps <= 3;
  }, true],
  ["an iterable is ended when its reader leaves", async () => {
    let ended = false;
    async function* careful() { try { for (;;) yield "x"; } finally { ended = true; } }
    const { body } = new Response(careful());
    const reader = body.getReader(); await reader.read(); await reader.cancel();
    return ended;
  }, true],
  ["an iterable that throws", () => new Response((async function* () { yield "x"; throw new RangeError("no"); })()).text(), throws("RangeError")],
  ["an iterable of what is no body", () => new Response((async function* () { yield 1; })()).text(), throws("TypeError")],
  ["status of a response", () => { const r = new Response("x", { status: 201, statusText: "Made" }); return [r.status, r.statusText, r.ok]; }, [201, "Made", true]],
  ["not ok", () => new Response("x", { status: 404 }).ok, false],
  ["bad status", () => new Response("x", { status: 99 }), throws("RangeError")],
  ["a body for 204", () => new Response("x", { status: 204 }), throws("TypeError")],
  ["no body", async () => { const r = new Response(); return [r.body, await r.text()]; }, [null, ""]],
  ["Response.json", async () => { const r = Response.json({ a: 1 }, { status: 202 }); return [r.status, r.headers.get("content-type"), await r.text()]; }, [202, "application/json", '{"a":1}']],
  ["Response.json of undefined", () => Response.json(undefined), throws("TypeError")],
  ["Response.redirect", () => { const r = Response.redirect("https://b/", 301); return [r.status, r.headers.get("location")]; }, [301, "https://b/"]],
  ["bad redirect", () => Response.redirect("https://b/", 200), throws("RangeError")],
  ["Response.error", () => [Response.error().type, Response.error().status], ["error", 0]],
  ["clone of a response", async () => { const r = new Response("x", { headers: { a: "1" } }); const c = r.clone(); return [await c.text(), await r.text(), c.headers.get("a")]; }, ["x", "x", "1"]],
  ["bodyUsed", async () => { const r = new Response("x"); const before = r.bodyUsed; await r.text(); return [before, r.bodyUsed]; }, [false, true]],
  ["a body is read once", async () => { const r = new Response("x"); await r.text(); await r.text(); }, throws("TypeError")],
  ["a locked body", () => { const r = new Response("x"); r.body.getReader(); return r.text(); }, throws("TypeError")],
  ["content type of text", () => typeOf("x"), "text/plain;charset=UTF-8"],
  ["content type of params", () => typeOf(new URLSearchParams("a=b")), "application/x-www-form-urlencoded;charset=UTF-8"],
  ["content type of bytes", () => typeOf(bytes), null],
  ["content type of a form", () => typeOf(form(["a", "b"])).startsWith("multipart/form-data; boundary="), true],
  ["a given content type stays", () => new Response("x", { headers: { "content-type": "a/b" } }).headers.get("content-type"), "a/b"],
  ["text", () => new Response(utf8("grüß")).text(), "grüß"],
  ["text drops a BOM", () => new Response(new Uint8Array([0xef, 0xbb, 0xbf, 0x61])).text(), "a"],
  ["json", () => new Response('{"a":[1]}').json(), { a: [1] }],
  ["bad json", () => new Response("{").json(), throws("SyntaxError")],
  ["bytes", () => new Response("ab").bytes(), [97, 98]],
  ["arrayBuffer", async () => { const b = await new Response(bytes).arrayBuffer(); return [b instanceof ArrayBuffer, b.byteLength]; }, [true, 3]],
  ["a view's part", () => new Response(bytes.subarray(1)).bytes(), [2, 3]],
  ["a body is a copy", async () => { const own = new Uint8Array([1]); const r = new Response(own); own[0] = 2; return r.bytes(); }, [1]],
  ["body as a stream", async () => text((await all(new Response("xyz").body))[0]), "xyz"],
  ["urlencoded form", async () => [...(await post("a=1&b=%C3%BC+c", { headers: { "content-type": "application/x-www-form-urlencoded" } }).formData())], [["a", "1"], ["b", "ü c"]]],
  ["multipart form", async () => [...(await post(form(["a", "1"], ["b", "x\r\ny"], ['q"n', "z"])).formData())], [["a", "1"], ["b", "x\r\ny"], ['q"n', "z"]]],
  ["empty multipart form", async () => [...(await post(form()).formData())], []],
  ["form without a type", () => new Response("a=b").formData(), throws("TypeError")],
  ["torn multipart form", () => new Response("--x\r\nbroken", { headers: { "content-type": "multipart/form-data; boundary=x" } }).formData(), throws("TypeError")],
  ["form get and getAll", () => { const f = form(["a", "1"], ["a", "2"]); return [f.get("a"), f.getAll("a"), f.get("b"), f.has("a")]; }, ["1", ["1", "2"], null, true]],
  ["form set and delete", () => { const f = form(["a", "1"], ["b", "2"], ["a", "3"]); f.set("a", "x"); f.delete("b"); return [...f]; }, [["a", "x"]]],
  ["form iteration", () => { const f = form(["a", "1"]); return [[...f.keys()], [...f.values()], [...f.entries()]]; }, [["a"], ["1"], [["a", "1"]]]],
  ["a Blob in a form is a File", () => { const v = form(["a", new Blob(["x"]), "name.txt"]).get("a"); return [v instanceof File, v.name]; }, [true, "name.txt"]],
  ["a Blob's default name", () => form(["a", new Blob(["x"])]).get("a").name, "blob"],
  ["file fields keep their type", () => form(["a", new File(["x"], "n", { type: "a/b" })]).get("a").type, "a/b"],
  ["Blob size and type", () => { const b = new Blob(["ab", bytes], { type: "A/B" }); return [b.size, b.type]; }, [5, "a/b"]],
  ["Blob slice", () => { const s = new Blob(["hello"]).slice(1, 3, "x/y"); return [s.size, s.type]; }, [2, "x/y"]],
  ["negative slice", () => new Blob(["hello"]).slice(-2).size, 2],
  ["File", () => { const f = new File(["x"], "n", { lastModified: 7 }); return [f.name, f.lastModified, f.size, f instanceof Blob]; }, ["n", 7, 1, true]],
  ["File without a name", () => new File(["x"]), throws("TypeError")],
  ["Blob of Blobs", () => new Blob([new Blob(["a"]), new Blob(["bc"])]).size, 3],
  ["fetch of another scheme", () => fetch("ftp://a/"), throws("TypeError")],
  ["fetch of a relative URL", () => fetch("/x"), throws("TypeError")],
  ["fetch that was aborted", () => fetch("https://a/", { signal: AbortSignal.abort() }), throws("AbortError", DOMException)],
  ["instanceof", () => [new Request("https://a") instanceof Request, new Response() instanceof Response, new Response().headers instanceof Headers], [true, true, true]],
  ["subclasses", () => { class R extends Response { own = 1; } const r = new R("x"); return [r instanceof R, r.own]; }, [true, 1]],
  ["a foreign this", () => Response.prototype.text.call({}), throws("TypeError")],
]; // prettier-ignore
