"""A client of Workers over real TLS that sends exactly the path it is told, on one connection."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass
from types import TracebackType

from tests.support.dev_host import DevHost


@dataclass(frozen=True, slots=True)
class Page:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Browser:
    """`with Browser(host, hostname) as browser:`. Names of answered headers are in lower case."""

    def __init__(self, host: DevHost, hostname: str) -> None:
        self._port = int(host.ready["origin"].rpartition(":")[2])
        self._tls = ssl.create_default_context(cafile=host.ready["caFile"])
        self.hostname = hostname
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def open(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> http.client.HTTPResponse:
        """The response with its body unread. `_` in a header's name stands for `-`."""
        if self._connection is None:
            raw = socket.create_connection(("127.0.0.1", self._port), timeout=60)
            self._connection = http.client.HTTPConnection(self.hostname)
            self._connection.sock = self._tls.wrap_socket(raw, server_hostname=self.hostname)
        connection = self._connection
        # http.client refuses spaces and non-ASCII only; everything else goes out as it is.
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("host", f"{self.hostname}:{self._port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse()

    def get(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Page:
        response = self.open(path, method, body, **headers)
        data = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        assert len(found) == len(response.getheaders()), "each header once"
        return Page(response.status, found, data)
