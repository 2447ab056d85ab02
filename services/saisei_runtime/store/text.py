"""Text of applications inside text columns: PostgreSQL holds every Unicode scalar but U+0000."""

from __future__ import annotations

from typing import overload


@overload
def stored(text: str) -> str: ...
@overload
def stored(text: str | None) -> str | None: ...
def stored(text: str | None) -> str | None:
    """What a text column holds for `text`. Ordinary text is stored as it is; the mapping is one to one."""
    if text is None or ("\0" not in text and "\\" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\0", "\\0")


@overload
def loaded(text: str) -> str: ...
@overload
def loaded(text: str | None) -> str | None: ...
def loaded(text: str | None) -> str | None:
    """The inverse of `stored`."""
    if text is None or "\\" not in text:
        return text
    return "\\".join(part.replace("\\0", "\0") for part in text.split("\\\\"))
