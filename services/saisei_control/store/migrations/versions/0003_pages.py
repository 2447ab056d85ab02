"""An index for pages of a Space."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    live = sa.text("deleted_at IS NULL")
    op.create_index(
        "resources_page", "resources", ["space", "uid"], unique=False, sqlite_where=live, postgresql_where=live
    )
