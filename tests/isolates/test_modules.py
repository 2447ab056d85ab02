"""Modules of a bundle: what can be imported, by which specifier, and what each type gives."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saisei_runtime.code import Module
from saisei_runtime.isolates.port import Completed, Failed

pytestmark = pytest.mark.asyncio(loop_scope="session")

EMPTY_WASM = bytes([0, 97, 115, 109, 1, 0, 0, 0])
OTHERS = {
    "dir/inner.mjs": "export { default } from './deep/leaf.mjs'; export const where = 'inner';",
    "dir/deep/leaf.mjs": "export default 'leaf';",
    "dir/index.mjs": "export default 'index';",
    "top.mjs": "export default 'top';",
    "a%20b.mjs": "export default 'percent';",
    "a b.mjs": "export default 'space';",
    "note.txt": Module("text/plain", "\ufeffgrüße\n".encode()),
    "bad.txt": Module("text/plain", b"\xff\xfe"),
    "data.bin": Module("application/octet-stream", b"\x00\x01\xff"),
    "empty.wasm": Module("application/wasm", EMPTY_WASM),
    "bad.wasm": Module("application/wasm", b"not wasm"),
    "main.mjs.map": Module("application/source-map+json", b"{}"),
    "data.json": Module("application/json", b"{}"),
    "syntax.mjs": "export const = 1;",
    "throws.mjs": "throw new RangeError('evaluated');",
}


async def evaluate(lab: Any, statements: str, before: str = "", entrypoint: str = "src/main.mjs") -> Any:
    source = f"{before}\nexport class W {{ async run(event, step) {{ {statements} }} }}\nexport default {{}};"
    end, _ = await lab.run(lab.code(source, modules=OTHERS, entrypoint=entrypoint))
    if isinstance(end.outcome, Completed):
        return json.loads(end.outcome.output)
    return end.outcome


@pytest.mark.parametrize(
    ("specifier", "expected"),
    [
        ("../top.mjs", "top"),
        ("/top.mjs", "top"),
        ("./../top.mjs", "top"),
        ("../dir/deep/../inner.mjs", "leaf"),
        ("/dir/./inner.mjs", "leaf"),
        ("../dir/../src/../top.mjs", "top"),
        ("../a%20b.mjs", "percent"),
        ("../a b.mjs", "space"),
        ("top.mjs", "module_not_found"),
        ("dir/inner.mjs", "module_not_found"),
        ("node:fs", "module_not_found"),
        ("fs", "module_not_found"),
        ("https://example.com/x.mjs", "module_not_found"),
        ("data:text/javascript,export default 1", "module_not_found"),
        ("file:///etc/passwd", "module_not_found"),
        ("../../top.mjs", "module_not_found"),
        ("/../top.mjs", "module_not_found"),
        ("..//top.mjs", "module_not_found"),
        ("//top.mjs", "module_not_found"),
        ("../top.mjs/", "module_not_found"),
        ("..\\\\top.mjs", "module_not_found"),
        ("../top.mjs?x", "module_not_found"),
        ("../top.mjs#x", "module_not_found"),
        ("../Top.mjs", "module_not_found"),
        ("../top", "module_not_found"),
        ("../dir", "module_not_found"),
        ("../dir/", "module_not_found"),
        (".", "module_not_found"),
        ("..", "module_not_found"),
        ("", "module_not_found"),
        ("#top", "module_not_found"),
        ("./missing.mjs", "module_not_found"),
        ("../main.mjs.map", "unsupported_media_type"),
        ("../data.json", "unsupported_media_type"),
        ("../bad.txt", "invalid_utf8"),
        ("../bad.wasm", "invalid_wasm"),
        ("../syntax.mjs", "SyntaxError"),
        ("../throws.mjs", "RangeError"),
    ],
)
async def test_specifiers(lab: Any, specifier: str, expected: str) -> None:
    """MW-12, MW-13, MW-14: POSIX segments, exact match; `import()` rejects with an Error of the problem's name."""
    got = await evaluate(
        lab,
        f"""try {{ return {{got: (await import("{specifier}")).default}}; }}
        catch (e) {{ return {{got: e.name, isError: e instanceof Error}}; }}""",
    )
    assert got["got"] == expected
    assert got.get("isError", True)


@pytest.mark.parametrize(
    "specifier", ["./missing.mjs", "../main.mjs.map", "../bad.txt", "../bad.wasm", "../syntax.mjs"]
)
async def test_static_import_problems(lab: Any, specifier: str) -> None:
    """MW-14: a static import that cannot be loaded fails the context (inspection refuses such a Version earlier)."""
    got = await evaluate(lab, "return {};", f"import '{specifier}';")
    assert isinstance(got, Failed)
    assert got.reason == "run_threw"


async def test_values_of_the_other_types(lab: Any) -> None:
    """MW-11: text is a string, bytes an ArrayBuffer, wasm a compiled Module; each has a default export only."""
    got = await evaluate(
        lab,
        """const {Instance, Module} = WebAssembly;
        return {text, bytes: [...new Uint8Array(bytes)], isBuffer: bytes instanceof ArrayBuffer,
          wasm: wasm instanceof Module, instance: new Instance(wasm) instanceof Instance,
          keys: [Object.keys(t), Object.keys(b), Object.keys(w)]};""",
        """import text from '../note.txt'; import * as t from '../note.txt';
        import bytes from '../data.bin'; import * as b from '../data.bin';
        import wasm from '../empty.wasm'; import * as w from '../empty.wasm';""",
    )
    assert got == {
        "text": "\ufeffgrüße\n",
        "bytes": [0, 1, 255],
        "isBuffer": True,
        "wasm": True,
        "instance": True,
        "keys": [["default"]] * 3,
    }


async def test_values_are_fresh_for_each_context(lab: Any) -> None:
    """W-083, MW-11: bytes and modules of one context are not those of the next."""
    for _ in range(4):
        got = await evaluate(
            lab,
            """const before = [new Uint8Array(bytes)[0], wasm.mark ?? "none"];
            new Uint8Array(bytes)[0] = 9; wasm.mark = 1; return {before};""",
            "import bytes from '../data.bin'; import wasm from '../empty.wasm';",
        )
        assert got == {"before": [0, "none"]}


async def test_cycles_and_live_bindings(lab: Any) -> None:
    """MW-15: cycles follow ECMAScript live bindings; one path is one module in a context."""
    source = """import { get, bump } from './a.mjs'; import * as again from '/a.mjs';
      export let main = 'main'; export class W { run() { bump(); return {n: get(), same: again.get === get}; } }
      export default {};"""
    modules = {
        "a.mjs": "import { n, inc } from './b.mjs'; export const get = () => n; export const bump = () => inc();",
        "b.mjs": "import { get } from './a.mjs'; export let n = 1; export const inc = () => { n++; return get(); };",
    }
    end, _ = await lab.run(lab.code(source, modules=modules))
    assert end.outcome == Completed(b'{"n":2,"same":true}')


async def test_dynamic_import_shares_the_graph(lab: Any) -> None:
    """MW-12, MW-15: `import()` gives the same module as a static import, also of a module that is being evaluated."""
    got = await evaluate(
        lab,
        """const [a, b, self] = await Promise.all([import('/dir/inner.mjs'), import('../dir/inner.mjs'), early]);
        return {same: a === inner && a === b, self: self.flag};""",
        "import * as inner from '../dir/inner.mjs'; export const flag = 1; const early = import('./main.mjs');",
    )
    assert got == {"same": True, "self": 1}


async def test_a_failed_dynamic_import_can_be_tried_again(lab: Any) -> None:
    """MW-14: a problem below a dynamically imported module is reported each time."""
    source = """export class W { async run() { const names = [];
      for (let i = 0; i < 2; i++) try { await import('./b.mjs'); } catch (e) { names.push(e.name); }
      return {names, ok: (await import('./c.mjs')).default}; } } export default {};"""
    modules = {"b.mjs": "import './c.mjs'; import './none.mjs';", "c.mjs": "export default 1;"}
    end, _ = await lab.run(lab.code(source, modules=modules))
    assert end.outcome == Completed(b'{"names":["module_not_found","module_not_found"],"ok":1}')


async def test_no_import_attributes(lab: Any) -> None:
    """MW-11: there are no JSON modules and no other readings of a type."""
    got = await evaluate(
        lab,
        """try { await import('../data.json', {with: {type: 'json'}}); } catch (e) { return {name: e.name}; }""",
    )
    assert got == {"name": "unsupported_media_type"}
    got = await evaluate(lab, "return {};", "import j from '../data.json' with {type: 'json'};")
    assert isinstance(got, Failed)


async def test_import_meta_is_empty(lab: Any) -> None:
    """MW-15: nothing outside the bundle is injected."""
    got = await evaluate(lab, "return {keys: Reflect.ownKeys(import.meta), proto: Object.getPrototypeOf(import.meta)};")
    assert got == {"keys": [], "proto": None}


async def test_long_import_chains(lab: Any) -> None:
    """MW-12: a chain as long as a bundle may be links without recursion."""
    modules = {f"m{i}.mjs": f"export {{ default }} from './m{i + 1}.mjs';" for i in range(510)}
    modules["m510.mjs"] = "export default 'end';"
    source = "import v from './m0.mjs'; export class W { run() { return {v}; } } export default {};"
    end, _ = await lab.run(lab.code(source, modules=modules))
    assert end.outcome == Completed(b'{"v":"end"}')


async def test_top_level_await(lab: Any) -> None:
    """W-081: module evaluation may be asynchronous; the class is constructed after it."""
    source = """const v = await new Promise((r) => setTimeout(() => r(1), 2));
      export class W { run() { return {v}; } } export default {};"""
    end, _ = await lab.run(source)
    assert end.outcome == Completed(b'{"v":1}')


async def test_large_sources(lab: Any) -> None:
    """Design 3: big modules are compiled from cached data and mean the same in each context."""
    filler = "\n".join(f"export function f{i}(x) {{ return x + {i}; }}" for i in range(2000))
    source = f"{filler}\nexport class W {{ run() {{ return {{n: f1999(1)}}; }} }}\nexport default {{}};"
    for _ in range(4):
        end, _ = await lab.run(source)
        assert end.outcome == Completed(b'{"n":2000}')
