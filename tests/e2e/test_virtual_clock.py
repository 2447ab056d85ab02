"""`saisei dev --virtual-clock`: real services, time by request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostError

SOURCE = """
export class Month {
  async run(event, step) {
    await step.sleep("a month", 30 * 86400);
    try {
      await step.waitForEvent("never", { type: "never", timeoutSeconds: 86400 });
    } catch (error) {
      return { ended: error.name };
    }
  }
}
export default {};
"""
DAY = 86_400


@pytest.fixture(scope="module")
def virtual() -> Iterator[DevHost]:
    with DevHost("--virtual-clock") as running:
        yield running


@pytest.fixture(scope="module")
def month(virtual: DevHost, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("month")
    (folder / "main.mjs").write_text(SOURCE)
    (folder / "saisei.toml").write_text(
        'space = "tests"\nname = "calendar"\nmain = "main.mjs"\n[[workflows]]\nname = "month"\nclass = "Month"\n'
    )
    return virtual.deploy(folder).workflows["month"]


def test_a_month_passes_on_request(virtual: DevHost, month: str) -> None:
    """Design 2, W-111, W-114, W-119: a sleep never fires early, fires once due, and a wait's timeout after it."""
    client = virtual.client
    client.create_instance(month, "one")

    def status() -> Any:
        return client.instance(month, "one")["status"]

    eventually(lambda: status() == "sleeping")
    client.advance_clock(30 * DAY - 60)
    # Had it been due, it would have been started before the clock's answer.
    assert status() == "sleeping"
    client.advance_clock(60)
    eventually(lambda: status() == "waiting")
    client.advance_clock(DAY + 1)
    eventually(lambda: status() == "complete")
    assert client.instance(month, "one")["output"] == {"ended": "wait_timeout"}
    events = {event["type"]: event["timestamp"] for event in client.events(month, "one")}
    assert events["sleep_completed"] - events["sleep_started"] >= 30 * DAY * 1000
    assert events["wait_timed_out"] - events["wait_started"] > DAY * 1000


def test_the_clock_only_goes_forward(virtual: DevHost, host: DevHost) -> None:
    """Design 6: a clock is advanced by a positive number of seconds, at most 100 years at once, with the flag only."""
    for seconds in (0, -1, 1e12, 10**30, 3_155_760_001):
        with pytest.raises(HostError) as refused:
            virtual.client.advance_clock(seconds)
        assert refused.value.code == "invalid_request"
    with pytest.raises(HostError) as absent:
        host.client.advance_clock(1)
    assert absent.value.status == 404
