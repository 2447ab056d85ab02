"""What a run cost: CPU and memory of every process of a Host, read from /proc, and percentiles."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU milliseconds since each process began (ended children included), and resident bytes now."""

    cpu_ms: float
    rss_bytes: int
    processes: int


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def process_tree(root: int) -> list[int]:
    """`root` and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo.extend(children.get(pid, ()))
    return found


def usage(pids: Iterable[int]) -> Usage:
    cpu = rss = count = 0
    for pid in pids:
        stat = _stat(pid)
        if stat is None:
            continue
        count += 1
        # utime, stime and those of children that were waited for (fields 14-17 of proc(5)); rss is field 24.
        cpu += sum(int(stat[field]) for field in (11, 12, 13, 14))
        rss += int(stat[21]) * _PAGE
    return Usage(cpu * 1000 / _TICKS, rss, count)


def own_cpu_ms(pid: int) -> float:
    """User and system milliseconds of one process since it began, without its children."""
    stat = _stat(pid)
    return 0.0 if stat is None else (int(stat[11]) + int(stat[12])) * 1000 / _TICKS


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest-rank percentile; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
