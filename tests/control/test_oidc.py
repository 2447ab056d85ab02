"""JSON Web Tokens as the second way to be a principal, with keys and tokens made here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from tests.control.kit import Client, Kit, refused
from tests.support.pki import make_pki

from saisei.control.v1 import resources_pb2
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_control.access import oidc
from saisei_control.access.oidc import Oidc, load_providers

ISSUER = "https://login.test"
RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()

FILE = """
[[providers]]
name = "corp"
issuer = "https://login.test"
audience = "saisei"
jwks_file = "{jwks}"
[[providers.grants]]
space = "main"
rights = ["read"]
[[providers.grants]]
space = "main"
rights = ["write"]
claim = "groups"
value = "developers"
[[providers.grants]]
space = "ops"
rights = ["read", "admin"]
claim = "scope"
value = "saisei.ops"
"""


def write_keys(folder: Path, *extra: dict[str, Any]) -> Path:
    keys = [
        {**RSAAlgorithm.to_jwk(RSA.public_key(), as_dict=True), "kid": "rsa", "alg": "RS256", "use": "sig"},
        {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "ec"},
        {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "ed"},
        *extra,
    ]
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": keys}))
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "oidc.toml"
    file.write_text(FILE.format(jwks=write_keys(tmp_path)))
    return file


def token(key: Any = RSA, algorithm: str = "RS256", key_id: str | None = "rsa", **claims: Any) -> str:
    body = {"iss": ISSUER, "aud": "saisei", "sub": "ann", "exp": int(time.time()) + 86_400} | claims
    headers = {} if key_id is None else {"kid": key_id}
    return jwt.encode({name: value for name, value in body.items() if value is not None}, key, algorithm, headers)


def forged(made: str) -> str:
    """With another signature: the first character of one has no unused bits."""
    claims, _, signature = made.rpartition(".")
    return f"{claims}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"


async def test_claims_become_rights(config: Path) -> None:
    """H-044, H-047: the principal is provider and subject; each grant adds the rights of its claim."""
    login = Oidc(load_providers(config))
    plain, _ = await login.authenticate(token())
    assert plain.principal == "corp:ann"
    assert (plain.in_space("main").read, plain.in_space("main").write, plain.in_space("ops").read) == (
        True,
        False,
        False,
    )
    developer, _ = await login.authenticate(token(groups=["x", "developers"]))
    assert developer.in_space("main").write and developer.in_space("main").use
    operator, _ = await login.authenticate(token(scope="openid saisei.ops"))
    assert operator.in_space("ops").admin and not operator.in_space("main").admin
    assert not (await login.authenticate(token(groups="developers-of-else")))[0].in_space("main").write


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")]
)
async def test_kinds_of_keys(config: Path, key: Any, algorithm: str, key_id: str) -> None:
    """H-044: the usual asymmetric signatures are taken."""
    caller, _ = await Oidc(load_providers(config)).authenticate(token(key, algorithm, key_id))
    assert caller.principal == "corp:ann"


@pytest.mark.parametrize(
    "made",
    [
        "a.b.c",
        token(exp=int(time.time()) - 60),
        token(exp=None),
        # These are made when the tests are collected; the last of them may run much later.
        token(nbf=int(time.time()) + 86_400, exp=int(time.time()) + 172_800),
        token(aud="other"),
        token(aud=None),
        token(iss="https://login.evil"),
        token(iss=None),
        token(sub=None),
        token(sub=7),
        token(sub="x" * 128),
        token(sub="a\nb"),
        token(key_id="none"),
        token(key_id=None),
        token(key_id="ec"),
        token(rsa.generate_private_key(65537, 2048)),
        token("a shared secret of thirty-two bytes", "HS256"),
        token("", "none"),
        token(padding="x" * 20_000),
        forged(token()),
    ],
    ids=lambda text: f"{len(text)}-{text[-6:]}",
)
async def test_bad_tokens(config: Path, made: str) -> None:
    """H-044, H-182: expired, early, foreign, forged, unsigned: one message for all of them."""
    with pytest.raises(SaiseiError) as failure:
        await Oidc(load_providers(config)).authenticate(made)
    assert (failure.value.reason, failure.value.detail) == (
        "unauthenticated",
        "the token is not valid here, or no longer",
    )


async def test_new_keys_are_found(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-044, H-047: a provider that changes its keys is followed; an unknown key is not asked for all the time."""
    login = Oidc(load_providers(config))
    await login.authenticate(token())
    fresh = ec.generate_private_key(ec.SECP256R1())
    write_keys(config.parent, {**ECAlgorithm.to_jwk(fresh.public_key(), as_dict=True), "kid": "new"}, {"kty": "odd"})
    with pytest.raises(SaiseiError):
        await login.authenticate(token(fresh, "ES256", "new"))
    monkeypatch.setattr(oidc, "KEYS_AGAIN_SECONDS", 0.0)
    assert (await login.authenticate(token(fresh, "ES256", "new")))[0].principal == "corp:ann"
    (config.parent / "keys.json").unlink()
    assert (await login.authenticate(token()))[0].principal == "corp:ann"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('jwks_url = "http://login.test/keys"', "https"),
        ('jwks_url = "https://login.test/keys"', "jwks_url or jwks_file"),
        ("unknown = 1", "unknown"),
        ("name =", "oidc.toml"),
    ],
)
def test_a_wrong_file_is_said_plainly(config: Path, line: str, fault: str) -> None:
    """H-044: the service does not start with providers that it cannot check, and says where the file is wrong."""
    text = config.read_text().replace('audience = "saisei"', f'audience = "saisei"\n{line}')
    config.write_text(text.replace('jwks_file = "', '# "') if "http:" in line else text)
    with pytest.raises(ValueError, match="oidc") as failure:
        load_providers(config)
    assert fault in str(failure.value)


class Issuer:
    """A provider's key endpoint over HTTPS, with a certificate of an authority of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.pki = make_pki(folder)
        self.asked: list[str] = []
        self.answer = b""
        self.stalls = False
        self.server: asyncio.Server | None = None

    async def start(self) -> str:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.pki.cert, self.pki.key)
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)
        return f"https://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b" ")[1].decode())
        # The other side may hang up amid too long an answer.
        with contextlib.suppress(ConnectionError):
            writer.write(self.answer)
            await writer.drain()
            if self.stalls:
                await reader.read()
        writer.close()

    def tells(self, body: bytes, status: str = "200 OK", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.answer = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def login(self, folder: Path, origin: str) -> Oidc:
        config = folder / "oidc.toml"
        config.write_text(FILE.replace('jwks_file = "{jwks}"', f'jwks_url = "{origin}/keys"'))
        return Oidc(load_providers(config))


@pytest.fixture
async def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Issuer, str]]:
    issuer = Issuer(tmp_path / "issuer")
    monkeypatch.setenv("SSL_CERT_FILE", str(issuer.pki.ca))
    origin = await issuer.start()
    yield issuer, origin
    assert issuer.server is not None
    issuer.server.close()


async def test_keys_by_url(issuer: tuple[Issuer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-044, H-047: keys come from the provider's URL once, however many callers come with them, and its changes are
    followed; what goes wrong at the provider takes nothing from those who have their keys.
    """
    provider, origin = issuer
    login = provider.login(tmp_path, origin)
    keys = write_keys(tmp_path).read_bytes()
    provider.tells(keys)
    callers = await asyncio.gather(*(login.authenticate(token(sub=f"s{number}")) for number in range(20)))
    assert {caller.principal for caller, _ in callers} == {f"corp:s{number}" for number in range(20)}
    for _ in range(3):
        with pytest.raises(SaiseiError, match="unauthenticated"):
            await login.authenticate(token(key_id="unknown"))
    assert provider.asked == ["/keys"]
    monkeypatch.setattr(oidc, "KEYS_AGAIN_SECONDS", 0.0)
    faults = [
        (b"out of order", "500 Internal Server Error", {}),
        (b"<html>", "200 OK", {}),
        (b"[]", "200 OK", {}),
        (b'{"keys": 1}', "200 OK", {}),
        (b'{"keys": [1]}', "200 OK", {}),
        (b" " * (2 * 1024 * 1024), "200 OK", {}),
        # Another address is not the one that the operator trusts.
        (b"", "302 Found", {"location": f"{origin}/elsewhere"}),
    ]
    for body, status, headers in faults:
        provider.tells(body, status, **headers)
        with pytest.raises(SaiseiError, match="unauthenticated"):
            await login.authenticate(token(key_id="unknown"))
        assert (await login.authenticate(token()))[0].principal == "corp:ann"
    assert provider.asked == ["/keys"] * (1 + len(faults))
    fresh = ec.generate_private_key(ec.SECP256R1())
    provider.tells(
        json.dumps({"keys": [{**ECAlgorithm.to_jwk(fresh.public_key(), as_dict=True), "kid": "new"}]}).encode()
    )
    assert (await login.authenticate(token(fresh, "ES256", "new")))[0].principal == "corp:ann"
    with pytest.raises(SaiseiError, match="unauthenticated"):
        await login.authenticate(token())


async def test_keys_of_a_stranger(issuer: tuple[Issuer, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H-044: keys are believed only from a server whose certificate is known, and are not waited for without end."""
    provider, origin = issuer
    provider.tells(write_keys(tmp_path).read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.pki.other_cert))
    with pytest.raises(SaiseiError, match="unauthenticated"):
        await provider.login(tmp_path, origin).authenticate(token())
    assert provider.asked == []
    monkeypatch.setenv("SSL_CERT_FILE", str(provider.pki.ca))
    monkeypatch.setattr(oidc, "FETCH_SECONDS", 1.5)  # time enough to connect and to ask
    # The head says more than will come.
    provider.stalls, provider.answer = True, b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"
    with pytest.raises(SaiseiError, match="unauthenticated"):
        await provider.login(tmp_path, origin).authenticate(token())
    assert provider.asked == ["/keys"]


async def test_a_host_takes_both(kit: Kit, tmp_path: Path) -> None:
    """H-042, H-044, H-046: a signed token is a caller like any other, and discovery names the scheme."""
    config = tmp_path / "oidc.toml"
    config.write_text(FILE.format(jwks=write_keys(tmp_path)))
    await kit.reconfigure(oidc_file=config)
    client = Client(kit.channel, token(groups=["developers"]))
    uid = await client.made(urls.MODULE_WORKER, "one", {})
    reader = Client(kit.channel, token(sub="ben"))
    assert (await reader.get(uid)).uid == uid
    assert (await refused(reader.create(urls.MODULE_WORKER, "two", {}))).reason == "forbidden"
    stranger = Client(kit.channel, token(iss="https://login.evil"))
    assert (await refused(stranger.get(uid))).reason == "unauthenticated"
    discovery = await kit.operate(client.support.GetDiscovery, resources_pb2.GetDiscoveryRequest())
    assert list(discovery.authentication_schemes) == ["Bearer", "OIDC"]
    assert (await (await kit.client("alice")).get(uid)).uid == uid
