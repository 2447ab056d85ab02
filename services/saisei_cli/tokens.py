"""The commands `saisei token …`: they need the data folder's service credential, so they are the operator's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from saisei_cli.access import Access, SpaceGrant
from saisei_cli.connection import DEFAULT_DATA_DIR, dev_description
from saisei_cli.failures import CommandFailure

app = typer.Typer(no_args_is_help=True, help="Make and revoke tokens of principals.")

Folder = Annotated[Path | None, typer.Option("--data-dir", help="The Host's data folder.")]


@app.command()
def create(
    principal: Annotated[str, typer.Option(help="Stable name of who acts; several tokens may share it.")],
    space: Annotated[
        list[str], typer.Option(help='SPACE:read,write; may repeat; SPACE "*" is each. `write` includes use.')
    ],
    expires_in: Annotated[int | None, typer.Option(min=1, help="Seconds until it expires; default: never.")] = None,
    data_dir: Folder = None,
) -> None:
    """Make a token and print it as the last line. It can't be shown again."""
    grants = tuple(SpaceGrant.parse(text) for text in space)
    with _access(data_dir) as access:
        print(access.create_token(principal, grants, expires_in))


@app.command()
def revoke(principal: Annotated[str, typer.Option(help="Whose tokens all end.")], data_dir: Folder = None) -> None:
    """End each token of a principal at once; prints how many there were."""
    with _access(data_dir) as access:
        print(access.revoke_tokens(principal))


def _access(data_dir: Path | None) -> Access:
    """Where control is: the environment, else what the running `saisei dev` wrote, else the default place."""
    folder = (data_dir or Path(os.environ.get("SAISEI_DATA_DIR", DEFAULT_DATA_DIR))).absolute()
    credential = Path(os.environ.get("SAISEI_SERVICE_CREDENTIAL_FILE", folder / "service.key"))
    address = os.environ.get("SAISEI_CONTROL_ADDRESS")
    if data_dir is not None or address is None:
        try:
            address = str(dev_description(folder)["grpc"]["control"])
        except CommandFailure:
            socket = folder / "run" / "control.sock"
            if not socket.exists():
                raise
            address = f"unix:{socket}"
    return Access(address, credential)
