"""Schedules end to end: from saisei.toml to calls of `scheduled` in a real Worker, on a clock that the test moves."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.dev_host import DevHost, eventually

from saisei_cli.client import HostError
from saisei_cli.deploy.apply import Deployed
from saisei_cli.deploy.crons import WORKER_CRON_TRIGGER

APP = Path(__file__).parent / "apps" / "clockwork"
DAY = 86_400


@pytest.fixture(scope="module")
def virtual() -> Iterator[DevHost]:
    with DevHost("--virtual-clock") as running:
        yield running


@pytest.fixture(scope="module")
def clockwork(virtual: DevHost) -> Deployed:
    return virtual.deploy(APP)


def advance(host: DevHost, seconds: float) -> int:
    """Returns how many runs and contexts were begun."""
    return int(host.client.advance_clock(seconds)["started"])


def told(host: DevHost) -> list[str]:
    """What the handler wrote: expression and time of each call."""
    found = [str(line.get("message", line.get("msg", ""))) for line in host.log_lines("runtime")]
    return [text.removeprefix("ran ") for text in found if text.startswith("ran ")]


def triggers(host: DevHost) -> dict[str, Any]:
    return {item["spec"]["cron"]: item for item in host.client.resources(space="tests", form=WORKER_CRON_TRIGGER)}


def test_each_match_is_called(virtual: DevHost, clockwork: Deployed) -> None:
    """CR-05, CR-06, MW-27: an hour has six matches of */10, each called once with its own minute and expression."""
    assert advance(virtual, 3600) == 6
    eventually(lambda: len(told(virtual)) == 6)
    times = [text.partition(" at ")[2] for text in told(virtual)]
    assert len(set(times)) == 6
    assert all(time.endswith("0:00.000Z") for time in times)
    assert clockwork.hostname is not None
    seen = json.loads(virtual.client.fetch(clockwork.hostname, "/").body)
    assert {tuple(one["keys"]) for one in seen} == {("scheduledTime", "cron")}
    assert {one["cron"] for one in seen} == {"*/10 * * * *"}
    assert all(isinstance(one["scheduledTime"], int) and one["scheduledTime"] % 600_000 == 0 for one in seen)


def test_what_is_shown(virtual: DevHost, clockwork: Deployed) -> None:
    """CR-07: the next match lies at most ten minutes ahead of the Host's own clock, and moves on with it."""
    uid = triggers(virtual)["*/10 * * * *"]["uid"]
    first = virtual.client.resource(uid)["observed"]
    assert set(first) == {"cron", "timezone", "scheduleReady", "nextMatchAt"}
    assert (first["timezone"], first["scheduleReady"]) == ("UTC", True)
    advance(virtual, 600)
    second = virtual.client.resource(uid)["observed"]
    parsed = [datetime.fromisoformat(one["nextMatchAt"]).astimezone(UTC) for one in (first, second)]
    assert (parsed[1] - parsed[0]).total_seconds() == 600
    leap = virtual.client.resource(triggers(virtual)["30 2 29 2 *"]["uid"])["observed"]["nextMatchAt"]
    assert leap.endswith("-02-29T02:30:00Z")


def test_a_killed_runtime_forgets_no_record(virtual: DevHost, clockwork: Deployed) -> None:
    """CR-05: after SIGKILL the schedule goes on with the next match; what was missed meanwhile is not made up for."""
    before = len(told(virtual))
    os.kill(virtual.service_pid("runtime"), signal.SIGKILL)

    def ready() -> bool:
        try:
            return advance(virtual, 1) >= 0
        except HostError:
            return False

    eventually(ready)

    def runs() -> bool:
        advance(virtual, 600)
        return len(told(virtual)) > before

    eventually(runs)


def test_a_run_that_a_crash_cuts_off(virtual: DevHost, tmp_path: Path) -> None:
    """CR-05, CR-06: the match that was recorded is called again by the next runtime, with the same time."""
    toml = 'space = "tests"\nname = "cutter"\nmain = "main.mjs"\ncrons = ["0 0 * * *"]\n'
    (tmp_path / "saisei.toml").write_text(toml)
    (tmp_path / "main.mjs").write_text(
        """export default { async scheduled(event) {
          console.log(`ran ${event.cron} of the cutter at ${event.scheduledTime}`);
          await new Promise((resolve) => setTimeout(resolve, 600_000)); } };"""
    )
    deployed = virtual.deploy(tmp_path)

    def calls() -> list[str]:
        return [text for text in told(virtual) if "cutter" in text]

    assert advance(virtual, DAY) >= 1
    eventually(calls)
    os.kill(virtual.service_pid("runtime"), signal.SIGKILL)
    eventually(lambda: len(calls()) >= 2, within_seconds=90)
    assert len(set(calls())) == 1
    trigger = triggers(virtual)["0 0 * * *"]
    assert trigger["spec"]["worker"]["resourceUid"] == deployed.worker_uid
    virtual.client.wait_operation(virtual.client.delete_resource(trigger["uid"], trigger["generation"]))


def test_deploying_changes_the_schedules(virtual: DevHost, clockwork: Deployed, tmp_path: Path) -> None:
    """CR-07, WD-06: a schedule that the file has no more goes; without any, a Version without the handler is taken."""
    assert set(triggers(virtual)) == {"*/10 * * * *", "30 2 29 2 *"}
    assert [change.verb for change in virtual.deploy(APP).changes if change.form == "WorkerCronTrigger"] == [
        "unchanged"
    ] * 2
    copy = shutil.copytree(APP, tmp_path / "clockwork")
    toml = copy / "saisei.toml"
    toml.write_text(toml.read_text().replace('"*/10 * * * *"', '"0 * * * *"'))
    virtual.deploy(copy)
    assert set(triggers(virtual)) == {"0 * * * *", "30 2 29 2 *"}
    before = len(told(virtual))
    assert advance(virtual, 7200) == 2
    eventually(lambda: len(told(virtual)) == before + 2)
    toml.write_text('space = "tests"\nname = "clockwork"\nmain = "main.mjs"\nendpoint = true\n')
    (copy / "main.mjs").write_text("export default { fetch: () => new Response('x') };")
    virtual.deploy(copy)
    assert triggers(virtual) == {}
    assert advance(virtual, DAY) == 0


def test_a_failed_run_is_in_the_log(virtual: DevHost, tmp_path: Path) -> None:
    """CR-06, MW-24: a throw is told once, with its place, and the match is not tried again."""
    toml = 'space = "tests"\nname = "thrower"\nmain = "main.mjs"\ncrons = ["0 0 * * *"]\n'
    (tmp_path / "saisei.toml").write_text(toml)
    (tmp_path / "main.mjs").write_text("export default { scheduled() { throw new RangeError('my own failure'); } };")
    virtual.deploy(tmp_path)
    assert advance(virtual, DAY) == 1

    def lines() -> list[str]:
        return [text for text in map(json.dumps, virtual.log_lines("runtime")) if "my own failure" in text]

    eventually(lines)
    advance(virtual, 3600)
    assert len(lines()) == 1
    assert "main.mjs" in lines()[0]
