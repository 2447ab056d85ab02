"""The commands `saisei token …`: they need the data folder's service credential, so they are the operator's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from saisei_cli.console import AsJson, open_access, print_json, print_rows

app = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke tokens of principals.")

Folder = Annotated[Path | None, typer.Option("--data-dir", help="The Host's data folder.")]


@app.command()
def create(
    principal: Annotated[str, typer.Option(help="Stable name of who acts; several tokens may share it.")],
    space: Annotated[
        list[str], typer.Option(help='SPACE:read,write,admin; may repeat; SPACE "*" is each. `write` includes use.')
    ],
    expires_in: Annotated[int | None, typer.Option(min=1, help="Seconds until it expires; default: never.")] = None,
    data_dir: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it as the last line. It can't be shown again."""
    from saisei_cli.access import SpaceGrant  # noqa: PLC0415 - see open_operator

    grants = tuple(SpaceGrant.parse(text) for text in space)
    with open_access(data_dir) as access:
        _print_token(access.create_token(principal, grants, expires_in), as_json)


@app.command()
def rotate(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `saisei token list` shows it.")],
    overlap: Annotated[int, typer.Option(min=0, help="Seconds that the old token stays valid.")] = 0,
    expires_in: Annotated[int | None, typer.Option(min=1, help="Seconds until the new one expires.")] = None,
    data_dir: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Make a new token of the same principal and rights, print it as the last line, and end the old one."""
    with open_access(data_dir) as access:
        _print_token(access.rotate_token(token_id, overlap, expires_in), as_json)


def _print_token(token: str, as_json: bool) -> None:
    if as_json:
        print_json({"token": token})
    else:
        print(token)


@app.command("list")
def list_(
    principal: Annotated[str | None, typer.Option(help="Only of this principal.")] = None,
    data_dir: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List tokens; never their texts."""
    with open_access(data_dir) as access:
        found = [_described(token) for token in access.tokens(principal)]
    if as_json:
        print_json(found)
        return
    print_rows(
        ("id", "principal", "spaces", "created", "expires", "revoked"),
        [
            (
                item["id"],
                item["principal"],
                " ".join(f"{space}:{','.join(rights)}" for space, rights in item["spaces"].items()),
                item["createdAt"],
                item["expiresAt"] or "",
                item["revokedAt"] or "",
            )
            for item in found
        ],
    )


def _described(token: Any) -> dict[str, Any]:
    return {
        "id": token.id,
        "principal": token.principal.name,
        "spaces": {
            entry.space: [name for name in ("read", "write", "use", "admin") if getattr(entry, name)]
            for entry in token.principal.rights
        },
        "createdAt": token.created_at,
        "expiresAt": token.expires_at if token.HasField("expires_at") else None,
        "revokedAt": token.revoked_at if token.HasField("revoked_at") else None,
    }


@app.command()
def revoke(
    principal: Annotated[str, typer.Option(help="Whose tokens all end.")],
    token_id: Annotated[str | None, typer.Option("--id", help="Only this token of the principal.")] = None,
    data_dir: Folder = None,
) -> None:
    """End each token of a principal at once; prints how many there were."""
    with open_access(data_dir) as access:
        print(access.revoke_tokens(principal, token_id))
