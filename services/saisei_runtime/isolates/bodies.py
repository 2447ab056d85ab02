"""Bodies whose end somebody waits for, and the Host's own answers in plain text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from saisei_runtime.isolates.port import FetchResult


class WatchedBody:
    """The same body; `ended(whole)` is called once, when it was read to its end or will not be.

    A class and not a generator: a generator that nobody began to read ends without a word.
    """

    def __init__(self, body: AsyncIterator[bytes], ended: Callable[[bool], None]) -> None:
        self._body = body
        self._ended = ended
        self._open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._body)
        except StopAsyncIteration:
            self._close(whole=True)
            raise
        except BaseException:
            self._close(whole=False)
            raise

    async def aclose(self) -> None:
        try:
            await close_body(self._body)
        finally:
            self._close(whole=False)

    def _close(self, *, whole: bool) -> None:
        if self._open:
            self._open = False
            self._ended(whole)


async def close_body(body: AsyncIterator[bytes]) -> None:
    """Says that nobody reads the rest."""
    close = getattr(body, "aclose", None)
    if close is not None:
        await close()


def plain_text(status: int, text: str) -> FetchResult:
    """What the Host answers in a Worker's place."""
    return FetchResult(status, [("content-type", "text/plain;charset=UTF-8")], _once(text.encode()))


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
