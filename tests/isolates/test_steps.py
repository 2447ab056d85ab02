"""The step shim: checks in their order, replay, provenance, and what no application code can catch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saisei_runtime.isolates.port import (
    Completed,
    DoFailed,
    DoStarted,
    DoSucceeded,
    Failed,
    HistoryStep,
    Parked,
    ProofKind,
    Resolve,
    RetryPolicy,
    SleepCalled,
    Stop,
    Stopped,
    WaitCalled,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Mismatch:
    """Equal to a step_definition_mismatch with any words."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Failed) and other.reason == "step_definition_mismatch" and bool(other.message)

    def __hash__(self) -> int:
        return 0


MISMATCH = Mismatch()


def output(end: Any) -> Any:
    assert isinstance(end.outcome, Completed), end.outcome
    return None if end.outcome.output is None else json.loads(end.outcome.output)


async def test_do_runs_the_effect_and_resolves_a_clone(lab: Any) -> None:
    """W-106: the Promise gives a decoded clone of what was committed, never the effect's own object."""
    end, run = await lab.body(
        """let own; const got = await step.do("a", async () => own = {x: {y: 1}});
        const before = own === got; got.x.y = 2; return {before, own, again: await step.do("a", () => ({x: 3}))};"""
    )
    assert output(end) == {"before": False, "own": {"x": {"y": 1}}, "again": {"x": {"y": 1}}}
    assert end.proof.kind is ProofKind.QUIESCENT
    assert run.calls == [DoStarted("a", 1, RetryPolicy()), DoSucceeded("a", 1, b'{"x":{"y":1}}')]


async def test_effect_is_called_without_arguments_or_this(lab: Any) -> None:
    """W-100: the effect gets zero arguments and no `this`; undefined is a valid result."""
    end, run = await lab.body(
        """let seen; const r = await step.do("a", function () { seen = [arguments.length, this === undefined]; });
        return {seen, none: r === undefined};"""
    )
    assert output(end) == {"seen": [0, True], "none": True}
    assert run.named(DoSucceeded)[0].result is None


async def test_step_surface_is_closed(lab: Any) -> None:
    """W-090: `step` has exactly three operations, is frozen, and its operations work without it."""
    end, _ = await lab.body(
        """const {do: run} = step; await run("a", () => {});
        let threw = 0; try { step.more = 1; } catch { threw++; } try { step.do = 1; } catch { threw++; }
        return {keys: Reflect.ownKeys(step), frozen: Object.isFrozen(step), threw};"""
    )
    assert output(end) == {"keys": ["do", "sleep", "waitForEvent"], "frozen": True, "threw": 2}


async def test_instance_and_event(lab: Any) -> None:
    """W-081: `run` is called once on the instance with `{instanceId, params?}`; the constructor gets one argument."""
    source = """export class W { constructor(...a) { this.n = a.length; this.self = this; }
      run(event, step) { return {n: this.n, me: this.self === this, args: arguments.length, event,
        proto: Object.getPrototypeOf(event) === Object.prototype}; } } export default {};"""
    end, _ = await lab.run(source, params=b'{"a":[1]}')
    assert output(end) == {
        "n": 1,
        "me": True,
        "args": 2,
        "event": {"instanceId": "instance-1", "params": {"a": [1]}},
        "proto": True,
    }
    end, _ = await lab.run(source)
    assert output(end)["event"] == {"instanceId": "instance-1"}


@pytest.mark.parametrize(
    "call",
    [
        'step.do("", f)',
        "step.do(1, f)",
        "step.do(undefined, f)",
        'step.do("x".repeat(257), f)',
        'step.do("\\ud800", f)',
        'step.do("a")',
        'step.do("a", {})',
        'step.do("a", f, null)',
        'step.do("a", f, {})',
        'step.do("a", f, [])',
        'step.do("a", f, {maxAttempts: 0})',
        'step.do("a", f, {maxAttempts: 101})',
        'step.do("a", f, {maxAttempts: "2"})',
        'step.do("a", f, {maxAttempts: 1.5})',
        'step.do("a", f, {maxAttempts: 1, more: 1})',
        'step.do("a", f, {maxAttempts: 1, [Symbol()]: 1})',
        'step.do("a", f, {get maxAttempts() { throw new Error("ran") }})',
        'step.do("a", f, Object.create({maxAttempts: 1}))',
        'step.do("a", f, new (class { maxAttempts = 1 })())',
        'step.do("a", f, {maxAttempts: 1, initialDelaySeconds: -1})',
        'step.do("a", f, {maxAttempts: 1, initialDelaySeconds: 43201})',
        'step.do("a", f, {maxAttempts: 1, maxDelaySeconds: 43201})',
        'step.do("a", f, {maxAttempts: 1, backoff: "linear"})',
        'step.do("a", f, new Proxy({}, {ownKeys() { throw new Error("ran") }}))',
        'step.sleep("a")',
        'step.sleep("a", "1")',
        'step.sleep("a", -1)',
        'step.sleep("a", 0.5)',
        'step.sleep("a", NaN)',
        'step.sleep("a", 31536001)',
        'step.sleep("a", 1n)',
        'step.waitForEvent("a")',
        'step.waitForEvent("a", {type: "t"})',
        'step.waitForEvent("a", {timeoutSeconds: 1})',
        'step.waitForEvent("a", {type: "", timeoutSeconds: 1})',
        'step.waitForEvent("a", {type: "t", timeoutSeconds: 0})',
        'step.waitForEvent("a", {type: "t", timeoutSeconds: 31536001})',
        'step.waitForEvent("a", {type: "t", timeoutSeconds: 1, more: undefined})',
        'step.waitForEvent("a", null)',
    ],
)
async def test_bad_arguments_are_a_catchable_type_error(lab: Any, call: str) -> None:
    """W-093, W-097, W-101, W-110, W-115: a rejected TypeError, nothing journaled, and another step may follow."""
    end, run = await lab.body(
        f"""const f = () => {{}}; let name; try {{ await {call}; name = "none"; }} catch (e) {{
          name = e instanceof TypeError ? "TypeError" : String(e); }}
        await step.do("after", f); return {{name}};"""
    )
    assert output(end) == {"name": "TypeError"}
    assert [call.name for call in run.calls] == ["after", "after"]


async def test_names_and_numbers_at_their_limits(lab: Any) -> None:
    """W-091, W-101, W-110, W-115: 256 scalars may be 512 code units; each number's extremes are valid."""
    end, run = await lab.body(
        """await step.do("😀".repeat(256), () => {}, {maxAttempts: 100, initialDelaySeconds: 43200,
             backoff: "exponential", maxDelaySeconds: 0});
        await step.sleep("zero", 0); await step.sleep("minus zero", -0); await step.sleep("long", 31536000);"""
    )
    assert isinstance(end.outcome, Parked)
    assert run.calls[0] == DoStarted("😀" * 256, 1, RetryPolicy(100, 43200, "exponential", 0))
    assert run.named(SleepCalled) == [
        SleepCalled("zero", 0),
        SleepCalled("minus zero", 0),
        SleepCalled("long", 31536000),
    ]


async def test_failures_of_an_effect(lab: Any) -> None:
    """W-103, W-105: a throw, a rejection, an invalid or oversize result is a failed attempt, then `step_failed`."""
    end, run = await lab.body(
        """const names = [];
        const go = async (n, f) => { try { await step.do(n, f); } catch (e) { names.push(e.name); } };
        await go("throw", () => { throw new RangeError("r"); });
        await go("reject", async () => { throw "text"; });
        await go("invalid", () => [1]);
        await go("large", () => ({x: "a".repeat(1048576)}));
        await go("getter", () => { throw {get name() { names.push("ran"); return "x"; }}; });
        await go("undefined", () => Promise.reject());
        return {names};"""
    )
    assert output(end) == {"names": ["step_failed"] * 6}
    failures = [(f.name, f.error_name, f.error_message) for f in run.named(DoFailed)]
    assert failures[0] == ("throw", "RangeError", "r")
    assert failures[1] == ("reject", "Error", "text")
    assert failures[2][1] == "TypeError"
    assert failures[3][1] == "document_too_large"
    assert failures[4][1] == "Error"
    assert failures[5] == ("undefined", "Error", "undefined")


async def test_retry_parks_and_the_old_promise_never_settles(lab: Any) -> None:
    """W-104: with an attempt left the context ends; neither `catch` nor `finally` of it runs."""
    end, run = await lab.body(
        """try { await step.do("a", () => { throw 1; }, {maxAttempts: 2}); } catch { return {caught: 1}; }
        finally { console.log("finally"); }"""
    )
    assert isinstance(end.outcome, Parked)
    assert [type(call) for call in run.calls] == [DoStarted, DoFailed]


async def test_an_open_do_goes_on_with_its_next_attempt(lab: Any) -> None:
    """W-095, W-102: failed attempts of the journal give the number of the next one."""
    end, run = await lab.body(
        'return await step.do("a", () => ({ok: 1}), {maxAttempts: 5});',
        history=[HistoryStep("a", "do", "open", failed_attempts=2)],
    )
    assert output(end) == {"ok": 1}
    assert run.calls[0] == DoStarted("a", 3, RetryPolicy(5))


async def test_replay_by_name(lab: Any) -> None:
    """W-094: a finished name gives its recorded outcome whatever the method, and ignores the other arguments."""
    end, run = await lab.body(
        """const out = {};
        out.done = await step.do("done", 5);
        out.slept = (await step.sleep("done", "not inspected")) === undefined;
        out.waited = await step.waitForEvent("done");
        out.sleepAsDo = (await step.do("slept", () => { throw 1; })) === undefined;
        try { await step.do("bad", null); } catch (e) { out.bad = e.name; }
        try { await step.waitForEvent("late", {}); } catch (e) { out.late = e.name; }
        const a = await step.do("done"), b = await step.do("done"); a.n = 9; out.fresh = b.n;
        return out;""",
        history=[
            HistoryStep("done", "do", "complete", b'{"n":1}'),
            HistoryStep("slept", "sleep", "complete"),
            HistoryStep("bad", "do", "errored", error="step_failed"),
            HistoryStep("late", "wait", "errored", error="wait_timeout"),
        ],
    )
    assert output(end) == {
        "done": {"n": 1},
        "slept": True,
        "waited": {"n": 1},
        "sleepAsDo": True,
        "bad": "step_failed",
        "late": "wait_timeout",
        "fresh": 1,
    }
    assert run.calls == []


@pytest.mark.parametrize(
    "statements",
    [
        'try { await Promise.all([step.do("a", () => {}), step.do("b", () => {})]); } catch {}',
        'try { await step.do("a", () => step.do("b", () => {})); } catch {}',
        'try { await step.do("a", async () => { try { await step.sleep("b", 1); } catch {} }); } catch {}',
        'const p = step.do("a", () => {}); try { await step.do("", 1); } catch {} await p;',
        'step.do("a", () => new Promise(() => {})); return {};',
        'step.do("a", () => new Promise(() => {})); throw new Error("x");',
        'const p = step.do("known", 1); step.do("other", () => {}); await p;',
    ],
)
async def test_overlapping_steps_are_an_uncatchable_mismatch(lab: Any, statements: str) -> None:
    """W-120, W-121, W-123: a second call while one is unsettled, or a settlement while one is, ends the instance."""
    end, _ = await lab.body(
        f"try {{ {statements} return {{late: 1}}; }} finally {{ await null; }}",
        history=[HistoryStep("known", "do", "complete", b"{}")],
    )
    assert end.outcome == MISMATCH


async def test_mismatch_is_seen_by_no_handler(lab: Any) -> None:
    """W-121: after the mismatch no step Promise settles and nothing that the code awaits goes on for long."""
    end, run = await lab.body(
        """const p = step.do("a", async () => { await new Promise(r => setTimeout(r, 30)); return {}; });
        try { await step.do("b", () => {}); } catch { } finally { await step.do("c", () => {}); }"""
    )
    assert end.outcome == MISMATCH
    assert [call.name for call in run.calls] == ["a"]


async def test_busy_loop_after_a_mismatch(lab: Any) -> None:
    """W-121: code that spins after the mismatch is terminated; the outcome stays the mismatch."""
    end, run = await lab.body('step.do("a", () => new Promise(() => {})); step.sleep("b", 1); for (;;) {}')
    assert end.outcome == MISMATCH
    assert end.proof.kind is ProofKind.JOINED
    assert run.took < 2


async def test_unfinished_name_of_another_kind(lab: Any) -> None:
    """W-092 (4), W-120: an unfinished name reused with another kind is a mismatch, whatever its arguments."""
    end, _ = await lab.body(
        'try { await step.sleep("a", "bad"); } catch { return {}; }', history=[HistoryStep("a", "do", "open")]
    )
    assert end.outcome == MISMATCH


async def test_unfinished_name_not_revisited(lab: Any) -> None:
    """W-122: a journal entry left open and not revisited before `run` settles is a mismatch."""
    history = [HistoryStep("a", "sleep", "open")]
    end, _ = await lab.body("return {};", history=history)
    assert end.outcome == MISMATCH
    end, _ = await lab.body("throw new Error('x');", history=history)
    assert end.outcome == MISMATCH


async def test_step_limit(lab: Any) -> None:
    """W-096: the 1,025th name ends the instance uncatchably; replays, and calls with bad arguments, do not count."""
    history = [HistoryStep(f"s{i}", "do", "complete", b"{}") for i in range(1023)]
    end, _ = await lab.body(
        """for (let i = 0; i < 1023; i++) await step.do("s" + i); try { await step.do("bad"); } catch {}
        await step.do("last", () => {}); await step.do("last"); return {ok: 1};""",
        history=history,
    )
    assert output(end) == {"ok": 1}
    end, _ = await lab.body(
        """await step.do("last", () => {}); try { await step.do("one more", () => {}); } catch {} return {};""",
        history=history,
    )
    assert (end.outcome.reason, "1,025th" in end.outcome.message) == ("step_limit_exceeded", True)


async def test_host_error_shape(lab: Any) -> None:
    """W-130: an own, read-only, non-enumerable, non-configurable `name`; other fields may be annotated."""
    end, _ = await lab.body(
        """try { await step.do("a", () => { throw 1; }); } catch (e) { e.note = 1;
          const d = Object.getOwnPropertyDescriptor(e, "name");
          return {d, isError: e instanceof Error, note: e.note}; }"""
    )
    assert output(end) == {
        "d": {"value": "step_failed", "writable": False, "enumerable": False, "configurable": False},
        "isError": True,
        "note": 1,
    }


@pytest.mark.parametrize(
    ("rethrow", "reason"),
    [
        ("throw e;", "step_failed"),
        ("e.more = 1; throw e;", "step_failed"),
        ("await Promise.reject(e);", "step_failed"),
        ("const c = new Error('c'); Object.defineProperty(c, 'name', {value: e.name}); throw c;", "run_threw"),
        ("throw new Error('w', {cause: e});", "run_threw"),
        ("throw new AggregateError([e]);", "run_threw"),
        ("throw structuredClone(e);", "run_threw"),
        ("throw Object.create(e);", "run_threw"),
        ("return e;", "run_threw"),
        ("throw undefined;", "run_threw"),
    ],
)
async def test_provenance(lab: Any, rethrow: str, reason: str) -> None:
    """W-131, W-132: only the very object of this context ends the instance as `step_failed`."""
    end, _ = await lab.body(f'try {{ await step.do("a", () => {{ throw 1; }}); }} catch (e) {{ {rethrow} }}')
    assert isinstance(end.outcome, Failed)
    assert end.outcome.reason == reason
    end, _ = await lab.body(
        f'try {{ await step.do("a"); }} catch (e) {{ {rethrow} }}',
        history=[HistoryStep("a", "do", "errored", error="step_failed")],
    )
    assert end.outcome.reason == reason


async def test_uncaught_wait_timeout_and_handled_failure(lab: Any) -> None:
    """W-132, W-133: an uncaught `wait_timeout` is `run_threw`; a handled failure completes."""
    history = [HistoryStep("w", "wait", "errored", error="wait_timeout")]
    end, _ = await lab.body('await step.waitForEvent("w");', history=history)
    assert end.outcome.reason == "run_threw"
    end, _ = await lab.body('try { await step.waitForEvent("w"); } catch { return {fine: 1}; }', history=history)
    assert output(end) == {"fine": 1}


async def test_step_promises_settle_in_a_later_job(lab: Any) -> None:
    """W-099: also a replayed step settles later than its call; a synchronous throw never happens."""
    end, _ = await lab.body(
        """const order = []; const p = step.do("a").then(() => order.push("settled")); order.push("called");
        await p; let threw = false; try { step.do(1).catch(() => {}); } catch { threw = true; }
        return {order, threw};""",
        history=[HistoryStep("a", "do", "complete", b"{}")],
    )
    assert output(end) == {"order": ["called", "settled"], "threw": False}


async def test_wait_and_its_payload(lab: Any) -> None:
    """W-116, W-119: the result is the payload itself, without a wrapper."""
    end, run = await lab.body(
        'return await step.waitForEvent("w", {type: "ok", timeoutSeconds: 60});',
        reply=lambda call: Resolve(b'{"p":[1,2]}'),
    )
    assert output(end) == {"p": [1, 2]}
    assert run.calls == [WaitCalled("w", "ok", 60)]


async def test_stop_reply_settles_nothing(lab: Any) -> None:
    """W-089, W-152: a fenced context never sees its step settle and ends as stopped."""
    end, _ = await lab.body(
        'try { await step.do("a", () => {}); return {}; } finally { console.log("never"); }',
        reply=lambda call: None if isinstance(call, DoStarted) else Stop(),
    )
    assert isinstance(end.outcome, Stopped)
    assert end.proof.kind is ProofKind.QUIESCENT


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("export default {};", "the main module exports no class W"),
        ("export const W = 5; export default {};", "the main module exports no class W"),
        ("export class W { constructor() { throw new Error('no'); } run() {} } export default {};", "no"),
        ("export class W { } export default {};", "W has no method run"),
        ("export class W { run = 5; } export default {};", "W has no method run"),
        ("export class W { run() { throw new Error('sync'); } } export default {};", "sync"),
        ("export class W { async run() { throw {message: 'plain'}; } } export default {};", "plain"),
        ("throw new Error('top'); export class W {} export default {};", "top"),
        ("export class W { async run() { throw undefined; } } export default {};", "undefined"),
        ("export class W { async run() { throw 'just text'; } } export default {};", "just text"),
        ("export class W { async run() { throw {code: 7}; } } export default {};", '{"code":7}'),
        ("export class W { async run() { throw {get message() { return 'ran'; }}; } } export default {};", None),
        (
            "export class W { run() { return {then(ok, no) { no(new Error('thenable')); }}; } } export default {};",
            "thenable",
        ),
    ],
)
async def test_ways_of_run_threw(lab: Any, source: str, message: str | None) -> None:
    """W-086, W-013: every other failure is `run_threw`, with the thrown value's own message when it has one."""
    end, _ = await lab.run(source)
    assert end.outcome == Failed("run_threw", message)


async def test_messages_are_cut(lab: Any) -> None:
    """W-013: at most 8,192 scalars, well-formed."""
    end, _ = await lab.body('throw new Error("😀".repeat(9000) + "\\ud800");')
    assert end.outcome.message == "😀" * 8192


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("return undefined;", None),
        ("return {then(ok) { ok({a: 1}); }};", {"a": 1}),
        ("return Object.assign(Object.create(null), {b: 2});", {"b": 2}),
    ],
)
async def test_return_values(lab: Any, value: str, expected: Any) -> None:
    """W-085: a document or undefined, directly or by any thenable."""
    end, _ = await lab.run(f"export class W {{ run() {{ {value} }} }} export default {{}};")
    assert output(end) == expected


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (
            'await Promise.all([step.do("a", () => {}), step.do("b", () => {})]);',
            'step "b" was started while step "a" was unsettled: await each step',
        ),
        ('step.do("a", () => new Promise(() => {})); return {};', 'run ended while step "a" was unsettled'),
    ],
)
async def test_a_mismatch_names_the_steps(lab: Any, statements: str, said: str) -> None:
    """W-120, W-013: the message says which steps met, and what to do."""
    end, _ = await lab.body(statements)
    assert said in end.outcome.message


async def test_a_failed_step_says_why_live_and_replayed(lab: Any) -> None:
    """W-094, W-105, W-013: the Host Error and the end name the step and its last failure, the same after a replay."""
    statements = 'await step.do("charge", () => { throw new RangeError("no funds"); });'
    live, _ = await lab.body(statements)
    known = HistoryStep("charge", "do", "errored", b'{"name":"RangeError","message":"no funds"}', "step_failed", 1)
    replayed, _ = await lab.body(statements, history=[known])
    assert live.outcome == replayed.outcome == Failed("step_failed", 'step "charge" failed: RangeError: no funds')


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('step.do("a", () => {}, { retries: 3 })', '"retries" is none of its keys, which are maxAttempts'),
        ('step.do("a", () => {}, { maxAttempts: "3" })', "maxAttempts of step.do is required, and a whole number"),
        ('step.do("a", () => {}, { maxAttempts: 3, backoff: "linear" })', 'not "linear"'),
        ('step.do("a", 5)', "a function, not a number"),
        ('step.sleep("a", "1 day")', 'not "1 day"'),
        ('step.waitForEvent("a", { type: "x", timeout: 5 })', '"timeout" is none of its keys, which are type'),
        ('step.waitForEvent("a", { type: "x" })', "timeoutSeconds of step.waitForEvent is required"),
    ],
)
async def test_a_type_error_names_the_option(lab: Any, call: str, said: str) -> None:
    """W-097: the message names the option that is wrong and what it may be."""
    end, _ = await lab.body(f"await {call};")
    assert end.outcome.reason == "run_threw"
    assert said in end.outcome.message


async def test_failures_are_logged_with_their_places(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """W-013, H-182: an uncaught error is logged with module and line, whose it is, and no file of the Host."""
    caplog.set_level("INFO", logger="saisei_runtime.worker")
    await lab.body('try { await step.do("s", () => { null.x; }); } catch {}\nundefined.y;')
    attempt, ending = [record for record in caplog.records if "failed" in record.getMessage()]
    assert 'attempt 1 of step "s" failed: TypeError' in attempt.getMessage()
    assert "run failed: TypeError: Cannot read properties of undefined" in ending.getMessage()
    assert "main.mjs:" in ending.getMessage()
    assert "file:" not in attempt.getMessage() + ending.getMessage()
    assert (ending.worker, ending.instance, vars(ending)["class"]) == ("worker", "instance-1", "W")


async def test_log_lines_with_halves_of_characters(lab: Any) -> None:
    """Design 3: what a tenant writes to the console never ends its thread."""
    end, _ = await lab.body('console.log("\\ud800", "😀".repeat(5000)); return {};')
    assert end.outcome == Completed(b"{}")
