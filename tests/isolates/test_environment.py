"""What tenant code finds around it: `env`, the globals, and nothing of Node."""

from __future__ import annotations

import json
import logging
import subprocess
from pathlib import Path
from typing import Any

import pytest

from saisei_contract.errors import SaiseiError
from saisei_runtime.code import Binding, BindingKind
from saisei_runtime.isolates.confinement import has_own_network
from saisei_runtime.isolates.port import Completed
from saisei_runtime.isolates.process import JS_FOLDER, node_command

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def value(lab: Any, statements: str, **options: Any) -> Any:
    code = lab.code(
        "export class W { constructor(env) { this.env = env; } async run(event, step) { const env = this.env;\n"
        f"{statements} }} }} export default {{}};",
        **options,
    )
    end, _ = await lab.run(code)
    assert isinstance(end.outcome, Completed), end.outcome
    return json.loads(end.outcome.output)


async def test_env_keys(lab: Any) -> None:
    """MW-21, W-082: exactly vars, secrets and Bindings; vars are plain values, secrets strings."""
    got = await value(
        lab,
        """const proto = Object.getPrototypeOf(env) === Object.prototype;
        return {keys: Object.keys(env).sort(), all: Reflect.ownKeys(env).length, proto, v: env.V, n: env["a.b"],
          s: env.SECRET, flow: typeof env.FLOW.create};""",
        vars_json=b'{"V":{"x":[1,null,"t"]},"a.b":1.5}',
        secrets={"SECRET": "s3cret"},
        bindings=(Binding("FLOW", BindingKind.WORKFLOW, "wf-1"),),
    )
    assert got == {
        "keys": ["FLOW", "SECRET", "V", "a.b"],
        "all": 4,
        "proto": True,
        "v": {"x": [1, None, "t"]},
        "n": 1.5,
        "s": "s3cret",
        "flow": "function",
    }


async def test_vars_are_fresh(lab: Any) -> None:
    """MW-21, W-083: changing a variable changes nothing for the next context."""
    for _ in range(3):
        got = await value(lab, "const n = env.V.n; env.V.n = 2; env.more = 1; return {n};", vars_json=b'{"V":{"n":1}}')
        assert got == {"n": 1}


async def test_other_bindings_are_refused(lab: Any) -> None:
    """WV-11: a Version with a Binding that the Host cannot serve is not started at all."""
    code = lab.code("export default {};", bindings=(Binding("KV", BindingKind.KV, "kv-1"),))
    with pytest.raises(SaiseiError, match="backend_unavailable"):
        await lab.start(code)
    inspection = await lab.pool.inspect(code)
    assert [problem.code for problem in inspection.problems] == ["unsupported_binding"]


@pytest.mark.parametrize(
    "name",
    [
        "process",
        "Buffer",
        "global",
        "require",
        "module",
        "navigator",
        "setImmediate",
        "clearImmediate",
        "BroadcastChannel",
        "MessageChannel",
        "WebSocket",
        "EventSource",
        "PerformanceObserver",
        "localStorage",
        "Deno",
        "Bun",
    ],
)
async def test_nothing_of_node(lab: Any, name: str) -> None:
    """Design 3, MW-22: Node's own globals are not there."""
    assert await value(lab, f"return {{t: typeof {name}, g: typeof globalThis.{name}}};") == {
        "t": "undefined",
        "g": "undefined",
    }


async def test_minimum_globals(lab: Any) -> None:
    """MW-22: the portable globals exist, and standard timers give numbers."""
    names = (
        "Request Response Headers URL URLSearchParams ReadableStream WritableStream TransformStream TextEncoder "
        "TextDecoder AbortController AbortSignal crypto fetch console setTimeout clearTimeout setInterval "
        "clearInterval queueMicrotask structuredClone atob btoa WebAssembly performance self"
    )
    got = await value(
        lab,
        f"""const missing = {json.dumps(names)}.split(" ").filter((n) => typeof globalThis[n] === "undefined");
        const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode("a"));
        return {{missing, timer: typeof setTimeout(() => {{}}, 1), dispose: typeof Symbol.dispose,
          digest: new Uint8Array(digest)[0], enumerable: Object.keys(globalThis)}};""",
    )
    assert got == {"missing": [], "timer": "number", "dispose": "symbol", "digest": 202, "enumerable": []}


async def test_no_code_from_strings(lab: Any) -> None:
    """Design 3: eval and the Function constructors throw."""
    got = await value(
        lab,
        """const names = []; const F = (async () => {}).constructor, G = (function* () {}).constructor;
        const ways = [() => eval("1"), () => (0, eval)("1"), () => new Function("return 1"), () => F("1"), () => G("1"),
          () => setTimeout("1")];
        for (const f of ways) try { f(); names.push("ran"); } catch (e) { names.push(e.name); }
        return {names};""",
    )
    assert got == {"names": ["EvalError"] * 5 + ["TypeError"]}


async def test_undici_dispatchers_do_not_leak(lab: Any) -> None:
    """Design 3: no symbol of the global object leads to Node's own HTTP client."""
    got = await value(
        lab,
        """const found = Object.getOwnPropertySymbols(globalThis).filter((s) => globalThis[s] !== undefined);
        const known = [1, 2].map((n) => typeof globalThis[Symbol.for("undici.globalDispatcher." + n)]);
        return {found: found.map(String), known};""",
    )
    assert got == {"found": ["Symbol(Symbol.toStringTag)"], "known": ["undefined", "undefined"]}


async def test_call_sites_give_nothing_away(lab: Any) -> None:
    """Design 3: `Error.prepareStackTrace` reaches no function or `this` of the host."""
    got = await value(
        lab,
        """Error.prepareStackTrace = (_, sites) => sites; const sites = new Error().stack;
        const leaks = sites.filter((s) => s.getFunction() !== undefined || s.getThis() !== undefined);
        return {own: Array.isArray(sites), leaks: leaks.length};""",
    )
    assert got == {"own": True, "leaks": 0}


async def test_performance_has_no_timeline(lab: Any) -> None:
    """W-083: nothing of `performance` outlives a context."""
    got = await value(lab, "return {keys: Reflect.ownKeys(performance), t: performance.now() > 0};")
    assert got == {"keys": ["now", "timeOrigin"], "t": True}


async def test_console_goes_to_the_log(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    """MW-22: console lines become log records, limited in number and size; logging runs no tenant code."""
    with caplog.at_level(logging.DEBUG, logger="saisei_runtime.worker"):
        got = await value(
            lab,
            """let ran = 0; console.log("hello", {a: [1, new Map([[1, 2]])]}); console.error(new Error("oops"));
            console.log({[Symbol.for("nodejs.util.inspect.custom")]() { ran++; }, get x() { ran++; return 1; }});
            console.log(new Proxy({}, {get() { ran++; }, ownKeys() { ran++; return []; }}));
            console.warn("x".repeat(100000)); for (let i = 0; i < 1000; i++) console.debug(i);
            return {ran};""",
        )
    assert got == {"ran": 0}
    lines = [record for record in caplog.records if record.name == "saisei_runtime.worker"]
    assert lines[0].getMessage() == "hello { a: [ 1, Map(1) { 1 => 2 } ] }"
    assert lines[1].levelname == "ERROR"
    assert "oops" in lines[1].getMessage()
    assert len(lines) == 256
    assert max(len(line.getMessage()) for line in lines) < 4200


async def test_any_text_can_be_logged(lab: Any) -> None:
    """MW-22: lone surrogates and halved pairs in console lines disturb nothing."""
    got = await value(lab, r"console.log('\ud800', '\u{1f600}'.repeat(9000), ['\udc00']); return {a: 1};")
    assert got == {"a": 1}


async def test_no_environment_or_files(lab: Any) -> None:
    """Design 3: the process has an empty environment and Node's permission model reads the shim's folder only."""
    command = node_command(6.0)
    assert "--permission" in command
    assert f"--allow-fs-read={JS_FOLDER}" in command
    assert not any("net" in part or "child" in part or "write" in part for part in command[:-2])
    process = lab.pool._isolates["worker"].process
    assert Path(f"/proc/{process.pid}/environ").read_bytes() == b"TZ=UTC\0"


async def test_a_network_of_its_own(lab: Any) -> None:
    """Design 3, Issue 4: where the kernel allows it, the process has an empty network; else the log says so."""
    await value(lab, "return {};")
    process = lab.pool._isolates["worker"].process
    allowed = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
    assert has_own_network(process.pid) or not allowed
    if has_own_network(process.pid):
        lines = Path(f"/proc/{process.pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in lines] == ["lo"]
        routes = Path(f"/proc/{process.pid}/net/route").read_text().splitlines()[1:]
        assert routes == []
