"""Cron expressions: which ones are taken, which minutes match, and which match comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.cron import CronError, parse_cron
from saisei_contract.errors import SaiseiError
from saisei_contract.forms import urls
from saisei_contract.forms.worker_cron_trigger import FORM, WorkerCronTriggerSpec


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def told(at_ms: int | None) -> str | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M")


def following(cron: str, after: str, count: int) -> list[str | None]:
    parsed, at, found = parse_cron(cron), ms(after), []
    for _ in range(count):
        next_ms = parsed.next_after(at)
        found.append(told(next_ms))
        if next_ms is None:
            break
        at = next_ms
    return found


@pytest.mark.parametrize(
    ("cron", "field", "values"),
    [
        ("*/15 * * * *", "minutes", {0, 15, 30, 45}),
        ("*/7 * * * *", "minutes", {0, 7, 14, 21, 28, 35, 42, 49, 56}),
        ("*/60 * * * *", "minutes", {0}),
        ("10-20/4 * * * *", "minutes", {10, 14, 18}),
        ("5-5 * * * *", "minutes", {5}),
        ("58-59,0-1,30 * * * *", "minutes", {58, 59, 0, 1, 30}),
        ("1,1,1-2 * * * *", "minutes", {1, 2}),
        ("05 * * * *", "minutes", {5}),
        ("0 */5 * * *", "hours", {0, 5, 10, 15, 20}),
        ("0 9-17/2 * * *", "hours", {9, 11, 13, 15, 17}),
        ("0 0 */10 * *", "days", {1, 11, 21, 31}),
        ("0 0 2-31/10 * *", "days", {2, 12, 22}),
        ("0 0 * */5 *", "months", {1, 6, 11}),
        ("0 0 * 2-12/5 *", "months", {2, 7, 12}),
        ("0 0 * * 1-5", "weekdays", {1, 2, 3, 4, 5}),
        ("0 0 * * */2", "weekdays", {0, 2, 4, 6}),
        ("0 0 * * 0,6", "weekdays", {0, 6}),
    ],
)
def test_fields(cron: str, field: str, values: set[int]) -> None:
    """CR-02, CR-03: lists, ranges and steps; a step counts from the range's low or the field's minimum."""
    assert getattr(parse_cron(cron), field) == values


@pytest.mark.parametrize(
    "cron",
    [
        "",
        " ",
        "* * * *",
        "* * * * * *",
        "*  * * * *",
        " * * * * *",
        "* * * * * ",
        "*\t* * * *",
        "* * * * *\n",
        "@daily",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 7",
        "* * * JAN *",
        "* * * * SUN",
        "* * * * mon-fri",
        "5/2 * * * *",
        "20-10 * * * *",
        "*/0 * * * *",
        "*/61 * * * *",
        "* */25 * * *",
        "* * */32 * *",
        "* * * */13 *",
        "* * * * */8",
        "0-59/61 * * * *",
        ",1 * * * *",
        "1, * * * *",
        "1,,2 * * * *",
        "1- * * * *",
        "-1 * * * *",
        "1-2-3 * * * *",
        "1/2/3 * * * *",
        "*-5 * * * *",
        "*/ * * * *",
        "/5 * * * *",
        "+5 * * * *",
        "1.5 * * * *",
        "0x1 * * * *",
        "1_0 * * * *",
        "? * * * *",
        "* * L * *",
        "** * * * *",
        "\u0661 * * * *",
        "* * * * *\u00a0",
        "1 " + "1," * 40 + "1 * * *",
        "99999999999999999999999 * * * *",
    ],
)
def test_what_is_no_schedule(cron: str) -> None:
    """CR-01, CR-02: names, empty items, extra spaces, ranges and steps that are none, 65 characters."""
    with pytest.raises(CronError):
        parse_cron(cron)
    with pytest.raises(SaiseiError) as refusal:
        FORM.validate({"worker": {"resourceUid": "w"}, "cron": cron})
    assert refusal.value.reason == "invalid_spec"
    assert refusal.value.detail.startswith("spec.cron ")


@pytest.mark.parametrize(
    ("cron", "after", "matches"),
    [
        ("* * * * *", "2026-11-30T23:58:30", ["2026-11-30T23:59", "2026-12-01T00:00"]),
        ("* * * * *", "2026-11-30T23:59:00", ["2026-12-01T00:00"]),
        ("0 0 1 1 *", "2026-01-01T00:00", ["2027-01-01T00:00", "2028-01-01T00:00"]),
        ("59 23 31 12 *", "2026-12-31T23:58", ["2026-12-31T23:59", "2027-12-31T23:59"]),
        ("0 12 29 2 *", "2026-01-01T00:00", ["2028-02-29T12:00", "2032-02-29T12:00"]),
        ("0 0 29 2 *", "2096-03-01T00:00", ["2104-02-29T00:00"]),
        ("0 0 31 * *", "2026-01-31T00:00", ["2026-03-31T00:00", "2026-05-31T00:00", "2026-07-31T00:00"]),
        ("0 0 30 2 *", "2026-01-01T00:00", [None]),
        ("0 0 31 2,4,6,9,11 *", "2026-01-01T00:00", [None]),
        # 2026-11-01 is a Sunday.
        ("0 0 * * 0", "2026-11-01T00:00", ["2026-11-08T00:00"]),
        ("0 0 13 * 5", "2026-11-01T00:00", ["2026-11-06T00:00", "2026-11-13T00:00", "2026-11-20T00:00"]),
        ("0 0 30 2 1", "2026-02-01T00:00", ["2026-02-02T00:00", "2026-02-09T00:00"]),
        # Literally "*" restricts nothing; "*/1" and the list of all are restrictions that each day passes.
        ("0 0 * * 1", "2026-11-01T00:00", ["2026-11-02T00:00", "2026-11-09T00:00"]),
        ("0 0 */1 * 1", "2026-11-01T00:00", ["2026-11-02T00:00", "2026-11-03T00:00"]),
        ("0 0 15 * 0-6", "2026-11-01T00:00", ["2026-11-02T00:00", "2026-11-03T00:00"]),
        ("0 0 15 * *", "2026-11-01T00:00", ["2026-11-15T00:00", "2026-12-15T00:00"]),
        # Hours that a summer time would skip or repeat elsewhere.
        ("30 1-3 29 3 *", "2026-03-29T00:00", ["2026-03-29T01:30", "2026-03-29T02:30", "2026-03-29T03:30"]),
        ("59 23 31 12 *", "9998-12-31T23:59", ["9999-12-31T23:59", None]),
    ],
)
def test_next_matches(cron: str, after: str, matches: list[str | None]) -> None:
    """CR-03, CR-04, CR-05: in UTC, strictly later, never on a date that does not exist."""
    assert following(cron, after, len(matches)) == matches


@st.composite
def expressions(draw: st.DrawFn) -> str:
    def field(low: int, high: int) -> str:
        def item() -> str:
            start, end = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
            step = draw(st.integers(1, high - low + 1))
            return str(draw(st.sampled_from(["*", f"{start}", f"{start}-{end}", f"*/{step}", f"{start}-{end}/{step}"])))

        return ",".join(item() for _ in range(draw(st.integers(1, 2))))

    return " ".join(field(*bounds) for bounds in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6)))


def naive(cron: str, at: datetime) -> bool:
    """The rules, written down again in the plainest way."""

    def has(text: str, value: int, low: int, high: int) -> bool:
        for item in text.split(","):
            spread, _, step = item.partition("/")
            first, _, last = (f"{low}-{high}" if spread == "*" else spread).partition("-")
            if value in range(int(first), int(last or first) + 1, int(step or 1)):
                return True
        return False

    minute, hour, day, month, weekday = cron.split(" ")
    days = has(day, at.day, 1, 31), has(weekday, (at.weekday() + 1) % 7, 0, 6)
    fits = any(days) if day != "*" and weekday != "*" else all(days)
    return fits and has(minute, at.minute, 0, 59) and has(hour, at.hour, 0, 23) and has(month, at.month, 1, 12)


@given(expressions(), st.datetimes(datetime(1999, 1, 1), datetime(2120, 1, 1)))
def test_against_a_plain_model(cron: str, start: datetime) -> None:
    """CR-02 … CR-04: the next match is the first minute, one by one, that the rules accept."""
    start = start.replace(tzinfo=UTC)
    parsed = parse_cron(cron)
    found = parsed.next_after(int(start.timestamp() * 1000))
    minute = start.replace(second=0, microsecond=0)
    for _ in range(3 * 24 * 60):
        minute += timedelta(minutes=1)
        at_ms = int(minute.timestamp()) * 1000
        assert parsed.matches(at_ms) == naive(cron, minute)
        if found == at_ms:
            return
        assert not parsed.matches(at_ms)
    assert found is None or found > at_ms


def test_the_form() -> None:
    """CR-01, F-01, F-06: closed, the Worker fixed, the expression to be changed; it is kept as it was written."""
    spec = {"worker": {"resourceUid": "w"}, "cron": "05 * * * *"}
    assert FORM.validate(spec) == WorkerCronTriggerSpec("w", "05 * * * *")
    assert [(one.path, one.target_form_url, one.uid) for one in FORM.references(spec)] == [
        ("spec.worker", urls.MODULE_WORKER, "w")
    ]
    FORM.immutable(spec, spec | {"cron": "* * * * *"})
    with pytest.raises(SaiseiError, match=r"spec\.worker"):
        FORM.immutable(spec, spec | {"worker": {"resourceUid": "x"}})
    for wrong in ({"cron": "* * * * *"}, spec | {"timezone": "UTC"}, spec | {"cron": None}, spec | {"cron": 5}):
        with pytest.raises(SaiseiError, match="invalid_spec"):
            FORM.validate(wrong)


def test_errors_name_the_field() -> None:
    """CR-02, H-182: the item, its field and the rule."""
    with pytest.raises(CronError, match=r"has '7' in its day of the week field, which is from 0 to 6"):
        parse_cron("* * * * 7")
    with pytest.raises(CronError, match=r"'5/2' in its minute field, where only \* and ranges may have a step"):
        parse_cron("5/2 * * * *")
