"""What a user types: read strictly, refused in words, and never with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from saisei_cli.client import HostClient, StreamLost
from saisei_cli.connection import Connection, connect_to
from saisei_cli.console import parse_document
from saisei_cli.deploy.project import read_project, read_project_file
from saisei_cli.failures import CommandFailure
from saisei_cli.logs import describe

MINIMAL = 'space = "s"\nname = "n"\nmain = "main.mjs"\n'


def saisei(*arguments: str | bytes, **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SAISEI_")}
    command = [sys.executable, "-m", "saisei_cli", *arguments]
    return subprocess.run(command, capture_output=True, check=False, timeout=60, env=clean | environment, cwd="/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', 'the key "a" is repeated'),
        ('{"a": 1e400}', "larger than the largest"),
        ('{"a": NaN}', "not JSON"),
        (r'{"a": "\ud800"}', "surrogate"),
        ("[1]", "must be a JSON object"),
        ("@/nowhere/at/all", "cannot read '/nowhere/at/all'"),
        ("@/proc/self", "cannot read"),
    ],
)
def test_documents_are_read_as_strictly_as_the_host_reads_them(text: str, said: str) -> None:
    """H-004, Design 6: what the Host would refuse or read otherwise is refused before it is sent."""
    with pytest.raises(CommandFailure) as failure:
        parse_document("--params", text)
    assert said in failure.value.message


def test_a_document_file_that_is_not_utf8(tmp_path: Path) -> None:
    """H-004: bytes of a file are text in UTF-8 or nothing."""
    (tmp_path / "latin").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(CommandFailure, match="is not JSON"):
        parse_document("--params", f"@{tmp_path / 'latin'}")
    assert parse_document("--params", '{"a": [1.5, 10000000000000000]}') == {"a": [1.5, 10**16]}


@pytest.mark.parametrize(
    ("arguments", "environment", "status", "said"),
    [
        (("workflows", "list", b"\xff"), {}, 1, "is not UTF-8 text"),
        (("dev", "--log-level", "LOUD"), {}, 2, "'LOUD' is not one of"),
        (("resources", "list"), {"SAISEI_ORIGIN": "http://h", "SAISEI_TOKEN": "t"}, 1, "write https://HOST"),
        (("resources", "list"), {"SAISEI_ORIGIN": "https://h/path", "SAISEI_TOKEN": "t"}, 1, "without a path"),
        (("resources", "list"), {"SAISEI_ORIGIN": "https://h"}, 1, "SAISEI_TOKEN is not"),
        (
            ("resources", "list"),
            {"SAISEI_ORIGIN": "https://h", "SAISEI_TOKEN": "t", "SAISEI_CA_FILE": "/no/ca"},
            1,
            "cannot read the CA file /no/ca",
        ),
        (("logs", "--data-dir", "/nowhere"), {}, 1, "there is no log"),
        (("destroy", "/nowhere"), {}, 1, "there is no /nowhere/saisei.toml"),
    ],
)
def test_mistakes_are_told_in_words(
    arguments: tuple[str | bytes, ...], environment: dict[str, str], status: int, said: str
) -> None:
    """Design 6: a mistake ends with status 1 (2: not a command), says what is wrong, and shows no traceback."""
    done = saisei(*arguments, **environment)
    assert done.returncode == status
    assert said in " ".join(done.stderr.decode().replace("│", " ").split())
    assert b"Traceback" not in done.stderr


def test_version() -> None:
    """Design 6: the command line knows what it is."""
    assert saisei("--version").stdout.decode().startswith("saisei ")


def test_the_file_of_a_project_stands_for_its_folder(tmp_path: Path) -> None:
    """Design 6: `saisei deploy DIR/saisei.toml` means DIR."""
    (tmp_path / "saisei.toml").write_text(MINIMAL)
    (tmp_path / "main.mjs").write_text("export default {};")
    assert read_project(tmp_path / "saisei.toml") == read_project(tmp_path)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("endpiont = true", "endpiont: there is no such key (did you mean endpoint?); the keys are space, name"),
        ('endpoint = "yes"', "endpoint: write true or false, without quotes"),
        ("endpoint = 1", "endpoint: write true or false"),
        ('[[workflows]]\nname = "w"\nclas = "A"', "workflows.0.clas: there is no such key (did you mean class?)"),
        ('[[workflows]]\nname = "w"', "workflows.0.class: is required"),
        ('modules = "*.mjs"', "modules: write a list, for example ['*.mjs']"),
    ],
)
def test_mistakes_in_a_project_name_the_way_out(tmp_path: Path, toml: str, said: str) -> None:
    """Design 6: unknown keys get the nearest one, values their type."""
    (tmp_path / "saisei.toml").write_text(MINIMAL + toml)
    with pytest.raises(CommandFailure) as failure:
        read_project_file(tmp_path)
    assert said in failure.value.message


def test_hints_can_be_pasted(tmp_path: Path) -> None:
    """Design 6: a hint names the Host that the command was given."""
    (tmp_path / "dev.json").write_text(json.dumps({"origin": "https://h", "token": "t", "caFile": "ca"}))
    assert connect_to(tmp_path, {}).command("resources list") == f"saisei resources list --data-dir {tmp_path}"
    assert Connection("https://h", "t").command("resources list") == "saisei resources list"


@pytest.mark.parametrize("instance_id", [".", "..", "a/..", "x:terminate", "é"])
def test_every_instance_id_has_a_path(instance_id: str) -> None:
    """W-020: an id of dots is no step through folders; the path holds it whole."""
    client = HostClient(Connection("https://h", "t"))
    url = httpx.URL(client._instance_url("w", instance_id))
    assert url.raw_path.count(b"/") == 7
    assert url.path.split("/instances/")[1] == instance_id


def flaky(client: HostClient, *answers: Any) -> list[httpx.Request]:
    """Gives the client a network that answers thus, the last answer again and again."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        given = answers[min(len(seen), len(answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return httpx.Response(200, json=given)

    client._http = httpx.Client(transport=httpx.MockTransport(answer))
    return seen


def test_a_handshake_that_timed_out_is_tried_again() -> None:
    """H-181: a connection that was not made carried nothing, so even a create is repeated."""
    client = HostClient(Connection("https://h", "t"), patience_seconds=5)
    late = httpx.ConnectTimeout("_ssl.c:1000: The handshake operation timed out")
    seen = flaky(client, late, {"id": "a", "status": "queued"})
    assert client.create_instance("w", "a") == {"id": "a", "status": "queued"}
    assert len(seen) == 2


def test_an_untrusted_certificate_is_told_at_once() -> None:
    """H-001: no repetition changes it, and the message names the CA file."""
    client = HostClient(Connection("https://h", "t"), patience_seconds=60)
    seen = flaky(client, httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"))
    with pytest.raises(CommandFailure) as failure:
        client.discovery()
    assert "SAISEI_CA_FILE (now not set)" in failure.value.hint
    assert len(seen) == 1


def test_a_stream_that_stays_away_says_where_to_go_on() -> None:
    """S-05, Design 6: after its patience a tail knows the event from which another one goes on, and says so once."""
    client = HostClient(Connection("https://h", "t"))
    flaky(client, httpx.ConnectError("refused"))
    cuts: list[bool] = []
    with pytest.raises(StreamLost) as lost:
        list(client.events("w", "i", 7, patience_seconds=0.2, on_cut=lambda: cuts.append(True)))
    assert (lost.value.cursor, cuts) == (7, [True])


def test_a_log_line_says_whose_it_is() -> None:
    """Design 6: `saisei logs` names Worker, workflow and instance of each line."""
    entry = {"time": "T", "level": "info", "worker": "r-1", "workflow": "r-2", "instance": "i", "message": "a\nb"}
    assert describe(entry, {"r-1": "shop"}) == "T info    shop/r-2/i  a\n    b"
