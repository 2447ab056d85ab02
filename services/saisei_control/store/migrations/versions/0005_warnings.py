"""What an Operation could not establish although nothing is known to be wrong."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("operations", sa.Column("warnings_json", sa.Text(), nullable=True))
