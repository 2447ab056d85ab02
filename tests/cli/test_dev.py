"""`saisei dev` as a user runs it: a process that is started, killed in parts, and ended."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostClient, HostError
from saisei_cli.connection import Connection

SAISEI = [sys.executable, "-m", "saisei_cli"]
SERVICES = ("control", "runtime", "gateway")


@pytest.fixture(scope="module")
def host() -> Iterator[DevHost]:
    with DevHost() as running:
        yield running


def saisei(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SAISEI, *arguments], capture_output=True, text=True, check=False, timeout=60)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ready_line(host: DevHost) -> None:
    """Design 6: one JSON line with everything that a client needs; dev.json says the same, to its owner only."""
    ready = host.ready
    assert set(ready) == {"origin", "discoveryUrl", "baseUrl", "caFile", "token", "adminUrl", "pids", "grpc"}
    assert ready["discoveryUrl"] == ready["origin"] + "/.well-known/takoform/v2"
    assert ready["baseUrl"] == host.client.discovery()["baseUrl"]
    assert set(ready["pids"]) == set(SERVICES)
    assert all(is_alive(pid) for pid in ready["pids"].values())
    assert set(ready["grpc"]) == {"control", "runtime"}
    assert json.loads((host.data_dir / "dev.json").read_text()) == ready
    for private in ("dev.json", "dev-token", "service.key", "tls/ca.key", "tls/server.key"):
        assert stat.S_IMODE((host.data_dir / private).stat().st_mode) == 0o600, private


def test_a_second_one_is_refused(host: DevHost) -> None:
    """Design 6: two `saisei dev` never share a data folder."""
    second = saisei("dev", "--data-dir", str(host.data_dir), "--listen", "127.0.0.1:0")
    assert second.returncode == 1
    assert second.stdout == ""
    assert f"another saisei dev (pid {host.pid})" in second.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_service_comes_back(host: DevHost, service: str) -> None:
    """Design 6: the supervisor restarts what was killed, dev.json has the new pid, and the Host answers again."""
    killed = host.service_pid(service)
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: host.service_pid(service) != killed)
    eventually(lambda: is_alive(host.service_pid(service)))
    eventually(lambda: list(host.client.resources(space="nothing-here")) == [])
    assert all(is_alive(host.service_pid(each)) for each in SERVICES)


def test_tokens(host: DevHost) -> None:
    """H-044, H-047: `saisei token create` prints a token last, with the rights given; revoking ends it."""
    folder = str(host.data_dir)
    made = saisei("token", "create", "--principal", "reader", "--space", "shelf:read", "--data-dir", folder)
    assert made.returncode == 0, made.stderr
    token = made.stdout.splitlines()[-1]
    connection = Connection(host.client.origin, token, host.client.connection.ca_file)
    with HostClient(connection) as reader:
        assert list(reader.resources(space="shelf")) == []
        with pytest.raises(HostError) as elsewhere:
            list(reader.resources(space="other"))
        assert (elsewhere.value.status, elsewhere.value.code) == (403, "forbidden")
        assert saisei("token", "revoke", "--principal", "reader", "--data-dir", folder).stdout == "1\n"
        # The gateway may remember the answer of the control service for 2 s.
        eventually(lambda: refused(reader))


def refused(client: HostClient) -> bool:
    try:
        list(client.resources(space="shelf"))
    except HostError as error:
        return error.status == 401
    return False


def test_commands_say_what_is_wrong(host: DevHost, tmp_path: Path) -> None:
    """Issue 2: a command that cannot do its work ends with status 1 and one clear sentence on stderr."""
    folder = str(host.data_dir)
    for arguments, said in (
        (("resources", "show", "nobody", "--data-dir", folder), "there is no Resource 'nobody'"),
        (("workflows", "list", "nobody", "--data-dir", folder), "there is no workflow 'nobody'"),
        (("operations", "show", "unknown-operation", "--data-dir", folder), "not_found (404)"),
        (("deploy", str(tmp_path), "--data-dir", folder), "there is no"),
        (("resources", "list", "--data-dir", str(tmp_path)), "no saisei dev runs on"),
        (("token", "create", "--principal", "p", "--space", "x", "--data-dir", folder), "is not a grant"),
    ):
        done = saisei(*arguments)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_ends_well_and_goes_on_where_it_was(tmp_path: Path, how: signal.Signals) -> None:
    """Design 6: a signal ends it with status 0 and no process left; token, origin and CA survive."""
    first = DevHost(data_dir=tmp_path)
    first.start()
    below = [*first.ready["pids"].values(), *first.node_pids()]
    first.client.close()
    os.kill(first.pid, how)
    assert first.wait() == 0
    assert not [pid for pid in below if is_alive(pid)]
    assert not (tmp_path / "dev.json").exists()
    with DevHost(data_dir=tmp_path) as second:
        kept = ("origin", "token", "caFile", "baseUrl")
        assert {key: second.ready[key] for key in kept} == {key: first.ready[key] for key in kept}
        assert list(second.client.resources(space="any")) == []


def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    """Design 3, Design 6: children die with their parent, so the next `saisei dev` on the folder can start at once."""
    first = DevHost(data_dir=tmp_path)
    first.start()
    below = [*first.ready["pids"].values(), *first.node_pids()]
    first.client.close()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    eventually(lambda: not any(is_alive(pid) for pid in below))
    with DevHost(data_dir=tmp_path) as second:
        assert second.ready["token"] == first.ready["token"]
