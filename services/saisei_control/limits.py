"""The limits that discovery publishes (H-040, H-043)."""

from __future__ import annotations

from saisei_contract.operations import DEFAULT_REPLAY_WINDOW_SECONDS

MAX_REQUEST_BYTES = 4_194_304
MAX_PAGE_SIZE = 100
REPLAY_WINDOW_SECONDS = DEFAULT_REPLAY_WINDOW_SECONDS
