import { throws } from "./checks.mjs";

const later = (ms = 1) => new Promise((resolve) => setTimeout(resolve, ms));
const heard = (change) => {
  const target = new EventTarget();
  const got = [];
  change(target, got);
  return got;
};
const fire = (target, type = "x", init = undefined) => target.dispatchEvent(new Event(type, init));

export default [
  ["a listener", () => heard((t, got) => { t.addEventListener("x", (e) => got.push(e.type)); fire(t); fire(t, "y"); }), ["x"]],
  ["the same listener once", () => heard((t, got) => { const f = () => got.push(1); t.addEventListener("x", f); t.addEventListener("x", f); fire(t); }), [1]],
  ["removeEventListener", () => heard((t, got) => { const f = () => got.push(1); t.addEventListener("x", f); t.removeEventListener("x", f); fire(t); }), []],
  ["once", () => heard((t, got) => { t.addEventListener("x", () => got.push(1), { once: true }); fire(t); fire(t); }), [1]],
  ["order of listeners", () => heard((t, got) => { t.addEventListener("x", () => got.push(1)); t.addEventListener("x", () => got.push(2)); fire(t); }), [1, 2]],
  ["stopImmediatePropagation", () => heard((t, got) => { t.addEventListener("x", (e) => { got.push(1); e.stopImmediatePropagation(); }); t.addEventListener("x", () => got.push(2)); fire(t); }), [1]],
  ["preventDefault", () => heard((t, got) => { t.addEventListener("x", (e) => e.preventDefault()); got.push(fire(t, "x", { cancelable: true }), fire(t)); }), [false, true]],
  ["passive listeners prevent nothing", () => heard((t, got) => { t.addEventListener("x", (e) => e.preventDefault(), { passive: true }); got.push(fire(t, "x", { cancelable: true })); }), [true]],
  ["handleEvent", () => heard((t, got) => { t.addEventListener("x", { handleEvent(e) { got.push(this !== undefined, e.type); } }); fire(t); }), [true, "x"]],
  ["this of a listener", () => heard((t, got) => { t.addEventListener("x", function () { got.push(this === t); }); fire(t); }), [true]],
  ["a null listener", () => heard((t) => t.addEventListener("x", null)), []],
  ["a listener with a signal", () => heard((t, got) => { const c = new AbortController(); t.addEventListener("x", () => got.push(1), { signal: c.signal }); fire(t); c.abort(); fire(t); }), [1]],
  ["a listener with an aborted signal", () => heard((t, got) => { t.addEventListener("x", () => got.push(1), { signal: AbortSignal.abort() }); fire(t); }), []],
  ["capture is part of a listener's name", () => heard((t, got) => { const f = () => got.push(1); t.addEventListener("x", f, true); t.removeEventListener("x", f); fire(t); }), [1]],
  ["properties of an event", () => { const e = new Event("x", { bubbles: true, cancelable: true, composed: true }); return [e.type, e.bubbles, e.cancelable, e.composed, e.defaultPrevented, e.isTrusted]; }, ["x", true, true, true, false, false]],
  ["target of an event", () => heard((t, got) => { t.addEventListener("x", (e) => got.push(e.target === t, e.currentTarget === t, e.eventPhase)); fire(t); }), [true, true, 2]],
  ["composedPath", () => heard((t, got) => { t.addEventListener("x", (e) => got.push(e.composedPath()[0] === t)); fire(t); }), [true]],
  ["an event at work is not sent again", () => { const t = new EventTarget(); const e = new Event("x"); let threw = false; t.addEventListener("x", () => { try { t.dispatchEvent(e); } catch { threw = true; } }); t.dispatchEvent(e); return threw; }, true],
  ["dispatch of what is no event", () => new EventTarget().dispatchEvent({}), throws("TypeError")],
  ["an event without a type", () => new Event(), throws("TypeError")],
  ["CustomEvent", () => { const e = new CustomEvent("x", { detail: { a: 1 } }); return [e.detail, e instanceof Event]; }, [{ a: 1 }, true]],
  ["subclasses of EventTarget", () => { class T extends EventTarget { n = 0; } const t = new T(); t.addEventListener("x", () => t.n++); fire(t); return t.n; }, 1],
  ["timeStamp", () => new Event("x").timeStamp > 0, true],
  ["abort", () => { const c = new AbortController(); const got = []; c.signal.onabort = () => got.push("on"); c.signal.addEventListener("abort", () => got.push("listener")); c.abort(); c.abort(); return [c.signal.aborted, got.sort(), c.signal.reason.name]; }, [true, ["listener", "on"], "AbortError"]],
  ["reason of an abort", () => { const c = new AbortController(); c.abort("why"); return c.signal.reason; }, "why"],
  ["throwIfAborted", () => AbortSignal.abort(new RangeError("x")).throwIfAborted(), throws("RangeError")],
  ["AbortSignal.abort", () => { const s = AbortSignal.abort(); return [s.aborted, s.reason instanceof DOMException]; }, [true, true]],
  ["no constructor", () => new AbortSignal(), throws("TypeError")],
  ["AbortSignal.timeout", async () => { const s = AbortSignal.timeout(2); const before = s.aborted; await new Promise((r) => s.addEventListener("abort", r)); return [before, s.aborted, s.reason.name]; }, [false, true, "TimeoutError"]],
  ["a bad timeout", () => AbortSignal.timeout(-1), throws("TypeError")],
  ["AbortSignal.any", () => { const a = new AbortController(); const b = new AbortController(); const s = AbortSignal.any([a.signal, b.signal]); const before = s.aborted; b.abort("b"); a.abort("a"); return [before, s.aborted, s.reason]; }, [false, true, "b"]],
  ["any of an aborted one", () => { const s = AbortSignal.any([new AbortController().signal, AbortSignal.abort("x")]); return [s.aborted, s.reason]; }, [true, "x"]],
  ["any of any", () => { const a = new AbortController(); const s = AbortSignal.any([AbortSignal.any([a.signal])]); a.abort(1); return s.reason; }, 1],
  ["any of nothing", () => AbortSignal.any([]).aborted, false],
  ["any of what is no signal", () => AbortSignal.any([{}]), throws("TypeError")],
  ["setTimeout", async () => { const got = []; setTimeout((...args) => got.push(...args), 1, "a", 2); await later(10); return got; }, ["a", 2]],
  ["order of timers", async () => { const got = []; setTimeout(() => got.push(2), 8); setTimeout(() => got.push(1), 1); await later(20); return got; }, [1, 2]],
  ["clearTimeout", async () => { let ran = false; clearTimeout(setTimeout(() => { ran = true; }, 1)); await later(5); return ran; }, false],
  ["setInterval", async () => { let n = 0; await new Promise((resolve) => { const id = setInterval(() => { if (++n === 3) { clearInterval(id); resolve(); } }, 1); }); await later(5); return n; }, 3],
  ["clearInterval clears timeouts", async () => { let ran = false; clearInterval(setTimeout(() => { ran = true; }, 1)); await later(5); return ran; }, false],
  ["timers give numbers", () => { const id = setTimeout(() => {}, 1); clearTimeout(id); return typeof id; }, "number"],
  ["clearing nothing", () => [clearTimeout(), clearTimeout(1e9), clearTimeout("x")], [undefined, undefined, undefined]],
  ["a timer of text", () => setTimeout("1"), throws("TypeError")],
  ["this of a timer", async () => new Promise((resolve) => setTimeout(function () { resolve(this === undefined || this === globalThis); })), true],
  ["microtasks come first", async () => { const got = []; setTimeout(() => got.push("timer")); queueMicrotask(() => got.push("micro")); Promise.resolve().then(() => got.push("promise")); got.push("sync"); await later(5); return got; }, ["sync", "micro", "promise", "timer"]],
  ["queueMicrotask of no function", () => queueMicrotask(1), throws("TypeError")],
  ["performance.now goes on", async () => { const before = performance.now(); await later(5); return performance.now() - before >= 3; }, true],
  ["timeOrigin", () => Math.abs(performance.timeOrigin + performance.now() - Date.now()) < 60_000, true],
  ["DOMException", () => { const e = new DOMException("m", "NotFoundError"); return [e.name, e.message, e.code, e instanceof Error, `${e}`]; }, ["NotFoundError", "m", 8, true, "NotFoundError: m"]],
  ["using", () => { const got = []; { using a = { [Symbol.dispose]: () => got.push("a") }; using b = { [Symbol.dispose]: () => got.push("b") }; got.push("body"); } return got; }, ["body", "b", "a"]],
  ["await using", async () => { const got = []; { await using a = { [Symbol.asyncDispose]: async () => { await null; got.push("a"); } }; got.push("body"); } return got; }, ["body", "a"]],
  ["DisposableStack", () => { const got = []; const s = new DisposableStack(); s.defer(() => got.push(1)); s.defer(() => got.push(2)); s.dispose(); return [got, s.disposed]; }, [[2, 1], true]],
]; // prettier-ignore
