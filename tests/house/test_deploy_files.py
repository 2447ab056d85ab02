"""What an operator reads and runs agrees with what the services take."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.house.regenerate import ROOT

from saisei_control.settings import ControlSettings
from saisei_gateway.settings import GatewaySettings
from saisei_runtime.settings import RuntimeSettings

CONTAINERS = ROOT / "deploy" / "containers"
SCRIPTS = [*sorted((ROOT / "deploy").rglob("*.sh")), ROOT / ".ci" / "run"]
# Read by the command line, and by the compose file itself.
OTHERS = {"SAISEI_ORIGIN", "SAISEI_TOKEN", "SAISEI_CA_FILE", "SAISEI_DATABASE_PASSWORD", "SAISEI_DEBUG"}


@pytest.mark.parametrize(
    "file", ["README.md", "deploy/containers/compose.yaml", "deploy/containers/base.Containerfile"]
)
def test_named_settings_exist(file: str) -> None:
    """Design 6: each SAISEI_ variable that an operator is told of is a setting of a service."""
    settings = (ControlSettings, RuntimeSettings, GatewaySettings)
    known = {f"SAISEI_{field.upper()}" for each in settings for field in each.model_fields} | OTHERS
    named = set(re.findall(r"\bSAISEI_[A-Z][A-Z_]*[A-Z]\b", (ROOT / file).read_text()))
    assert named <= known, sorted(named - known)


def test_each_service_has_its_container() -> None:
    """Design 1: one image per service, named in the compose file."""
    compose = (CONTAINERS / "compose.yaml").read_text()
    for service in ("control", "runtime", "gateway"):
        assert f'ENTRYPOINT ["saisei", "{service}"]' in (CONTAINERS / f"{service}.Containerfile").read_text()
        assert f"dockerfile: deploy/containers/{service}.Containerfile" in compose


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse(script: Path) -> None:
    """Design 6: the shell scripts are well-formed."""
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
