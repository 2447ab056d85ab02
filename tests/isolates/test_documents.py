"""Documents: what is one, its canonical bytes, and decoding that gives fresh ordinary objects."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from saisei_runtime.isolates.port import Completed, DoFailed, DoSucceeded, Failed, HistoryStep

pytestmark = pytest.mark.asyncio(loop_scope="session")

INVALID = [
    "[]",
    '"text"',
    "5",
    "null",
    "true",
    "new Date(0)",
    "new Map()",
    "new (class A {})()",
    "Object(1)",
    "() => {}",
    "Symbol()",
    "1n",
    "{a: undefined}",
    "{a: [undefined]}",
    "{a: () => {}}",
    "{a: Symbol()}",
    "{a: 1n}",
    "{a: NaN}",
    "{a: Infinity}",
    "{a: -Infinity}",
    "{a: new Date(0)}",
    "{a: new Map()}",
    "{a: Object('x')}",
    "{a: new Uint8Array(1)}",
    "{a: /x/}",
    "{a: Promise.resolve()}",
    '{a: "\\ud800"}',
    '{"\\ud800": 1}',
    "{[Symbol()]: 1}",
    "{a: {[Symbol.iterator]: 1}}",
    "{get a() { return 1; }}",
    "{set a(v) {}}",
    "Object.defineProperty({}, 'a', {value: 1})",
    "{a: [1, , 2]}",
    "{a: new Array(3)}",
    "{a: Object.assign([1], {x: 1})}",
    "{a: Object.defineProperty([], 0, {get() { return 1; }, enumerable: true})}",
    "{a: Object.defineProperty([1], 0, {enumerable: false})}",
    "{a: Object.setPrototypeOf([], null)}",
    "{a: Object.setPrototypeOf([], class extends Array {}.prototype)}",
    "{a: Object.assign([], {[Symbol()]: 1})}",
    "Object.create({})",
    "{a: Object.create({b: 1})}",
    "(() => { const o = {}; o.o = o; return o; })()",
    "(() => { const a = []; a.push(a); return {a}; })()",
    "Object.fromEntries(Array.from({length: 1025}, (_, i) => ['k' + i, 0]))",
    "new Proxy({}, {ownKeys() { throw 1; }})",
    "new Proxy({a: 1}, {getOwnPropertyDescriptor() { throw 1; }})",
    "{a: (() => { const r = Proxy.revocable({}, {}); r.revoke(); return r.proxy; })()}",
]

VALID = [
    ("{}", b"{}"),
    ("Object.create(null)", b"{}"),
    ("{b: 1, a: 2}", b'{"a":2,"b":1}'),
    ("{2: 1, 10: 1, a: 1}", b'{"10":1,"2":1,"a":1}'),
    ("{'\\u{1f600}': 1, '\\ufb33': 2}", '{"😀":1,"\ufb33":2}'.encode()),
    ("{a: [null, true, false, -0, 0, 1.5, 1e21, 1e-7, 0.1, 333333333.33333329]}", None),
    ("{a: '\\u0000\\b\\t\\n\\f\\r\\u001f\"\\\\/\\u2028é😀'}", None),
    ("{a: {toJSON: null}, toJSON: 1}", b'{"a":{"toJSON":null},"toJSON":1}'),
    ("{__proto__: null, a: Object.create(null)}", b'{"a":{}}'),
    ('JSON.parse(\'{"__proto__": {"x": 1}}\')', b'{"__proto__":{"x":1}}'),
    ("(() => { const s = {n: 1}; return {a: s, b: [s, s]}; })()", b'{"a":{"n":1},"b":[{"n":1},{"n":1}]}'),
    ("Object.freeze({a: Object.freeze([1])})", b'{"a":[1]}'),
    ("Object.fromEntries(Array.from({length: 1024}, (_, i) => ['k' + i, 0]))", None),
    ("{a: Array.from({length: 3000}, (_, i) => i)}", None),
    ("new Proxy({a: 1}, {})", b'{"a":1}'),
    ("{a: new Proxy([1], {get() { throw 1; }})}", b'{"a":[1]}'),
]


@pytest.mark.parametrize("expression", INVALID)
async def test_no_document(lab: Any, expression: str) -> None:
    """W-040, W-042, W-043, W-044, W-045, W-046, W-049: such a value is refused, and no code of it runs."""
    end, _ = await lab.body(f"return {expression if not expression.startswith('{') else '(' + expression + ')'};")
    assert isinstance(end.outcome, Failed), end.outcome
    assert end.outcome.reason == "run_threw"
    assert end.outcome.message is not None
    assert end.outcome.message.startswith("run returned no document")


@pytest.mark.parametrize(("expression", "expected"), VALID)
async def test_canonical_bytes(lab: Any, expression: str, expected: bytes | None) -> None:
    """W-040, W-042, W-045, W-047: valid values become RFC 8785 bytes."""
    end, _ = await lab.body(f"return ({expression});")
    assert isinstance(end.outcome, Completed), end.outcome
    assert end.outcome.output is not None
    assert end.outcome.output == rfc8785.dumps(json.loads(end.outcome.output))
    if expected is not None:
        assert end.outcome.output == expected


async def test_size_limit_is_exact(lab: Any) -> None:
    """W-041: 1,048,576 canonical bytes are a document, one more are not; bytes count, not characters."""
    end, _ = await lab.body("return {x: 'é'.repeat(524284)};")
    assert len(end.outcome.output) == 1048576
    end, _ = await lab.body("return {x: 'é'.repeat(524284) + 'a'};")
    assert "1,048,576" in end.outcome.message
    end, _ = await lab.body("return {x: '\\u0000'.repeat(200000)};")
    assert "1,048,576" in end.outcome.message


async def test_shared_objects_cannot_blow_up(lab: Any) -> None:
    """W-041, W-045: a few shared objects that would serialise to gigabytes are refused at once."""
    end, run = await lab.body("let o = {}; for (let i = 0; i < 60; i++) o = {a: o, b: o}; return o;")
    assert "1,048,576" in end.outcome.message
    assert run.took < 5


async def test_deep_nesting(lab: Any) -> None:
    """W-047: 100,000 nested arrays are a document, through the effect's result, replay and the output."""
    end, _ = await lab.body(
        """const make = () => { let a = []; for (let i = 1; i < 100000; i++) a = [a]; return {a}; };
        const made = await step.do("deep", make);
        let depth = 0; for (let a = made.a; a !== undefined; a = a[0]) depth++;
        const again = await step.do("deep"); return {depth, again};"""
    )
    assert isinstance(end.outcome, Completed), end.outcome
    assert end.outcome.output == b'{"again":{"a":' + b"[" * 100000 + b"]" * 100000 + b'},"depth":100000}'
    end, _ = await lab.body("let o = {}; for (let i = 0; i < 100000; i++) o = {o}; return o;")
    assert end.outcome == Completed(b'{"o":' * 100000 + b"{}" + b"}" * 100000)


async def test_snapshot_at_call_time(lab: Any) -> None:
    """W-050: what the effect's object becomes later is not seen."""
    end, _ = await lab.body(
        """const o = {n: 1}; const p = step.do("a", () => o); await null; o.n = 1; queueMicrotask(() => {});
        const r = await p; o.n = 2; return {r, replay: await step.do("a")};"""
    )
    assert json.loads(end.outcome.output) == {"r": {"n": 1}, "replay": {"n": 1}}


async def test_decoded_values_are_ordinary(lab: Any) -> None:
    """W-048: fresh clones with ordinary prototypes; an own `__proto__` key stays data."""
    end, _ = await lab.body(
        """const p = event.params; const d = await step.do("a");
        return {own: Object.hasOwn(p, "__proto__"), proto: Object.getPrototypeOf(p) === Object.prototype,
          inner: p["__proto__"].x, array: Object.getPrototypeOf(d.a) === Array.prototype,
          writable: (d.a.push(2), d.a.length)};""",
        params=b'{"__proto__":{"x":1}}',
        history=[HistoryStep("a", "do", "complete", b'{"a":[1]}')],
    )
    assert json.loads(end.outcome.output) == {"own": True, "proto": True, "inner": 1, "array": True, "writable": 2}


@pytest.mark.parametrize(
    "poison",
    [
        "Array.prototype.toJSON = Object.prototype.toJSON = () => 'poison';",
        "String.prototype.toJSON = Number.prototype.toJSON = () => 'poison';",
        "Object.keys = Reflect.ownKeys = Object.getOwnPropertyDescriptor = () => { throw new Error('poison'); };",
        "JSON.stringify = JSON.parse = () => { throw new Error('poison'); };",
        "Array.prototype.push = Array.prototype.pop = Array.prototype.sort = () => { throw new Error('poison'); };",
        "Map.prototype.get = Map.prototype.set = Map.prototype.has = () => { throw new Error('poison'); };",
        "Promise.prototype.then = (t => function (...a) { return t.apply(this, a); })(Promise.prototype.then);",
        "Object.defineProperty(Object.prototype, 'value', {get() { throw new Error('poison'); }});",
        "Object.defineProperty(Object.prototype, 'error', {get() { throw new Error('poison'); }, set() {}});",
        "Array.prototype[Symbol.iterator] = () => { throw new Error('poison'); };",
        "Set.prototype.has = () => true; WeakMap.prototype.get = () => 'step_failed';",
        "globalThis.Promise = class {}; globalThis.Error = globalThis.TypeError = null;",
        "String.prototype.isWellFormed = () => false; Number.isInteger = () => false; Array.isArray = () => true;",
        "Function.prototype.call = Function.prototype.apply = () => { throw new Error('poison'); };",
        "Uint8Array.prototype.set = Object.getPrototypeOf(Uint8Array).prototype.set = () => { throw new Error('x'); };",
        "Reflect.apply = Reflect.construct = () => { throw new Error('poison'); };",
        "for (const m of ['charCodeAt', 'slice', 'split']) String.prototype[m] = () => { throw new Error('poison'); };",
    ],
)
async def test_poisoned_intrinsics_change_nothing(lab: Any, poison: str) -> None:
    """W-051: documents, replies and errors work although the tenant replaced what they might have used."""
    end, run = await lab.body(
        f"""const write = {{a: [1, "x", null], b: {{c: true}}}};
        {poison}
        const got = await step.do("a", () => write);
        let code = ""; try {{ await step.do("b", () => {{ throw 1; }}); }} catch (e) {{ code = e.name; }}
        let bad = ""; try {{ await step.sleep(""); }} catch (e) {{ bad = e.constructor.name; }}
        const keys = []; for (const k in got) keys[keys.length] = k;
        return {{got: {{a: got.a, b: got.b}}, code, bad, old: await step.do("old")}};""",
        history=[HistoryStep("old", "do", "complete", b'{"o":1}')],
    )
    assert run.named(DoSucceeded)[0].result == b'{"a":[1,"x",null],"b":{"c":true}}'
    assert isinstance(end.outcome, Completed), end.outcome
    assert json.loads(end.outcome.output) == {
        "got": {"a": [1, "x", None], "b": {"c": True}},
        "code": "step_failed",
        "bad": "TypeError",
        "old": {"o": 1},
    }
    # And the next context of the pool knows nothing of it.
    end, _ = await lab.body("return {fine: [1].concat(2).length};")
    assert end.outcome == Completed(b'{"fine":2}')


async def test_a_poisoned_then_does_not_swallow_replies(lab: Any) -> None:
    """W-051: with a `then` on Object.prototype a step still resolves with its document, which gains no property."""
    end, _ = await lab.body(
        """Object.prototype.then = (ok) => ok("poison");
        const old = await step.do("old"), own = await step.do("own", () => undefined);
        const named = await step.do("named"); delete Object.prototype.then;
        return {old, keys: Reflect.ownKeys(old), none: own === undefined, named};""",
        history=[
            HistoryStep("old", "do", "complete", b'{"o":1}'),
            HistoryStep("named", "do", "complete", b'{"then":2}'),
        ],
    )
    assert isinstance(end.outcome, Completed), end.outcome
    assert json.loads(end.outcome.output) == {"old": {"o": 1}, "keys": ["o"], "none": True, "named": {"then": 2}}


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


async def test_any_document_comes_back_as_its_canonical_bytes(lab: Any) -> None:
    """W-040, W-047, W-048: what JSON can say survives decode and encode as exactly its RFC 8785 bytes."""
    found: list[bytes] = []

    @settings(max_examples=150, deadline=None, database=None)
    @given(st.lists(st.dictionaries(st.text(), json_values, max_size=5), min_size=1, max_size=1))
    def collect(documents: list[Any]) -> None:
        found.append(json.dumps(documents[0]).encode())

    await asyncio.to_thread(collect)  # its seconds are not to look like a dead runtime
    for text in found:
        end, _ = await lab.body("return event.params;", params=text)
        assert isinstance(end.outcome, Completed), (text, end.outcome)
        assert end.outcome.output == rfc8785.dumps(_integers(json.loads(text)))


def _integers(value: Any) -> Any:
    """-0.0 is 0 (W-047); rfc8785 wants whole floats inside the safe range as they are."""
    if isinstance(value, float) and value == 0:
        return 0
    if isinstance(value, list):
        return [_integers(item) for item in value]
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{ d: new Date() }", "$.d is a Date, and a document holds plain objects"),
        ("{ d: new Date() }", "use its toISOString()"),
        ("{ list: [1, { 'a b': new Map() }] }", '$.list[1]["a b"] is a Map'),
        ("{ a: { b: undefined } }", "$.a.b is undefined"),
        ("{ n: [NaN] }", "$.n[0] is NaN, and numbers are finite"),
        ("{ n: 1n }", "use a string, or Number(value)"),
        ("{ p: Promise.resolve(1) }", "await it first"),
        ("{ p: new (class Cart {})() }", "$.p is a Cart"),
        ("[1]", "$ is an array, and a document is a plain object: wrap it"),
        ("'text'", "$ is a string, and a document is a plain object: wrap it"),
        ("null", "$ is null"),
        ("(() => { const a = { b: {} }; a.b.c = a; return a; })()", "$.b.c contains itself"),
    ],
)
async def test_a_fault_names_the_place_the_kind_and_a_way_out(lab: Any, value: str, said: str) -> None:
    """W-040, W-042, W-103: the failed attempt names the step, where in the value the fault lies, and what to do."""
    _, run = await lab.body(f'await step.do("made", () => ({value}));')
    (failed,) = run.named(DoFailed)
    assert failed.error_name == "TypeError"
    assert failed.error_message.startswith('step "made" returned no document: ')
    assert said in failed.error_message
