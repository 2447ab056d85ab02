"""Random requests after the Host's own OpenAPI document, to a real Host over HTTPS, for a fixed time."""

from __future__ import annotations

import json
import random
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.support.dev_host import DevHost

# The whole suite plays for 20 seconds, --long for ten minutes.
SECONDS, SECONDS_LONG, REQUESTS = 20.0, 600.0, 200
# Streams stay open, and the clock is the test's own.
LEFT_OUT = ("/test/v1/clock:advance",)


class Client:
    def __init__(self, dev: DevHost) -> None:
        self.dev = dev
        context = ssl.create_default_context(cafile=dev.ready["caFile"])
        self.http = httpx.Client(verify=context, trust_env=False, base_url=dev.ready["origin"], timeout=60)
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()

    def send(self, case: Any) -> httpx.Response:
        """The case as schemathesis made it, with the token."""
        arguments = case.as_transport_kwargs(base_url=self.dev.ready["origin"])
        headers = {name: str(value) for name, value in (arguments.get("headers") or {}).items()}
        headers["authorization"] = f"Bearer {self.dev.token}"
        request = self.http.build_request(
            arguments["method"],
            arguments["url"],
            params=arguments.get("params") or None,
            content=_content(arguments),
            headers={name: value for name, value in headers.items() if _is_header(value)},
        )
        response = self.http.send(request, stream=True)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.read()
        response.close()
        return response


def _content(arguments: dict[str, Any]) -> bytes | None:
    if arguments.get("json") is not None:
        return json.dumps(arguments["json"]).encode()
    data = arguments.get("data")
    return data.encode() if isinstance(data, str) else data if isinstance(data, bytes) else None


def _is_header(value: str) -> bool:
    return value == value.strip() and value.isascii() and value.isprintable()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with DevHost() as dev:
        made = Client(dev)
        yield made
        made.http.close()


def test_no_request_breaks_the_host(client: Client, request: pytest.FixtureRequest) -> None:
    """H-180, H-182, H-001: a random request is answered with success or with a Problem, never with a 5xx."""
    schema = schemathesis.openapi.from_dict(client.document)
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.path not in LEFT_OUT]
    assert len(operations) >= 10
    seconds = SECONDS_LONG if request.config.getoption("--long") else SECONDS
    ends = time.monotonic() + seconds
    statuses: Counter[int] = Counter()
    seed = random.randrange(2**32)
    print("seed", seed)
    # On a slow machine as many requests take longer.
    while time.monotonic() < ends or statuses.total() <= REQUESTS:
        for operation in operations:
            until = time.monotonic() + seconds / len(operations) / 2
            _play(client, operation.as_strategy(), until, statuses, seed)
        seed += 1
    print(dict(statuses))
    assert client.http.get("/.well-known/takoform/v2").status_code == 200


def _play(client: Client, strategy: Any, until: float, statuses: Counter[int], seed: int) -> None:
    """Random cases of one operation until the time is over."""
    from hypothesis import seed as seeded  # noqa: PLC0415

    @seeded(seed)
    @settings(
        max_examples=15,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=strategy)
    def one(case: Any) -> None:
        if time.monotonic() > until:
            return
        response = client.send(case)
        statuses[response.status_code] += 1
        assert response.status_code < 500, (case.method, case.formatted_path, response.text)
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["status"] == response.status_code
        assert "Traceback" not in response.text if response.is_stream_consumed else True

    one()
