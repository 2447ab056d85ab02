"""Attacks on the restoration of a realm: what a context got hold of, left behind or made endless must not last."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.isolates.test_hostile import HEALTHY
from tests.isolates.test_pristine import FOR_GOOD, POLLUTIONS

from saisei_runtime.isolates.port import Completed, ProofKind

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEFORE = """
const later = (ms) => new Promise((r) => setTimeout(r, ms));
const ghost = () => { globalThis.ghost = 1; };
const store = (list, key, value) =>
  Object.defineProperty(list, key, {value, writable: true, enumerable: true, configurable: true});
const tapSlot = (owner, key, take) => Object.defineProperty(owner, key, {configurable: true,
  set(value) { take(this, value); store(this, key, value); }});
"""

LOOK = """await later(15);
new Request("http://a/", {method: "POST", body: "x"});
await crypto.subtle.digest("SHA-256", new Uint8Array(3));
return {ghost: "ghost" in globalThis, text: await new Response("x", {status: 200}).text(),
  moved: Response.redirect("http://a/", 302).status};"""
AS_NEW = {"ghost": False, "text": "x", "moved": 302}

GHOSTS = {
    "Node's stack of resources, by a patched pop": """const {pop} = Array.prototype; let got = null;
        Array.prototype.pop = function () { got ??= this; return pop.call(this); };
        await later(5); Array.prototype.pop = pop;
        if (got) Object.defineProperty(got, "pop", {configurable: true,
          value() { ghost(); return pop.call(this); }});""",
    "Node's stack of resources, by a setter of its slots": """for (const key of ["0", "1", "2"]) {
          tapSlot(Array.prototype, key, (list, value) => {
            if (Object.hasOwn(Object(value), "_onImmediate")) store(list, "pop", () => ghost()); }); }
        await later(5); for (const key of ["0", "1", "2"]) delete Array.prototype[key];""",
    "a microtask begun in the check's own task": """for (const key of ["0", "1", "2"]) {
          tapSlot(Array.prototype, key, (list, value) => { if (!Object.hasOwn(Object(value), "_onImmediate")) return;
            for (const other of ["0", "1", "2"]) delete Array.prototype[other];
            Promise.resolve().then(() => Promise.resolve().then(ghost)); }); }""",
    "getters of indexes beyond the remembered keys": """for (let i = 0; i < 200; i++) {
          Object.defineProperty(Object.prototype, `${i}`, {configurable: true,
            get() { Promise.resolve().then(ghost); return undefined; },
            set(value) { store(this, i, value); }}); }""",
    "a timer of Node's own": """let got = null;
        tapSlot(Object.prototype, "_idleTimeout", (timer) => { got ??= timer; });
        setTimeout(() => {}, 1000); delete Object.prototype._idleTimeout;
        if (got) new got.constructor(ghost, 10, undefined, true, true).refresh();""",
    "a list of Node's timers": """const got = [];
        for (let n = 1; n < 40; n++) tapSlot(Array.prototype, `${n}`, (heap, list) => { got.push(list); });
        for (let n = 0; n < 30; n++) setTimeout(() => {}, 100 + n);
        for (let n = 1; n < 40; n++) delete Array.prototype[n];
        for (const list of got) if (list?._idleNext) {
          const timer = {_idleStart: 0, _onTimeout: ghost, _idleTimeout: 1};
          timer._idleNext = timer._idlePrev = list; list._idleNext = list._idlePrev = timer; }""",
    "a queue of Node's that swallows timers": """for (let n = 1; n < 60; n++)
          Object.defineProperty(Array.prototype, `${n}`, {configurable: true, set() {}});
        for (let n = 1; n < 60; n++) setTimeout(() => {}, n);
        for (let n = 1; n < 60; n++) delete Array.prototype[n];""",
    "immediates": """const keys = ["_onImmediate", "_idleNext", "_argv", "head"];
        for (const key of keys) tapSlot(Object.prototype, key, (it) => {
          const owner = Object.getPrototypeOf(it); if (owner !== Object.prototype) owner.ref = ghost; });
        await later(3); for (const key of keys) delete Object.prototype[key];""",
    "Node's own lists": """const got = []; const used = {};
        for (const name of ["includes", "indexOf", "some", "push", "pop"]) { used[name] = Array.prototype[name];
          Array.prototype[name] = function (...args) { used.push.call(got, this);
            return used[name].apply(this, args); }; }
        used.push = used.push; new Response("x", {status: 200}); new Request("http://a/", {mode: "cors"});
        Response.redirect("http://a/", 302); for (const name of Object.keys(used)) Array.prototype[name] = used[name];
        for (const list of got) { try { list.unshift(200); } catch {} try { list.length = 0; } catch {} }""",
    "Node's own tables": """const {has, clear} = Set.prototype; const got = [];
        Set.prototype.has = function (value) { got.push(this); return has.call(this, value); };
        Response.redirect("http://a/", 302); Set.prototype.has = has; for (const set of got) clear.call(set);""",
}


@pytest.mark.parametrize("kind", GHOSTS)
async def test_nothing_is_left_in_nodes_queues(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """W-014, W-083, design 3: what Node stores while a realm is patched gives no context anything that outlasts it."""
    lab = own_lab(max_threads=1)
    plant = make_workflow(f"{GHOSTS[kind]}\nreturn {{__proto__: null}};", before=BEFORE)
    for _ in range(2):
        end, _ = await lab.run(plant)
        assert isinstance(end.outcome, Completed), end
        for _ in range(2):
            end, _ = await lab.run(make_workflow(LOOK, before=BEFORE))
            assert isinstance(end.outcome, Completed), end
            assert json.loads(end.outcome.output) == AS_NEW
            assert end.proof.kind is ProofKind.QUIESCENT


STASHES = {
    "places of stacks": """const found = Error.prepareStackTrace; Error.prepareStackTrace = (error, sites) => sites;
        const [site] = new Error("x").stack; delete Error.prepareStackTrace; const it = Object.getPrototypeOf(site);""",
    "Node's list of statuses": """const {includes} = Array.prototype; let it = {};
        Array.prototype.includes = function (x) { it = this; return includes.call(this, x); };
        new Response("x"); Array.prototype.includes = includes;""",
    "Node's table of controllers": """const {set} = WeakMap.prototype; let it = {};
        WeakMap.prototype.set = function (k, v) { it = this; return set.call(this, k, v); };
        new Request("http://a/", {signal: new AbortController().signal}); WeakMap.prototype.set = set;""",
    "Node's patterns": """const {exec} = RegExp.prototype; let it = {};
        RegExp.prototype.exec = function (text) { it = this; return exec.call(this, text); };
        new Headers({"a-b": "c"}); RegExp.prototype.exec = exec;""",
    "faults of documents": """let it = {}; Object.defineProperty(Object.prototype, "kind", {configurable: true,
          set(value) { it = this; store(this, "kind", value); }});
        try { await step.do("x", () => [1]); } catch {} delete Object.prototype.kind;
        it = Object.getPrototypeOf(it); if (it === Object.prototype || it === null) it = {};""",
    "reads of pipes": """let it = {}; tapSlot(Object.prototype, "writer", (request) => { it = request; });
        await new ReadableStream({start(c) { c.enqueue(1); c.close(); }}).pipeThrough(new TransformStream())
          .pipeTo(new WritableStream()); delete Object.prototype.writer; it = Object.getPrototypeOf(it);
        if (it === Object.prototype || it === null) it = {};""",
    "outgoing bodies": """let it = {}; Object.defineProperty(Object.prototype, "credit", {configurable: true,
          set(value) { it = this; store(this, "credit", value); }});
        fetch("http://127.0.0.1/", {method: "POST", body: "x"}).catch(() => {}); delete Object.prototype.credit;
        it = Object.getPrototypeOf(it); if (it === Object.prototype || it === null) it = {};""",
}


REACHES = {
    "the process, by the listener of a rejection": """const {apply} = Function.prototype; let got = "";
        Function.prototype.apply = function (self, args) {
          if (typeof self?.getBuiltinModule === "function") got = "process";
          return Reflect.apply(this, self, args); };
        Promise.reject(new Error("x")); await later(5); Function.prototype.apply = apply; return {got};""",
    "Node's store of random numbers, by its length": """const owner = Object.getPrototypeOf(Uint8Array.prototype);
        const found = Object.getOwnPropertyDescriptor(owner, "length"); let got = "";
        Object.defineProperty(owner, "length", {...found, get() {
          got += this.constructor.name; return Reflect.apply(found.get, this, []); }});
        for (let i = 0; i < 300; i++) crypto.randomUUID(); await later(5);
        Object.defineProperty(owner, "length", found); return {got};""",
}


@pytest.mark.parametrize("kind", REACHES)
async def test_patched_builtins_reach_no_inside(lab: Any, make_workflow: Any, kind: str) -> None:
    """Design 3, W-083: a patched builtin is never called on the process, on Buffers or on native memory of Node's."""
    end, _ = await lab.run(make_workflow(REACHES[kind], before=BEFORE))
    assert end.outcome == Completed(b'{"got":""}')
    assert end.proof.kind is ProofKind.QUIESCENT


@pytest.mark.parametrize("kind", STASHES)
async def test_nothing_is_stashed(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """W-083: two contexts that work together find no object of the realm's inside to hand something on with."""
    lab = own_lab(max_threads=1)
    source = make_workflow(
        f"""{STASHES[kind]} const seen = it.stash ?? null; const key = Array.prototype;
        let told = null; if (it instanceof WeakMap) {{ told = it.get(key) ?? null; it.set(key, "secret"); }}
        try {{ it.stash = "secret"; }} catch {{}} return {{seen, told}};""",
        before=BEFORE,
    )
    for _ in range(3):
        end, _ = await lab.run(source)
        assert end.outcome == Completed(b'{"seen":null,"told":null}')


FLOODS = {
    "globals": "for (let i = 0; i < 3e5; i++) globalThis[`k${i}`] = i;",
    "elements of arrays": "for (let i = 0; i < 1e6; i++) Array.prototype[i] = i;",
    "symbols": "for (let i = 0; i < 5e4; i++) Math[Symbol('x'.repeat(1000))] = i;",
    "everything a little": """for (const owner of [Object, Array, Map, Set, Math, JSON, Reflect, Promise, Date, Error])
        for (let i = 0; i < 1000; i++) owner[`k${i}`] = i;""",
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_putting_right_is_bounded(own_lab: Any, make_workflow: Any, kind: str) -> None:
    """W-014, design 3: who adds more than some thousands of properties costs a thread, not the others' time."""
    lab = own_lab(max_threads=1)
    end, _ = await lab.run(make_workflow(f"{FLOODS[kind]} return {{__proto__: null}};"))
    assert isinstance(end.outcome, Completed)
    assert end.proof.kind is ProofKind.JOINED
    end, _ = await lab.run(make_workflow("return {};"))
    assert end.proof.kind is ProofKind.QUIESCENT


async def test_some_thousands_of_additions_are_taken_back(lab: Any, make_workflow: Any) -> None:
    """Design 3: a large library of extensions is no flood."""
    source = "for (let i = 0; i < 4000; i++) globalThis[`k${i}`] = i; return {};"
    for _ in range(3):
        end, _ = await lab.run(make_workflow(source))
        assert end.proof.kind is ProofKind.QUIESCENT


async def test_a_thread_outlives_hundreds_of_restorations(own_lab: Any, make_workflow: Any) -> None:
    """Design 3, W-083: after 500 restorations of every kind everything works as new, in one thread."""
    lab = own_lab(max_threads=1, warm_threads=1)
    kinds = [code for kind, code in POLLUTIONS.items() if kind not in FOR_GOOD]
    for number in range(500):
        end, _ = await lab.run(make_workflow(f"{kinds[number % len(kinds)]} return {{__proto__: null}};"))
        assert end.proof.kind is ProofKind.QUIESCENT, kinds[number % len(kinds)]
        if number % 50 == 49:
            end, _ = await lab.run(make_workflow(HEALTHY))
            assert end.outcome == Completed(b'{"ok":true}')
    assert lab.pool._isolates["worker"].process._count == 1
