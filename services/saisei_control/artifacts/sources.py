"""Artifacts that lie elsewhere: fetched over HTTPS, so that a URL's author gains nothing by it (AR-11 … AR-13).

Public addresses need no permission; a file of the operator names the private origins, with this Host's own credentials:

    [[origins]]
    origin = "https://artifacts.corp.example:8443"   # exactly; any address behind it will do
    authorization = "Bearer …"                       # sent to this origin alone; may be left out
    ca_file = "/etc/saisei/corp-ca.pem"              # of its certificate; without it a public authority's
"""

from __future__ import annotations

import asyncio
import ssl
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpcore
import httpx
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from saisei_contract.grammar import is_https_url
from saisei_service.egress import EgressPolicy, EgressRefused, PinnedBackend, Resolve, resolve


class PrivateOrigin(BaseModel):
    """An origin that may have private addresses, and how this Host shows itself there."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    origin: str
    authorization: str = ""
    ca_file: Path | None = None

    @field_validator("origin")
    @classmethod
    def _origin(cls, value: str) -> str:
        if not is_https_url(value) or origin_of(value) != value:
            raise ValueError("an origin is https://host or https://host:port in lower case, without a path")
        return value

    @field_validator("authorization")
    @classmethod
    def _header(cls, value: str) -> str:
        if not value.isascii() or not value.isprintable():
            raise ValueError("it is the value of one header, in printable ASCII")
        return value

    @field_validator("ca_file")
    @classmethod
    def _authorities(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"there is no file {value}")
        return value


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    origins: list[PrivateOrigin]


def load_origins(path: Path) -> list[PrivateOrigin]:
    """ValueError that names file and field, never a value; or OSError."""
    try:
        return _File.model_validate(tomllib.loads(path.read_text())).origins
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None


def origin_of(url: str) -> str:
    """`https://host[:port]` of an https URL, without the default port and in lower case."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return f"https://{host}" if parts.port in (None, 443) else f"https://{host}:{parts.port}"


@dataclass(frozen=True, slots=True)
class Patience:
    """In seconds: for a connection, for the next bytes, and for a whole artifact."""

    connect: float = 10.0
    read: float = 20.0
    whole: float = 120.0


class Unfetchable(Exception):  # noqa: N818 - a reason, not a fault
    """The source does not give it. `message` names no more of the URL than its host.

    `passing`: another try may do better. `too_large`: reading stopped at the limit.
    """

    def __init__(self, message: str, *, passing: bool = False, too_large: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing
        self.too_large = too_large


@dataclass(slots=True)
class _Site:
    """A pool of connections that lead to one private origin, or to public addresses only."""

    policy: EgressPolicy
    ca_file: Path | None = None
    authorization: str = ""
    pool: httpcore.AsyncConnectionPool | None = field(default=None, init=False)


class Sources:
    """The way out for artifacts. `public` False: only the private origins are there. Use it from one event loop."""

    def __init__(
        self,
        *,
        public: bool = True,
        private: Iterable[PrivateOrigin] = (),
        patience: Patience = Patience(),
        resolver: Resolve = resolve,
    ) -> None:
        self._public = _Site(EgressPolicy()) if public else None
        self._private = {
            known.origin: _Site(
                EgressPolicy(frozenset({urlsplit(known.origin).hostname or ""})), known.ca_file, known.authorization
            )
            for known in private
        }
        self._patience = patience
        self._resolver = resolver

    async def close(self) -> None:
        for site in (self._public, *self._private.values()):
            if site is not None and site.pool is not None:
                await site.pool.aclose()
                site.pool = None

    async def fetch(self, url: str, limit: int, write: Callable[[bytes], None]) -> None:
        """Gives `write` the body of at most `limit` bytes in pieces. Raises Unfetchable, and what `write` does."""
        site = self._private.get(origin_of(url), self._public)
        if site is None:
            raise Unfetchable("this Host fetches artifacts only from origins that its operator has named")
        host = urlsplit(url).hostname or ""
        try:
            async with asyncio.timeout(self._patience.whole):
                await self._exchange(site, url, host, limit, write)
        except EgressRefused as error:
            raise Unfetchable(str(error)) from None
        except TimeoutError:
            raise Unfetchable(f"{host} did not give it within {self._patience.whole:g} s", passing=True) from None
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            why = error.__cause__ or error.__context__
            if isinstance(why, ssl.SSLCertVerificationError):
                raise Unfetchable(f"the certificate of {host} is not valid: {why.verify_message}") from None
            raise Unfetchable(f"{host} cannot be reached", passing=True) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            raise Unfetchable(f"the exchange with {host} broke off", passing=True) from None

    async def _exchange(self, site: _Site, url: str, host: str, limit: int, write: Callable[[bytes], None]) -> None:
        headers = [("host", urlsplit(url).netloc), ("accept", "*/*"), ("accept-encoding", "identity")]
        headers.append(("user-agent", "Saisei"))
        if site.authorization:
            headers.append(("authorization", site.authorization))
        times = {"connect": self._patience.connect, "read": self._patience.read, "write": self._patience.read}
        request = httpcore.Request("GET", url, headers=headers, extensions={"timeout": {**times, "pool": None}})
        response = await self._connections(site).handle_async_request(request)
        try:
            _check(response, host, limit)
            size = 0
            async for chunk in response.aiter_stream():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                write(chunk)
        finally:
            await response.aclose()

    def _connections(self, site: _Site) -> httpcore.AsyncConnectionPool:
        if site.pool is None:
            site.pool = httpcore.AsyncConnectionPool(
                ssl_context=httpx.create_ssl_context()
                if site.ca_file is None
                else ssl.create_default_context(cafile=site.ca_file),
                max_keepalive_connections=16,
                keepalive_expiry=10,
                network_backend=PinnedBackend(site.policy, self._resolver),
            )
        return site.pool


def _check(response: httpcore.Response, host: str, limit: int) -> None:
    """AR-12: 200 alone, as it is, and of a size that may be."""
    if response.status != 200:
        moved = " (redirects are not followed)" if 300 <= response.status < 400 else ""
        passing = response.status == 429 or response.status >= 500
        raise Unfetchable(f"{host} answered with status {response.status}{moved}", passing=passing)
    for name, value in response.headers:
        match name.lower():
            case b"content-encoding" if value.strip().lower() not in (b"", b"identity"):
                raise Unfetchable(f"{host} sent it with a content coding, although it was asked not to")
            case b"content-length" if value.isdigit() and int(value) > limit:
                raise _too_large(limit)


def _too_large(limit: int) -> Unfetchable:
    return Unfetchable(f"it has more than the {limit:,} bytes that are left for it", too_large=True)
