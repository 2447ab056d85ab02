"""JSON Web Tokens of OpenID Connect providers as a second way to be a principal (H-044, H-047).

A file says which issuers are trusted, where their keys are, and which claims give which rights:

    [[providers]]
    name = "corp"                       # the principal is "corp:<claim>"
    issuer = "https://login.example"
    audience = "saisei"
    jwks_url = "https://login.example/keys"    # or jwks_file = "/etc/saisei/keys.json"
    principal_claim = "sub"
    [[providers.grants]]
    space = "main"
    rights = ["read", "write"]
    claim = "groups"                    # without claim and value: each token of the provider
    value = "developers"

The certificate behind `jwks_url` must be of a public authority, or of one in the file that SSL_CERT_FILE names.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import jwt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from saisei_contract.errors import SaiseiError
from saisei_contract.grammar import is_https_url, is_name
from saisei_control.access.rights import EVERY_SPACE, Caller, SpaceRights, merge_rights

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MAX_TOKEN_CHARACTERS = 16_384
LEEWAY_SECONDS = 30
# Keys are fetched anew after an hour, and for an unknown key at most twice a minute: strangers cannot make us ask.
KEYS_FRESH_SECONDS = 3600.0
KEYS_AGAIN_SECONDS = 30.0
FETCH_SECONDS = 5.0
_MAX_KEYS_BYTES = 1024 * 1024
_MAX_PRINCIPAL_CHARACTERS = 128


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Grant(_Model):
    """Rights in one Space ("*" for each) for tokens whose `claim` is `value` or holds it."""

    space: str
    rights: Annotated[list[Literal["read", "write", "use", "admin"]], Field(min_length=1)]
    claim: str | None = None
    value: str | None = None

    @field_validator("space")
    @classmethod
    def _space(cls, value: str) -> str:
        if value != EVERY_SPACE and not is_name(value):
            raise ValueError("a Space is '*' or 1 to 128 characters of A-Z a-z 0-9 . _ -")
        return value

    @model_validator(mode="after")
    def _both(self) -> Grant:
        if (self.claim is None) != (self.value is None):
            raise ValueError("claim and value come together")
        return self

    def applies(self, claims: dict[str, Any]) -> bool:
        if self.claim is None:
            return True
        found = claims.get(self.claim)
        if self.claim == "scope" and isinstance(found, str):
            found = found.split(" ")
        return self.value in found if isinstance(found, list) else found == self.value

    def entry(self) -> tuple[str, SpaceRights]:
        given = set(self.rights)
        return self.space, SpaceRights("read" in given, "write" in given, "use" in given, "admin" in given)


class Provider(_Model):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]
    jwks_url: str | None = None
    jwks_file: Path | None = None
    principal_claim: str = "sub"
    grants: list[Grant]

    @model_validator(mode="after")
    def _one_source(self) -> Provider:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("give jwks_url or jwks_file")
        if self.jwks_url is not None and not is_https_url(self.jwks_url):
            raise ValueError("jwks_url must be an absolute https URL")
        return self


class _File(_Model):
    providers: Annotated[list[Provider], Field(min_length=1)]


def load_providers(path: Path) -> list[Provider]:
    """ValueError that names file and field, or OSError."""
    try:
        return _File.model_validate(tomllib.loads(path.read_text())).providers
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


class _Keys:
    """The public keys of one provider by key id."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._known: dict[str | None, jwt.PyJWK] = {}
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def find(self, key_id: str | None) -> jwt.PyJWK | None:
        if key_id not in self._known or self._is_old(KEYS_FRESH_SECONDS):
            # Who comes while the keys are fetched waits for them too.
            async with self._lock:
                unknown = key_id not in self._known
                if self._is_old(KEYS_FRESH_SECONDS) or (unknown and self._is_old(KEYS_AGAIN_SECONDS)):
                    await self._refresh()
        return self._known.get(key_id)

    def _is_old(self, seconds: float) -> bool:
        return time.monotonic() - self._asked_at >= seconds

    async def _refresh(self) -> None:
        """Without an answer the known keys go on."""
        self._asked_at = time.monotonic()
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                document = json.loads(await self._read())
            found = {}
            for entry in document["keys"]:
                if entry.get("use", "sig") != "sig":
                    continue
                try:
                    found[entry.get("kid")] = jwt.PyJWK(entry)
                except jwt.PyJWTError:
                    log.warning("a key of a provider is of no known kind", extra={"provider": self._provider.name})
            self._known = found
        except (OSError, ValueError, KeyError, TypeError, AttributeError, httpx.HTTPError):
            log.warning("the keys of a provider could not be read", extra={"provider": self._provider.name})

    async def _read(self) -> bytes:
        if self._provider.jwks_file is not None:
            return await asyncio.to_thread(self._provider.jwks_file.read_bytes)
        assert self._provider.jwks_url is not None, "one of both is given"
        async with (
            httpx.AsyncClient(timeout=FETCH_SECONDS, follow_redirects=False) as client,
            client.stream("GET", self._provider.jwks_url) as answer,
        ):
            answer.raise_for_status()
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > _MAX_KEYS_BYTES:
                    raise ValueError("too many keys")
            return bytes(body)


class Oidc:
    """Turns a signed token into a caller. The time of `exp` and `nbf` is the system's, as the provider's is."""

    def __init__(self, providers: list[Provider]) -> None:
        self._providers = {provider.issuer: (provider, _Keys(provider)) for provider in providers}

    async def authenticate(self, token: str) -> tuple[Caller, int]:
        """The caller and the token's end in epoch ms. SaiseiError unauthenticated, with one message for all reasons."""
        refusal = SaiseiError("unauthenticated", "the token is not valid here, or no longer")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise refusal
        try:
            header = jwt.get_unverified_header(token)
            # Not believed yet: it only says whose keys to check with.
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
            found = self._providers.get(issuer) if isinstance(issuer, str) else None
            if found is None:
                raise refusal
            provider, keys = found
            key = await keys.find(header.get("kid"))
            if key is None or header.get("alg") not in ALGORITHMS:
                raise refusal
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=provider.audience,
                issuer=provider.issuer,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            raise refusal from None
        subject = claims.get(provider.principal_claim)
        principal = f"{provider.name}:{subject}"
        if not isinstance(subject, str) or not subject.isprintable() or len(principal) > _MAX_PRINCIPAL_CHARACTERS:
            raise refusal
        rights = merge_rights(grant.entry() for grant in provider.grants if grant.applies(claims))
        return Caller(principal, rights), (int(claims["exp"]) + LEEWAY_SECONDS) * 1000
