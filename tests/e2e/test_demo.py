"""The demo, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.house.regenerate import ROOT


def test_the_demo_keeps_its_promises() -> None:
    """W-005, W-107, W-155, S-14: five instances finish over a SIGKILL in mid-step, and nothing committed runs twice."""
    environment = os.environ | {"SAISEI_VENV": sys.prefix, "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", str(ROOT / "deploy" / "demo.sh")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "no committed step ran twice" in done.stdout
