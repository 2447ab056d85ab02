"""`saisei token`, `audit`, `secrets` and `operations resolve` as an operator types them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostClient, HostError
from saisei_cli.connection import Connection

FORM = "https://edge.forms.takoform.com/forms/ModuleWorker/0.3.0/"


@pytest.fixture(scope="module")
def host() -> Iterator[DevHost]:
    with DevHost("--virtual-clock", "--preview-forms") as running:
        yield running


def run(host: DevHost, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "saisei_cli", *arguments, "--data-dir", str(host.data_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def said(host: DevHost, *arguments: str) -> str:
    done = run(host, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def client_of(host: DevHost, token: str) -> HostClient:
    return HostClient(Connection(host.ready["origin"], token, host.client.connection.ca_file))


def test_a_token_from_its_making_to_its_end(host: DevHost) -> None:
    """H-044, H-047, Design 6: create, list, rotate and revoke by command; the principal stays the same."""
    grants = ("--space", "one:read,write,admin", "--space", "two:read")
    first = said(host, "token", "create", "--principal", "ann", *grants).splitlines()[-1]
    (listed,) = json.loads(said(host, "token", "list", "--principal", "ann", "--json"))
    assert listed["spaces"] == {"one": ["read", "write", "use", "admin"], "two": ["read"]}
    assert first not in json.dumps(listed)
    assert "ann" in said(host, "token", "list")
    with client_of(host, first) as client:
        assert list(client.resources(space="one")) == []
    second = said(host, "token", "rotate", listed["id"], "--expires-in", "3600").splitlines()[-1]
    with client_of(host, second) as client:
        assert list(client.resources(space="one")) == []
    assert said(host, "token", "revoke", "--principal", "ann").strip() == "1"
    with client_of(host, second) as client:
        # The gateway may remember for 2 s that it was good.
        eventually(lambda: _is_refused(client))
    made = json.loads(said(host, "token", "create", "--principal", "cat", "--space", "one:read", "--json"))
    (cat,) = json.loads(said(host, "token", "list", "--principal", "cat", "--json"))
    rotated = json.loads(said(host, "token", "rotate", cat["id"], "--json"))
    assert set(made) == set(rotated) == {"token"} and made != rotated
    with client_of(host, rotated["token"]) as client:
        assert list(client.resources(space="one")) == []
    again = run(host, "token", "rotate", listed["id"])
    assert again.returncode == 1
    assert "saisei token list" in again.stderr


def _is_refused(client: HostClient) -> bool:
    try:
        list(client.resources(space="one"))
    except HostError as error:
        assert error.code == "unauthenticated"
        return True
    return False


def test_the_audit_log(host: DevHost) -> None:
    """Issue 3: who did what, newest first, by command."""
    said(host, "token", "create", "--principal", "bob", "--space", "one:read")
    entries = json.loads(said(host, "audit", "list", "--json", "--limit", "1"))
    assert [(entry["principal"], entry["action"]) for entry in entries] == [("operator", "token.create")]
    assert entries[0]["detail"] == "for bob: one:read"
    assert "token.create" in said(host, "audit", "list")


def test_a_new_sealing_key(host: DevHost) -> None:
    """Issue 3: one command changes the key that seals private inputs; the file stays its owner's."""
    key_id = said(host, "secrets", "rotate-key").splitlines()[-1]
    assert len(key_id) == 8
    file = host.data_dir / "seal.key"
    assert len(file.read_text().split()) == 2
    assert file.stat().st_mode & 0o077 == 0


def test_what_cannot_be_settled(host: DevHost) -> None:
    """H-118: an Operation that is unknown, or a word without a reason, is refused in words."""
    unknown = run(host, "operations", "resolve", "op-none", "--outcome", "failed-none", "--reason", "looked")
    assert unknown.returncode == 1
    assert "not_found" in unknown.stderr
    assert run(host, "operations", "resolve", "op-none", "--outcome", "failed-none").returncode == 2
    assert run(host, "operations", "resolve", "op-none", "--outcome", "maybe", "--reason", "x").returncode == 2


def test_control_and_runtime_share_one_time(host: DevHost) -> None:
    """Design 2, H-147: the virtual clock moves Operations too: a month later what was settled is forgotten."""
    client = host.client
    made = client.wait_operation(client.create_resource(FORM, "tests", "kept", {}))
    client.advance_clock(30 * 86_400)
    with pytest.raises(HostError) as failure:
        client.operation(made["id"])
    assert failure.value.code == "not_found"
    uid = made["resourceUid"]
    (found,) = [resource for resource in client.resources(space="tests") if resource["uid"] == uid]
    assert found["phase"] == "idle"
    again = client.wait_operation(client.delete_resource(uid, 1))
    assert again["createdAt"] > made["createdAt"]
