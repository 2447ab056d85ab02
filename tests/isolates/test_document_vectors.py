"""The shared vectors of documents through the shim in a real isolate; tests/contract/ runs them through Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saisei_runtime.isolates.port import Completed, DoFailed, DoSucceeded, HistoryStep

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILE = Path(__file__).parents[1] / "contract" / "document_vectors.json"
VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text())["vectors"]
# Each refusal of the shim: the Error's name, and a word that its message must hold.
REFUSALS = {
    "syntax": ("SyntaxError", ""),
    "lone_surrogate": ("TypeError", "lone surrogate"),
    "not_finite": ("TypeError", "numbers are finite"),
    "root": ("TypeError", "a document is a plain object"),
    "too_many_properties": ("TypeError", "1,024"),
    "too_large": ("document_too_large", "1,048,576"),
}
BODY = """
const text = (vector) => vector.json ?? vector.parts.map(([piece, times]) => piece.repeat(times)).join("");
for (const [number, vector] of vectors.entries()) {
  try { await step.do(`${number}`, () => JSON.parse(text(vector))); } catch {}
}
"""
AGAIN = (
    "for (let n = 0; n < count; n++) { const value = await step.do(`${n}`); await step.do(`again ${n}`, () => value); }"
)


def joined(parts: list[tuple[str, int]]) -> str:
    return "".join(text * times for text, times in parts)


def expected(vector: dict[str, Any]) -> bytes:
    if "canonicalParts" in vector:
        return joined(vector["canonicalParts"]).encode()
    given = vector["json"] if "json" in vector else joined(vector["parts"])
    return str(vector.get("canonical", given)).encode()


async def test_every_vector_is_what_the_file_says(lab: Any, make_workflow: Any) -> None:
    """W-040 … W-042, W-045, W-047, W-049, Issue 5: each text becomes the bytes, or has the fault, that Python finds.

    The engine parses it, and an effect returns the value.
    """
    # Faults of bytes and repeated keys are met by readers of text only: a value has neither.
    vectors = [vector for vector in VECTORS if vector.get("refused") not in ("utf8", "duplicate_key")]
    vectors = [vector for vector in vectors if "bytesHex" not in vector]
    assert len(vectors) >= 300
    shown = [{key: vector[key] for key in ("json", "parts") if key in vector} for vector in vectors]
    source = make_workflow(BODY, before=f"const vectors = {json.dumps(shown)};")
    end, run = await lab.run(source)
    assert end.outcome == Completed(None)
    answers = {call.name: call for call in run.calls if isinstance(call, DoSucceeded | DoFailed)}
    for number, vector in enumerate(vectors):
        answer = answers[str(number)]
        if "refused" not in vector:
            assert isinstance(answer, DoSucceeded), (vector["name"], answer)
            assert answer.result == expected(vector), vector["name"]
            continue
        name, word = REFUSALS[vector["refused"]]
        assert isinstance(answer, DoFailed), vector["name"]
        assert answer.error_name == name, (vector["name"], answer)
        assert word in answer.error_message, (vector["name"], answer)


async def test_every_canonical_text_survives_its_way_back(lab: Any, make_workflow: Any) -> None:
    """W-047, W-048: decoded from a recorded result and encoded again, each canonical text is the same bytes."""
    texts = [expected(vector) for vector in VECTORS if "refused" not in vector]
    small = [text for text in texts if len(text) < 100_000]
    # One history for all that is small, and one for each of the others.
    for part in (small, *([text] for text in texts if len(text) >= 100_000)):
        history = [HistoryStep(str(number), "do", "complete", text) for number, text in enumerate(part)]
        end, run = await lab.run(make_workflow(AGAIN, before=f"const count = {len(part)};"), history=history)
        assert end.outcome == Completed(None)
        assert [call.result for call in run.named(DoSucceeded)] == part
