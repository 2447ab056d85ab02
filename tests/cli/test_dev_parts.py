"""Parts of `saisei dev` that need no services."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from saisei_cli.access import SpaceGrant
from saisei_cli.connection import Connection, connect_to
from saisei_cli.dev import layout
from saisei_cli.dev.certificates import ensure_certificates
from saisei_cli.dev.layout import (
    DataFolder,
    choose_listen,
    join_listen,
    only_one,
    parse_listen,
    socket_folder,
    write_description,
)
from saisei_cli.dev.supervisor import LONGEST_DELAY_SECONDS, restart_delay
from saisei_cli.failures import CommandFailure

NAMES = ("localhost", "*.workers.localhost", "127.0.0.1", "::1")


def folder(path: Path) -> DataFolder:
    data = DataFolder.at(path)
    data.prepare()
    return data


def test_restarts_are_quick_at_first() -> None:
    """Design 6: a killed service is restarted after 100 ms, then with a delay that doubles up to a bound."""
    assert [restart_delay(n) for n in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert restart_delay(1000) == LONGEST_DELAY_SECONDS


def test_certificates_are_kept(tmp_path: Path) -> None:
    """Design 6: what clients trust survives restarts; other names get another server certificate under the same CA."""
    first = ensure_certificates(tmp_path, NAMES)
    ca, server = first.ca_file.read_bytes(), first.certificate_file.read_bytes()
    assert ensure_certificates(tmp_path, NAMES).certificate_file.read_bytes() == server
    again = ensure_certificates(tmp_path, (*NAMES, "host.example"))
    assert again.ca_file.read_bytes() == ca
    assert again.certificate_file.read_bytes() != server
    assert stat.S_IMODE(again.key_file.stat().st_mode) == 0o600


def test_certificate_verifies(tmp_path: Path) -> None:
    """H-001: a strict TLS client accepts the pair for the origin and for a Worker's hostname."""
    files = ensure_certificates(tmp_path, NAMES)
    for name in ("localhost", "w.workers.localhost", "127.0.0.1"):
        client = ssl.create_default_context(cafile=str(files.ca_file))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(files.certificate_file, files.key_file)
        shake_hands(client, server, name)


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=name)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (near, far):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert near.getpeercert()


def test_port_0_stays_the_same(tmp_path: Path) -> None:
    """Design 6: the origin survives restarts on the same data folder."""
    data = folder(tmp_path)
    assert choose_listen(data, "127.0.0.1:0") == choose_listen(data, "127.0.0.1:0")


def test_two_ports_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Design 6: until the gateway listens its port looks free; the admin port is another one all the same."""
    offered = iter([5001, 5001, 5002])
    monkeypatch.setattr(layout, "_is_free", lambda host, port: next(offered))
    assert layout.free_port("127.0.0.1", but=5001) == 5002


@pytest.mark.parametrize("text", ["8443", ":8443", "localhost", "localhost:x", "localhost:65536", "localhost:８"])
def test_bad_listen(text: str) -> None:
    """Issue 2: a bad address is refused in words."""
    with pytest.raises(CommandFailure, match="is not an address"):
        parse_listen(text)


def test_listen_with_brackets() -> None:
    """Design 6: an IPv6 address stands in brackets."""
    assert parse_listen("[::1]:8443") == ("::1", 8443)
    assert join_listen("::1", 8443) == "[::1]:8443"


def test_only_one_holder(tmp_path: Path) -> None:
    """Design 6: a second `saisei dev` on one data folder is refused, and told which process holds it."""
    data = folder(tmp_path)
    with only_one(data), pytest.raises(CommandFailure, match=r"another saisei dev \(pid \d+\)"), only_one(data):
        pass
    with only_one(data):
        pass


def test_long_paths_get_short_sockets(tmp_path: Path) -> None:
    """Design 6: a data folder with a long path works; its sockets lie in a private short folder that goes away."""
    with socket_folder(folder(tmp_path / "x")) as near:
        assert near == tmp_path / "x" / "run"
    with socket_folder(folder(tmp_path / ("x" * 100))) as short:
        assert len(str(short / "control.sock")) < 100
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
    assert not short.exists()


def test_connection_from_folder_and_environment(tmp_path: Path) -> None:
    """Design 6: an explicit data folder wins over the environment; a missing one is said in words."""
    data = folder(tmp_path)
    write_description(data, {"origin": "https://localhost:1", "token": "t", "caFile": "/ca.pem"})
    assert stat.S_IMODE(data.description.stat().st_mode) == 0o600
    environment = {"SAISEI_ORIGIN": "https://other/", "SAISEI_TOKEN": "u", "SAISEI_CA_FILE": "/other.pem"}
    assert connect_to(None, environment) == Connection("https://other", "u", Path("/other.pem"))
    assert connect_to(data.root, {}) == Connection("https://localhost:1", "t", Path("/ca.pem"))
    with pytest.raises(CommandFailure, match="no saisei dev runs"):
        connect_to(tmp_path / "nowhere", {})


def test_grants() -> None:
    """H-044: reading and writing are granted apart, a Space at a time."""
    assert SpaceGrant.parse("a:read,write") == SpaceGrant("a", read=True, write=True)
    assert SpaceGrant.parse("*:read") == SpaceGrant("*", read=True, write=False)
    for bad in ("a", "a:", ":read", "a:use", "a:read;write"):
        with pytest.raises(CommandFailure, match="is not a grant"):
            SpaceGrant.parse(bad)
