"""Code that has recursed to the limit of its stack and then calls what the Host handed over."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.isolates.port import BindingResult, Completed

pytestmark = pytest.mark.asyncio(loop_scope="session")

# At each depth from the deepest one up, `call` is tried, until it has worked a few times in a row. `pad` shifts all
# depths by a few bytes. `ok` calls worked; each other one must have thrown the caller's own RangeError.
DEEP = """
const tally = { ok: 0, refused: 0, other: [], done: 0 };
const done = () => { tally.done++; };
function deep(call) {
  for (let pad = 0; pad < 8; pad++) {
    let row = 0;
    const down = (...padding) => {
      try { down(...padding); } catch (error) {
        if (row < 3) {
          try { call(); row++; tally.ok++; } catch (refusal) {
            row = 0; tally.refused++;
            if (!(refusal instanceof RangeError)) tally.other.push(String(refusal));
          }
        }
        throw error;
      }
    };
    try { down(...new Array(pad).fill(1)); } catch (error) { if (!(error instanceof RangeError)) throw error; }
  }
}
const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
"""

# Each calls `done` once, sooner or later, when the call has worked: what was begun is finished.
CALLS = {
    "console.log": "console.log('line', {a: [1, {b: 2}]}); done();",
    "console.assert": "console.assert(false, 'line'); done();",
    "setTimeout": "setTimeout(done, 1);",
    "setInterval": "const id = setInterval(() => { clearInterval(id); done(); }, 1);",
    "clearTimeout": "clearTimeout(1); done();",
    "queueMicrotask": "queueMicrotask(done);",
    "structuredClone": "structuredClone({a: [new Map([[1, 2]])]}); done();",
    "crypto.subtle": "crypto.subtle.digest('SHA-256', new Uint8Array(1)).then(done);",
    "getRandomValues": "crypto.getRandomValues(new Uint8Array(1)); done();",
    "randomUUID": "crypto.randomUUID(); done();",
    "fetch": "fetch('https://127.0.0.1/').catch(done);",
    "WebAssembly": "WebAssembly.compile(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])).then(done);",
    "import()": """import('./nothing.mjs').catch((e) => {
        if (e.name === 'module_not_found' || e instanceof RangeError) done(); });""",
    "AbortSignal.timeout": "AbortSignal.timeout(1).addEventListener('abort', done);",
    "AbortSignal.any": "AbortSignal.any([AbortSignal.abort()]); done();",
    "addEventListener": "const t = new EventTarget(); t.addEventListener('x', () => {}); done();",
    "Request": "new Request('http://a/', {method: 'POST', body: 'x'}); done();",
    "Response": "new Response('x', {headers: {a: 'b'}}); done();",
    "Response of an iterable": "new Response((async function* () {})()); done();",
    "Binding": "env.FLOW.get('x').then(done);",
}


def source(make_workflow: Any, call: str) -> str:
    body: str = make_workflow(
        f"""const {{ env }} = this; const call = () => {{ {call} }};
        deep(call);
        while (tally.done < tally.ok && performance.now() < begun + 30000) await later(1);
        return tally;""",
        before=f"{DEEP}\nconst begun = performance.now();",
    )
    return body


@pytest.mark.parametrize("kind", CALLS)
async def test_a_host_function_at_the_end_of_the_stack(
    lab: Any, make_workflow: Any, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """W-051, MW-22, Issue 4: it does all of its work, or throws the caller's RangeError and has done nothing."""
    lab.bindings.reply = lambda _call: BindingResult({"id": "x"})
    code = lab.code(source(make_workflow, CALLS[kind]), bindings=(Binding("FLOW", BindingKind.WORKFLOW, "wf"),))
    with caplog.at_level(logging.DEBUG, logger="saisei_runtime.worker"):
        end, _ = await lab.run(code)
    assert isinstance(end.outcome, Completed), end.outcome
    tally = json.loads(end.outcome.output or b"null")
    assert tally["other"] == []
    assert tally["ok"] >= 24
    assert tally["refused"] > 0
    assert tally["done"] == tally["ok"]
    assert end.proof.kind.value == "quiescent"
    if kind.startswith("console"):
        lines = [record.getMessage() for record in caplog.records if "line" in record.getMessage()]
        assert len(lines) == tally["ok"]


# Node's own classes may give up anywhere: what they hold is the caller's, and nothing of it outlives the context.
NODE_CALLS = {
    "URL": "new URL('http://a/?b=c').searchParams.get('b');",
    "Headers": "[...new Headers({a: 'b'})];",
    "FormData": "new FormData().append('a', 'b');",
    "URLPattern": "try { new URLPattern({pathname: '/:x'}).exec('http://a/b'); } catch { throw new RangeError(); }",
    "reader": "new ReadableStream({start(c) { c.enqueue(1); c.close(); }}).getReader().read().catch(() => {});",
    "tee": "new ReadableStream({start(c) { c.enqueue(1); c.close(); }}).tee();",
    "transform": "const t = new TransformStream(); t.writable.getWriter().write(1).catch(() => {});",
    "pipeTo": "new ReadableStream({start(c) { c.close(); }}).pipeTo(new WritableStream()).catch(() => {});",
    "dispatchEvent": """const t = new EventTarget(); t.addEventListener('x', () => {});
        t.dispatchEvent(new Event('x'));""",
    "abort": "const c = new AbortController(); c.signal.addEventListener('abort', () => {}); c.abort();",
    "TextDecoder": "new TextDecoder().decode(new TextEncoder().encode('x'));",
    "body": "new Response('x').text().catch(() => {});",
    "JSON": "JSON.parse(JSON.stringify({a: [1]}));",
}


@pytest.mark.parametrize("kind", NODE_CALLS)
async def test_a_web_class_at_the_end_of_the_stack(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-051, W-083, Issue 4: the context goes on, and so does the next one in the same thread."""
    end, _ = await lab.run(source(make_workflow, f"{NODE_CALLS[kind]} done();"))
    assert isinstance(end.outcome, Completed), end.outcome
    tally = json.loads(end.outcome.output or b"null")
    assert tally["other"] == []
    assert tally["ok"] >= 24
    end, _ = await lab.run(make_workflow("console.log('x'); await new Promise((r) => setTimeout(r, 1)); return {};"))
    assert end.outcome == Completed(b"{}")


STEPS = {
    "step.do": "step.do('one', () => ({n: 1}))",
    "step.sleep": "step.sleep('one', 0)",
}


@pytest.mark.parametrize("kind", STEPS)
async def test_a_step_at_the_end_of_the_stack(lab: Any, make_workflow: Any, kind: str) -> None:
    """W-092, W-051: a step that cannot be called for want of stack was not called: nothing was recorded."""
    body = make_workflow(
        f"""let got, refused = 0;
        const down = () => {{ try {{ down(); }} catch (error) {{
          if (got === undefined) try {{ got = {STEPS[kind]}; }} catch (e) {{
            if (!(e instanceof RangeError)) throw e; refused++; }}
          throw error; }} }};
        try {{ down(); }} catch {{}}
        await got;
        return {{refused: refused > 0}};"""
    )
    end, run = await lab.run(body)
    assert end.outcome == Completed(b'{"refused":true}')
    assert [call.name for call in run.calls] in (["one", "one"], ["one"])
    assert end.proof.kind.value == "quiescent"
