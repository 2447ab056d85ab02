"""The Web API as Workers see it: hundreds of checks, each area in one context of its own (the files in web/)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saisei_runtime.code import Binding, BindingKind, Module
from saisei_runtime.isolates.port import BindingResult, Completed, DoFailed, Reject, Resolve, StepCall, StepReply

pytestmark = pytest.mark.asyncio(loop_scope="session")

WEB = Path(__file__).with_name("web")
CHECKS = (WEB / "checks.mjs").read_text()

# Each area, whether it leaves the thread fit for another context, and how many checks it has at least.
AREAS = {
    "url": (True, 60),
    "fetch_classes": (True, 85),
    "streams": (True, 60),
    "encoding": (True, 45),
    "crypto": (True, 40),
    "events": (True, 50),
    "clone": (True, 30),
    "files": (False, 40),
}

MAIN = """
import { run } from "./checks.mjs";
import checks from "./area.mjs";
export class W { run() { return run(checks); } }
export default {};
"""


def verdicts(end: Any) -> list[str]:
    assert isinstance(end.outcome, Completed), end.outcome
    found = json.loads(end.outcome.output or b"null")
    assert found["failed"] == []
    names: list[str] = found["names"]
    assert len(set(names)) == len(names)
    return names


@pytest.mark.parametrize("area", AREAS)
async def test_web_api(lab: Any, area: str) -> None:
    """MW-22, Issue 4: the checks of one area hold in a tenant's context, and ordinary use costs no thread."""
    quiescent, at_least = AREAS[area]
    code = lab.code(MAIN, modules={"checks.mjs": CHECKS, "area.mjs": (WEB / f"{area}.mjs").read_text()})
    end, _ = await lab.run(code)
    assert len(verdicts(end)) >= at_least
    assert (end.proof.kind.value == "quiescent") is quiescent


IDENTITY = """
import { run } from "./checks.mjs";
import { checks } from "./identity.mjs";
import text from "./t.txt";
import bytes from "./b.bin";
import wasm from "./w.wasm";
export class W {
  constructor(env) { this.env = env; }
  async run(event, step) {
    const promise = step.do("one", () => ({ list: [{ a: 1 }] }));
    const result = await promise;
    const failure = await step.do("two", () => { throw new Error("no"); }).catch((error) => error);
    const refusal = await step.do("", () => {}).catch((error) => error);
    const namespace = await import("./checks.mjs");
    return run(checks({ env: this.env, event, step, promise, result, failure, refusal, namespace, text, bytes, wasm }));
  }
}
export default {};
"""


def reply(call: StepCall) -> StepReply | None:
    if isinstance(call, DoFailed):
        return Reject("step_failed")
    result = getattr(call, "result", None)
    return Resolve(result) if result is not None else None


async def test_class_identity(lab: Any) -> None:
    """MW-22, MW-11, Issue 4: everything that the Host hands over is an instance of the Worker's own classes."""
    lab.bindings.reply = lambda _call: BindingResult({"id": "x"})
    code = lab.code(
        IDENTITY,
        modules={
            "checks.mjs": CHECKS,
            "identity.mjs": (WEB / "identity.mjs").read_text(),
            "t.txt": Module("text/plain", b"text"),
            "b.bin": Module("application/octet-stream", b"\x01\x02"),
            "w.wasm": Module("application/wasm", b"\0asm\x01\0\0\0"),
        },
        vars_json=b'{"V":{"list":[{}]}}',
        bindings=(Binding("FLOW", BindingKind.WORKFLOW, "wf"),),
    )
    end, _ = await lab.run(code, params=b'{"list":[1]}', reply=reply)
    assert len(verdicts(end)) >= 40
