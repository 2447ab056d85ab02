"""The command `saisei dev`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


def dev(
    data_dir: Annotated[Path, typer.Option(help="Folder of everything that this Host keeps.")] = Path(".saisei"),
    listen: Annotated[str, typer.Option(help="Address of the gateway; port 0 picks a free one.")] = "127.0.0.1:8443",
    virtual_clock: Annotated[
        bool, typer.Option("--virtual-clock", help="Time stands still until a test advances it.")
    ] = False,
    preview_forms: Annotated[
        bool, typer.Option(help="Take Forms that this version serves in part; workflows and Workers need none.")
    ] = True,
    workers_domain: Annotated[str, typer.Option(help="Parent of the Workers' hostnames.")] = "workers.localhost",
    log_level: Annotated[LogLevel, typer.Option(case_sensitive=False, help="What the logs hold.")] = LogLevel.INFO,
) -> None:
    """Run a whole Host on this machine: three services, a local CA, a token. One JSON line on stdout says when ready.

    That line and the data folder hold secrets (token, keys): keep both to yourself.

    Ctrl-C (or SIGTERM) drains and ends with status 0. The data folder's dev.json holds the ready line with current
    pids.
    """
    from saisei_cli.dev.layout import DataFolder  # noqa: PLC0415 - gRPC loads slowly, and only this command needs it
    from saisei_cli.dev.supervisor import DevOptions, main  # noqa: PLC0415

    main(DevOptions(DataFolder.at(data_dir), listen, virtual_clock, preview_forms, workers_domain, log_level.value))
