"""The tables, their migrations, and the journal's writer over both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from engine_fakes import Host
from hypothesis import given
from hypothesis import strategies as st

from saisei_contract.errors import SaiseiError
from saisei_runtime.store import migrate_runtime
from saisei_runtime.store.schema import metadata
from saisei_runtime.store.text import loaded, stored
from saisei_runtime.workflow.identity import Incarnations, created_at_least
from saisei_runtime.workflow.records import Instance, QueuedEvent, Step
from saisei_runtime.workflow.statements import statements
from saisei_service.database import Database, open_database


def test_migrations_make_the_schema(database: Database) -> None:
    """W-005, design 2: what Alembic builds is what the code expects; running it again changes nothing."""
    migrate_runtime(database)
    with database.writer.begin() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "runtime_schema_version"})
        found = [
            change
            for change in compare_metadata(context, metadata)
            if "alembic" not in str(change) and "runtime_schema_version" not in str(change)
        ]
    assert found == []


def test_records_follow_the_columns() -> None:
    """W-001, W-002, W-003: the fields of a record are the columns of its table, in the same order."""
    for record, table in ((Instance, "instances"), (Step, "steps"), (QueuedEvent, "queued_events")):
        columns = [column.name for column in metadata.tables[f"workflow_{table}"].columns]
        assert list(record.__struct_fields__) == columns


@given(st.text(alphabet=st.sampled_from(["\0", "\\", "0", "a"]), max_size=12))
def test_stored_text_is_one_to_one(text: str) -> None:
    """W-020, W-091: U+0000 is a Unicode scalar like others; what is stored holds none and comes back."""
    assert "\0" not in stored(text)
    assert loaded(stored(text)) == text


def test_incarnations_ascend() -> None:
    """W-001: unique and in order of creation, also within one ms and when the clock goes back."""
    incarnations = Incarnations()
    made = [incarnations.new(ms) for ms in (5, 5, 5, 4, 6, 6)]
    assert made == sorted(set(made)) and all(len(one) == 32 for one in made)
    assert created_at_least(5) <= made[0] < created_at_least(6)


def test_no_hot_statement_scans_a_table(tmp_path: Path) -> None:
    """Design 2, design 4: every look-up and update of the journal goes through an index."""
    database = open_database(f"sqlite:///{tmp_path / 'plans.db'}")
    migrate_runtime(database)
    sql = statements(postgresql=False)
    texts = [getattr(sql, name) for name in sql.__dataclass_fields__ if name != "postgresql"]
    due = "SELECT incarnation FROM workflow_instances WHERE workflow_uid = ? AND due_at_ms IS NOT NULL"
    texts += [
        f"{due} AND due_at_ms <= ? ORDER BY due_at_ms LIMIT 10",
        "SELECT incarnation FROM workflow_instances WHERE lease_until_ms <= ?",
        "SELECT incarnation FROM workflow_instances WHERE purge_at_ms <= ?",
        "SELECT incarnation FROM workflow_instances WHERE workflow_uid = ? AND incarnation > ? ORDER BY incarnation",
        "SELECT * FROM workflow_event_log WHERE incarnation = ? AND event_id > ? ORDER BY event_id LIMIT 10",
    ]
    with database.reader.connect() as connection:
        for text in texts:
            for *_, detail in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", (None,) * text.count("?")):
                assert not detail.startswith(("SCAN t", "SCAN workflow_", "USE TEMP")), (detail, text)
    database.close()


async def test_a_refused_row_takes_no_other_down(host: Host) -> None:
    """W-004, design 2: a command that the database itself refuses fails alone, the rest of its batch commits."""
    host.define(lambda event, step: (yield step.do("a", lambda: b"{}")))

    class Poison:
        """No bytes: the driver cannot bind it."""

    outcomes = await asyncio.gather(
        *(host.engine.create("wf", f"i{n}", Poison() if n == 5 else None) for n in range(10)), return_exceptions=True
    )
    assert [n for n, one in enumerate(outcomes) if isinstance(one, SaiseiError)] == [5]
    assert outcomes[5].reason == "backend_unavailable"
    for n in range(10):
        if n != 5:
            await host.until(f"i{n}", "complete")


async def test_an_outage_is_backend_unavailable_and_passes(host: Host) -> None:
    """W-089, W-005: while the tables cannot be had callers get backend_unavailable; contexts go on afterwards."""
    ended = asyncio.Event()

    def program(event, step):
        yield step.do("a", lambda: b"{}")
        yield step.wait("w", "go", 600)
        yield step.do("b", lambda: b"{}")

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "waiting")
    with database_gone(host.database):
        with pytest.raises(SaiseiError) as caught:
            await host.engine.send_event("wf", "i", "go", None)
        assert caught.value.reason == "backend_unavailable"
        with pytest.raises(SaiseiError):
            await host.engine.get("wf", "i")
    await host.engine.send_event("wf", "i", "go", None)
    await host.until("i", "complete")
    ended.set()


class database_gone:  # noqa: N801 - reads as a statement
    """Every table is away for a while."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._rename("workflow_instances", "gone_instances")

    def __exit__(self, *_: object) -> None:
        self._rename("gone_instances", "workflow_instances")

    def _rename(self, old: str, new: str) -> None:
        with self._database.writer.begin() as connection:
            connection.execute(sa.text(f"ALTER TABLE {old} RENAME TO {new}"))
