"""The README's example does what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.house.regenerate import ROOT
from tests.support.dev_host import DevHost, eventually


def test_the_readme_example(host: DevHost, tmp_path: Path) -> None:
    """Design 6: the example is copied, deployed and driven with the very commands that the README shows."""
    text = (ROOT / "README.md").read_text()
    # The first of each kind: further ones are of other apps.
    blocks = dict(reversed(re.findall(r"```(js|toml)\n[/#]+ \S+\n(.*?)```", text, re.DOTALL)))
    (tmp_path / "main.mjs").write_text(blocks["js"])
    (tmp_path / "saisei.toml").write_text(blocks["toml"])

    def saisei(line: str) -> str:
        command = re.search(rf"^saisei ({line}.*)$", text, re.MULTILINE)
        assert command is not None, line
        shell = f"{sys.executable} -m saisei_cli {command[1]} --data-dir {host.data_dir}"
        done = subprocess.run(shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    deployed = saisei("deploy")
    uid = re.findall(r"workflow +order +(\S+)", deployed)[0]
    saisei("workflows create")
    eventually(lambda: host.client.instance(uid, "order-1")["status"] == "waiting", within_seconds=30)
    saisei("workflows send-event")
    assert "workflow_completed" in saisei("workflows tail")
    output = host.client.instance(uid, "order-1")["output"]
    assert output == {"approvedBy": "Ada", "invoice": {"item": "tea", "total": 12}}
