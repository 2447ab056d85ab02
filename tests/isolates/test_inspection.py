"""Inspection: what a Version exports, found without running a handler, and named problems."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from saisei_runtime.code import Module
from saisei_runtime.isolates.port import CodeProblem, Inspection

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def inspect(lab: Any, source: str | bytes, **options: Any) -> Inspection:
    found: Inspection = await lab.pool.inspect(lab.code(source, **options))
    return found


async def test_handlers_and_classes(lab: Any) -> None:
    """MW-10, W-080: own callable data properties of a plain default export; constructible exports with a `run`."""
    found = await inspect(
        lab,
        """class Base { run() {} }
        export class Direct { run() {} } export class Inherited extends Base {} export function Old() {}
        Old.prototype.run = function () {};
        export class NoRun {} export class Accessor { get run() { return () => {}; } }
        export class Static { static run() {} }
        export class Field { run = () => {}; } export const arrow = () => {}; export const number = 1;
        export async function fn() {} export const bound = Direct.bind(null);
        export class Throws { constructor() { throw 1; } run() {} }
        export default { fetch() {}, async queue() {}, scheduled: 5, other() {} };""",
    )
    assert found == Inspection(
        True, frozenset({"fetch", "queue"}), frozenset({"Direct", "Inherited", "Old", "Throws"}), ()
    )


@pytest.mark.parametrize(
    "export",
    [
        "",
        "export default class { fetch() {} }",
        "export default () => {};",
        "export default null;",
        "export default [];",
        "export default new (class { fetch() {} })();",
        "export default Object.create({fetch() {}});",
        "export default new Proxy({}, {});",
    ],
)
async def test_default_export_must_be_plain(lab: Any, export: str) -> None:
    """MW-10, WV-04: the default export is a plain object, or the Version is refused."""
    found = await inspect(lab, f"export class W {{ run() {{}} }}\n{export}")
    assert [problem.code for problem in found.problems] == ["default_export_invalid"]
    assert found.handlers == frozenset()


async def test_accessor_and_inherited_handlers_do_not_count(lab: Any) -> None:
    """MW-10: inherited and accessor handlers do not qualify, and no getter runs."""
    found = await inspect(
        lab,
        "export default {__proto__: null, queue() {}, get fetch() { for (;;) {} }};",
    )
    assert found == Inspection(True, frozenset({"queue"}), frozenset(), ())


@pytest.mark.parametrize(
    ("source", "modules", "expected"),
    [
        (
            "export default {};\nlet a = 1;\n  let b = 1 +;\n",
            {},
            ("syntax_error", "main.mjs", 3, 14),
        ),
        ("import './lib/x.mjs'; export default {};", {"lib/x.mjs": "\n}"}, ("syntax_error", "lib/x.mjs", 2, 1)),
        ("import './none.mjs'; export default {};", {}, ("module_not_found", "main.mjs", 0, 0)),
        ("import fs from 'node:fs'; export default {};", {}, ("module_not_found", "main.mjs", 0, 0)),
        (
            "import './a.map'; export default {};",
            {"a.map": Module("application/source-map+json", b"{}")},
            ("unsupported_media_type", "main.mjs", 0, 0),
        ),
        (
            "import t from './a.txt'; export default {};",
            {"a.txt": Module("text/plain", b"\xff")},
            ("invalid_utf8", "a.txt", 0, 0),
        ),
        (
            "import t from './a.wasm'; export default {};",
            {"a.wasm": Module("application/wasm", b"\0asm")},
            ("invalid_wasm", "a.wasm", 0, 0),
        ),
        (
            "import { missing } from './a.mjs'; export default {};",
            {"a.mjs": "export const present = 1;"},
            ("missing_export", "main.mjs", 0, 0),
        ),
        ("throw new RangeError('at load'); export default {};", {}, ("evaluation_threw", "main.mjs", 0, 0)),
        ("await Promise.reject(1); export default {};", {}, ("evaluation_threw", "main.mjs", 0, 0)),
        ("export default {}; new Function('1');", {}, ("evaluation_threw", "main.mjs", 0, 0)),
    ],
)
async def test_problems(lab: Any, source: str, modules: dict[str, Any], expected: tuple[str, str, int, int]) -> None:
    """MW-14: a Version that does not load is never Ready; the problem says what is wrong and where."""
    found = await inspect(lab, source, modules=modules)
    assert not found.loads
    assert [(p.code, p.module, p.line, p.column) for p in found.problems] == [expected]
    assert found.problems[0].message


async def test_invalid_utf8_in_the_main_module(lab: Any) -> None:
    """MW-14: the bytes of a script must be UTF-8."""
    found = await inspect(lab, b"export default {}; // \xff")
    assert [problem.code for problem in found.problems] == ["invalid_utf8"]


@pytest.mark.parametrize(
    "source",
    [
        "for (;;) {} export default {};",
        "for (;;) await null; export default {};",
        "await new Promise(() => {}); export default {};",
        """export const W = new Proxy(class {}, {getOwnPropertyDescriptor() { for (;;) {} }}); export default {};""",
    ],
)
async def test_endless_evaluation_is_killed(own_lab: Any, source: str) -> None:
    """W-080: inspection is killable, also when a trap of the inspected object loops."""
    lab = own_lab(inspection_within=0.3)
    found = await asyncio.wait_for(inspect(lab, source), 60)
    assert [problem.code for problem in found.problems] == ["inspection_timeout"]


async def test_inspection_has_no_environment(lab: Any) -> None:
    """W-080: no variables, secrets or Bindings are given, and no class is constructed."""
    found = await inspect(
        lab,
        "export class W { constructor(env) { for (;;) {} } run() {} } export default {};",
        secrets={"S": "x"},
        vars_json=b'{"V":1}',
    )
    assert found.workflow_classes == frozenset({"W"})


async def test_out_of_memory_at_load(own_lab: Any) -> None:
    """W-080: a Version that eats its heap at load is refused; the Host goes on."""
    lab = own_lab(thread_heap=32, inspection_within=20)
    found = await inspect(lab, "const a = []; for (;;) a.push(new Array(100000).fill(1.5)); export default {};")
    assert [problem.code for problem in found.problems] == ["evaluation_threw"]
    assert isinstance(found.problems[0], CodeProblem)
