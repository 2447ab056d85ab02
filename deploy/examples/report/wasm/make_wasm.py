"""Assembles `moments.wasm`, instruction by instruction: `python make_wasm.py TARGET_FILE`.

    (module
      (memory (export "memory") 1)
      (func (export "sum") (param $n i32) (result f64)          ;; Σ x
        (local $at i32) (local $end i32) (local $total f64)
        …)
      (func (export "squares") (param $n i32) (param $mean f64) (result f64)   ;; Σ (x − mean)²
        …))

The numbers are `n` little-endian f64 from address 0 on.
"""

from __future__ import annotations

import sys
from pathlib import Path

I32, F64 = 0x7F, 0x7C
BLOCK_VOID = 0x40


def unsigned(value: int) -> bytes:
    """LEB128."""
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def vector(items: list[bytes]) -> bytes:
    return unsigned(len(items)) + b"".join(items)


def section(number: int, content: bytes) -> bytes:
    return bytes([number]) + unsigned(len(content)) + content


def name(text: str) -> bytes:
    return vector([bytes([byte]) for byte in text.encode()])


def function_type(parameters: list[int], results: list[int]) -> bytes:
    return b"\x60" + vector([bytes([kind]) for kind in parameters]) + vector([bytes([kind]) for kind in results])


def get(local: int) -> bytes:
    return b"\x20" + unsigned(local)


def put(local: int) -> bytes:
    return b"\x21" + unsigned(local)


def i32(value: int) -> bytes:
    return b"\x41" + unsigned(value)  # small and positive, so the signed form is the same


def loop_over_numbers(at: int, end: int, total: int, term: bytes) -> bytes:
    """`end = n * 8; while (at < end) { total += term; at += 8 }`, then `total` stays on the stack."""
    load_end = get(0) + i32(3) + b"\x74" + put(end)  # i32.shl
    leave_if_done = get(at) + get(end) + b"\x4f" + b"\x0d\x01"  # i32.ge_u, br_if 1
    add_term = get(total) + term + b"\xa0" + put(total)  # f64.add
    advance = get(at) + i32(8) + b"\x6a" + put(at)  # i32.add
    again = b"\x0c\x00"  # br 0
    body = bytes([0x03, BLOCK_VOID]) + leave_if_done + add_term + advance + again + b"\x0b"
    return load_end + bytes([0x02, BLOCK_VOID]) + body + b"\x0b" + get(total)


def code(extra_locals: list[tuple[int, int]], body: bytes) -> bytes:
    content = vector([unsigned(count) + bytes([kind]) for count, kind in extra_locals]) + body + b"\x0b"
    return unsigned(len(content)) + content


def module() -> bytes:
    load = b"\x2b\x03\x00"  # f64.load, aligned to 8, offset 0
    total = loop_over_numbers(at=1, end=2, total=3, term=get(1) + load)
    # (x − mean) is kept in local 5, for it is used twice.
    deviation = get(2) + load + get(1) + b"\xa1" + put(5)  # f64.sub
    square = deviation + get(5) + get(5) + b"\xa2"  # f64.mul
    squares = loop_over_numbers(at=2, end=3, total=4, term=square)
    return b"".join(
        [
            b"\x00asm\x01\x00\x00\x00",
            section(1, vector([function_type([I32], [F64]), function_type([I32, F64], [F64])])),
            section(3, vector([unsigned(0), unsigned(1)])),
            section(5, vector([b"\x00" + unsigned(1)])),
            section(
                7,
                vector(
                    [
                        name("memory") + b"\x02" + unsigned(0),
                        name("sum") + b"\x00" + unsigned(0),
                        name("squares") + b"\x00" + unsigned(1),
                    ]
                ),
            ),
            section(10, vector([code([(2, I32), (1, F64)], total), code([(2, I32), (2, F64)], squares)])),
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(module())
