"""`env.NAME` of a workflow Binding: arguments checked in the Worker, calls answered by the Host, events in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.isolates.port import BindingCall, BindingError, BindingResult, Completed, ProofKind

pytestmark = pytest.mark.asyncio(loop_scope="session")

FLOW = (Binding("FLOW", BindingKind.WORKFLOW, "workflow-uid"),)


async def value(lab: Any, statements: str) -> Any:
    code = lab.code(
        "export class W { constructor(env) { this.env = env; } async run(event, step) { const {FLOW} = this.env;\n"
        f"{statements} }} }} export default {{}};",
        bindings=FLOW,
    )
    lab.bindings.calls.clear()
    end, _ = await lab.run(code)
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output)


def answers(lab: Any, **by_method: Any) -> None:
    def reply(call: BindingCall) -> BindingResult:
        found = by_method.get(call.method, BindingResult())
        if callable(found):
            found = found(call)
        if isinstance(found, Exception):
            raise found
        return found

    lab.bindings.reply = reply


async def test_create_and_get(lab: Any) -> None:
    """W-022, W-023, W-031: arguments and params cross; the instance object is closed and read-only."""
    answers(lab, create=BindingResult({"id": "new-id"}))
    got = await value(
        lab,
        """const a = await FLOW.create({id: "x", params: {b: 1, a: 2}}), b = await FLOW.create(),
          c = await FLOW.create({id: undefined, params: undefined}), d = await FLOW.get("known");
        let threw = false; try { a.id = "y"; } catch { threw = true; }
        return {ids: [a.id, b.id, c.id, d.id], keys: Reflect.ownKeys(a), threw, frozen: Object.isFrozen(FLOW)};""",
    )
    assert got == {
        "ids": ["new-id", "new-id", "new-id", "known"],
        "keys": ["id", "status", "sendEvent", "terminate", "subscribe"],
        "threw": True,
        "frozen": True,
    }
    calls = [(call.method, call.arguments, call.body) for call in lab.bindings.calls]
    assert calls == [
        ("create", {"id": "x"}, b'{"a":2,"b":1}'),
        ("create", {}, None),
        ("create", {}, None),
        ("get", {"id": "known"}, None),
    ]
    call = lab.bindings.calls[0]
    assert (call.worker_uid, call.binding, call.scope_id[:8]) == ("worker", FLOW[0], "context-")


async def test_status_event_terminate(lab: Any) -> None:
    """W-011, W-028: `status` has exactly its keys; `sendEvent` and `terminate` resolve undefined."""
    answers(
        lab,
        status=lambda call: {
            "done": BindingResult({"status": "complete"}, b'{"o":1}'),
            "bad": BindingResult({"status": "errored", "error": {"reason": "run_threw", "message": "m"}}),
            "bare": BindingResult({"status": "errored", "error": {"reason": "step_failed"}}),
            "live": BindingResult({"status": "running"}),
        }[call.arguments["id"]],
    )
    got = await value(
        lab,
        """const out = {};
        for (const id of ["done", "bad", "bare", "live"]) out[id] = await (await FLOW.get(id)).status();
        const i = await FLOW.get("live");
        const sent = [await i.sendEvent({type: "t"}), await i.sendEvent({type: "t", payload: {z: 1}})];
        out.none = [...sent, await i.terminate()].every((v) => v === undefined);
        return out;""",
    )
    assert got == {
        "done": {"status": "complete", "output": {"o": 1}},
        "bad": {"status": "errored", "error": {"reason": "run_threw", "message": "m"}},
        "bare": {"status": "errored", "error": {"reason": "step_failed"}},
        "live": {"status": "running"},
        "none": True,
    }
    sent = [(call.arguments, call.body) for call in lab.bindings.calls if call.method == "sendEvent"]
    assert sent == [
        ({"id": "live", "type": "t", "hasPayload": False}, None),
        ({"id": "live", "type": "t", "hasPayload": True}, b'{"z":1}'),
    ]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("FLOW.create(null)", "TypeError"),
        ("FLOW.create(5)", "TypeError"),
        ("FLOW.create({more: 1})", "TypeError"),
        ("FLOW.create({get id() { throw 1; }})", "TypeError"),
        ("FLOW.create({id: ''})", "TypeError"),
        ("FLOW.create({id: 'x'.repeat(257)})", "TypeError"),
        ("FLOW.create({id: '\\ud800'})", "TypeError"),
        ("FLOW.create({params: []})", "invalid_params"),
        ("FLOW.create({params: {a: undefined}})", "invalid_params"),
        ("FLOW.create({params: {a: 'x'.repeat(1048576)}})", "document_too_large"),
        ("FLOW.get()", "TypeError"),
        ("FLOW.get('')", "TypeError"),
        ("i.sendEvent()", "TypeError"),
        ("i.sendEvent({})", "TypeError"),
        ("i.sendEvent({type: ''})", "TypeError"),
        ("i.sendEvent({type: 't', more: 1})", "TypeError"),
        ("i.sendEvent({type: 't', payload: 5})", "TypeError"),
        ("i.sendEvent({type: 't', payload: {a: 'x'.repeat(1048576)}})", "document_too_large"),
        ("i.subscribe(null)", "TypeError"),
        ("i.subscribe({more: 1})", "TypeError"),
        ("i.subscribe({cursor: -1})", "TypeError"),
        ("i.subscribe({cursor: 0.5})", "TypeError"),
        ("i.subscribe({cursor: '1'})", "TypeError"),
        ("i.subscribe({cursor: null})", "TypeError"),
        ("i.subscribe({filter: 'step_started'})", "TypeError"),
        ("i.subscribe({filter: ['unknown']})", "TypeError"),
        ("i.subscribe({filter: [null]})", "TypeError"),
    ],
)
async def test_bad_arguments(lab: Any, call: str, name: str) -> None:
    """W-024, W-025, W-027, W-028, S-09, F-12: refused in the Worker as a rejected Promise; the Host is not asked."""
    answers(lab)
    got = await value(
        lab,
        f"""const i = await FLOW.get("i"); let promise;
        try {{ promise = {call}; }} catch {{ return {{name: "threw"}}; }}
        return {{name: await promise.then(() => "none", (e) => e instanceof TypeError ? "TypeError" : e.name)}};""",
    )
    assert got == {"name": name}
    assert [made.method for made in lab.bindings.calls] == ["get"]


async def test_ids_of_256_scalars(lab: Any) -> None:
    """W-020: 256 emoji are a valid id."""
    answers(lab)
    assert await value(lab, "return {n: [...(await FLOW.get('😀'.repeat(256))).id].length};") == {"n": 256}


async def test_errors_of_the_host(lab: Any) -> None:
    """F-12: an Error whose own `name` is the code, or a real TypeError; Host trouble is `backend_unavailable`."""
    answers(
        lab,
        get=BindingError("unknown_instance", "no such instance"),
        create=BindingError("TypeError", "shape"),
    )
    got = await value(
        lab,
        """const out = []; for (const p of [FLOW.get("x"), FLOW.create()])
          await p.catch((e) => out.push([e.name, e.message, e instanceof TypeError, Object.keys(e).length]));
        return {out};""",
    )
    assert got == {"out": [["unknown_instance", "no such instance", False, 0], ["TypeError", "shape", True, 0]]}
    answers(lab, get=RuntimeError("internal detail"))
    got = await value(lab, "return await FLOW.get('x').catch((e) => ({name: e.name, message: e.message}));")
    assert got["name"] == "backend_unavailable"
    assert "internal" not in got["message"]


def feed(lab: Any, events: list[dict[str, Any]]) -> None:
    left = list(events)

    def next_event(_call: BindingCall) -> BindingResult:
        if not left:
            return BindingResult({"done": True})
        return BindingResult({"done": False}, json.dumps(left.pop(0)).encode())

    answers(lab, subscribe=BindingResult({"subscription": "s1"}), next=next_event)


async def test_subscription(lab: Any) -> None:
    """S-01, S-05, S-06, S-07: events come in order, then `done` for ever; cursor and filter cross."""
    feed(lab, [{"type": "workflow_queued", "eventId": 3}, {"type": "workflow_completed", "eventId": 4}])
    got = await value(
        lab,
        """const i = await FLOW.get("i");
        const s = await i.subscribe({cursor: 2, filter: ["workflow_queued", "rollback_started", "workflow_completed"]});
        const out = []; for (let n = 0; n < 4; n++) out.push(await s.next());
        const plain = out.map((r) => r.done ? {done: true, keys: Object.keys(r)} : r);
        return {out: plain, keys: Reflect.ownKeys(s).map(String)};""",
    )
    assert got == {
        "out": [
            {"done": False, "value": {"type": "workflow_queued", "eventId": 3}},
            {"done": False, "value": {"type": "workflow_completed", "eventId": 4}},
            {"done": True, "keys": ["done", "value"]},
            {"done": True, "keys": ["done", "value"]},
        ],
        "keys": ["next", "Symbol(Symbol.dispose)"],
    }
    subscribe = next(call for call in lab.bindings.calls if call.method == "subscribe")
    assert subscribe.arguments == {
        "id": "i",
        "cursor": 2,
        "filter": ["workflow_queued", "rollback_started", "workflow_completed"],
    }


async def test_concurrent_next_calls(lab: Any) -> None:
    """S-10: concurrent `next()` calls are served in call order, one event each."""
    feed(lab, [{"n": n} for n in range(5)])
    got = await value(
        lab,
        """const s = await (await FLOW.get("i")).subscribe();
        const all = await Promise.all(Array.from({length: 6}, () => s.next()));
        return {all: all.map((r) => r.done ? "done" : r.value.n)};""",
    )
    assert got == {"all": [0, 1, 2, 3, 4, "done"]}


async def test_using_and_dispose(lab: Any) -> None:
    """S-03, S-11: `using` disposes; pending and later calls are done; disposal is synchronous and idempotent."""
    waiting = asyncio.get_running_loop().create_future()

    class Slow:
        calls = lab.bindings.calls

    async def call(made: BindingCall) -> BindingResult:
        Slow.calls.append(made)
        if made.method == "subscribe":
            return BindingResult({"subscription": "s1"})
        if made.method == "next":
            await waiting
        return BindingResult()

    original = lab.bindings.call
    lab.bindings.call = call
    try:
        got = await value(
            lab,
            """const i = await FLOW.get("i"); let pending, outer;
            { using s = await i.subscribe(); outer = s; pending = s.next(); await null; }
            outer[Symbol.dispose]();
            const p = await pending, l = await outer.next();
            return {pending: [p.done, p.value === undefined], later: [l.done, l.value === undefined]};""",
        )
    finally:
        lab.bindings.call = original
        waiting.set_result(None)
    assert got == {"pending": [True, True], "later": [True, True]}
    assert [made.method for made in Slow.calls].count("dispose") == 1


async def test_scope_is_closed_with_its_context(lab: Any) -> None:
    """S-11: what a context opened is freed when it ends; a call under way holds nobody."""
    answers(lab, subscribe=BindingResult({"subscription": "s1"}))
    lab.bindings.closed.clear()
    await value(lab, "const i = await FLOW.get('i'); i.subscribe(); i.status(); return {};")
    # Once with the context, and again after each call that was under way then.
    assert len(set(lab.bindings.closed)) == 1


async def test_unanswered_calls_do_not_outlive_the_context(lab: Any) -> None:
    """Design 3, W-083: a call without an answer is dropped with its context, which ends quiescent."""
    release = asyncio.get_running_loop().create_future()

    async def call(_made: BindingCall) -> BindingResult:
        await release
        return BindingResult({"id": "late"})

    original = lab.bindings.call
    lab.bindings.call = call
    code = lab.code(
        "export class W { constructor(env) { this.env = env; } run() {"
        "this.env.FLOW.create().then(() => { for (;;) {} }); return {}; } } export default {};",
        bindings=FLOW,
    )
    try:
        stopwatch = lab.stopwatch()
        end, _ = await lab.run(code)
        assert end.proof.kind is ProofKind.QUIESCENT
        assert stopwatch.seconds() < 5
    finally:
        lab.bindings.call = original
        release.set_result(None)
    end, _ = await lab.body("return {};")
    assert end.proof.kind is ProofKind.QUIESCENT
