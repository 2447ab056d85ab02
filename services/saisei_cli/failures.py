"""What a command line says when it cannot do what it was asked: one sentence, what to do, and status 1."""

from __future__ import annotations


class CommandFailure(Exception):  # noqa: N818 - it ends a command, and is not a fault of the program
    """Ends a command with status 1. `message` says what was wrong and where; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
