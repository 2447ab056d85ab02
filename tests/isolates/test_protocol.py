"""Frames: any cut of the byte stream gives the same frames; malformed lines are closed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from saisei_runtime.isolates.protocol import MAX_FRAME, FrameLine, Ping, encode_frame


class Transport:
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def line(frames: list[Any]) -> tuple[FrameLine, Transport]:
    made = FrameLine(lambda head, body: frames.append((head, body)), lambda: None)
    transport = Transport()
    made.connection_made(transport)  # type: ignore[arg-type]
    return made, transport


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=10))
def test_frames_survive_any_fragmentation(bodies: list[bytes], cuts: list[int]) -> None:
    """Design 3: frames are found whatever the pieces in which the bytes arrive."""
    stream = b"".join(encode_frame(Ping(number), body) for number, body in enumerate(bodies))
    frames: list[Any] = []
    reader, _ = line(frames)
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        reader.data_received(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert frames == [(b'{"t":"ping","number":%d}' % number, body) for number, body in enumerate(bodies)]


def test_malformed_lengths_close_the_line() -> None:
    """Design 3: a length that cannot be right ends the line, so nobody can make the runtime hold endless bytes."""
    for total, head in ((MAX_FRAME + 1, 2), (10, 9), (3, 0)):
        reader, transport = line([])
        reader.data_received(total.to_bytes(4, "big") + head.to_bytes(4, "big") + b"x" * 16)
        assert transport.aborted
