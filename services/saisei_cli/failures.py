"""What a command line says when it cannot do what it was asked: one sentence, what to do, and status 1."""

from __future__ import annotations


class CommandFailure(Exception):  # noqa: N818 - it ends a command, and is not a fault of the program
    """Ends a command with status 1. `message` says what was wrong and where; `hint` says what to do about it.

    `code` is the Host's, when it was the Host that refused or failed.
    """

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code

    def as_json(self) -> dict[str, object]:
        """What a command with --json prints instead of its result."""
        named = {"code": self.code, "message": self.message, "hint": self.hint}
        return {"error": {key: value for key, value in named.items() if value}}
