"""What the demo promises, checked from outside: outputs against the data, the event log against the effects' marks."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

MEASURES = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
STEPS = ("parse", "aggregate", "draft", "correlate", "seal")
FAILURES_OF_DRAFT = 2
TOLERANCE = 0.0011  # outputs are rounded to three decimals

Event = dict[str, Any]


def _count(events: list[Event], kind: str, step: str) -> int:
    return sum(1 for event in events if event["type"] == kind and event.get("stepName") == step)


def effect_table(
    events: dict[str, list[Event]], marks: list[str], killed_step: str
) -> list[tuple[str, str, int, int, int, int]]:
    """Rows (instance, step, runs of the effect, failed attempts, runs cut off by the kill, commits)."""
    runs = Counter(tuple(mark.rsplit(".", 2)[:2]) for mark in marks)
    rows = []
    for name, seen in events.items():
        for step in STEPS:
            failed = _count(seen, "attempt_errored", step)
            committed = _count(seen, "step_completed", step)
            cut = max(0, runs[name, step] - failed - committed) if step == killed_step else 0
            rows.append((name, step, runs[name, step], failed, cut, committed))
    return rows


def check_all(
    reports: dict[str, dict[str, str]],
    statuses: dict[str, dict[str, Any]],
    events: dict[str, list[Event]],
    marks: list[str],
    penguins: Path,
) -> list[str]:
    """Everything that is not as promised; empty when all is well."""
    wrong = []
    for name, params in reports.items():
        status = statuses[name]
        if status["status"] != "complete":
            wrong.append(f"{name} is {status['status']}: {status.get('error')}")
            continue
        wrong += [f"{name}: {fault}" for fault in _faults_of_output(status["output"], name, params, penguins)]
        wrong += [f"{name}: {fault}" for fault in _faults_of_log(events[name])]
    for name, step, runs, failed, cut, committed in effect_table(events, marks, killed_step="correlate"):
        expected_failures = FAILURES_OF_DRAFT if step == "draft" else 0
        if failed != expected_failures:
            wrong.append(f"{name}: step {step} failed {failed} times, not {expected_failures}")
        if committed != 1:
            wrong.append(f"{name}: step {step} was committed {committed} times")
        if step == "correlate" and cut != 1:
            wrong.append(f"{name}: the kill should have cut off one run of {step}, not {cut}")
        if runs != failed + cut + committed:
            wrong.append(
                f"{name}: step {step} ran {runs} times for {failed} failures, {cut} cuts and {committed} commit"
            )
    return wrong


def _faults_of_log(events: list[Event]) -> list[str]:
    faults = []
    if [event["eventId"] for event in events] != list(range(1, len(events) + 1)):
        faults.append("event ids are not 1, 2, 3 …")
    ends = [e["type"] for e in events if e["type"] in ("workflow_completed", "workflow_errored", "workflow_terminated")]
    if ends != ["workflow_completed"] or events[-1]["type"] != "workflow_completed":
        faults.append(f"it ended with {ends}")
    return faults


def _faults_of_output(output: dict[str, Any], name: str, params: dict[str, str], penguins: Path) -> list[str]:
    with penguins.open() as file:
        rows = [row for row in csv.DictReader(file) if row[params["by"]] == params["group"]]
    complete = [row for row in rows if "NA" not in (row[measure] for measure in MEASURES)]
    series = {measure: [float(row[measure]) for row in complete] for measure in MEASURES}
    expected: dict[str, float] = {"incomplete": len(rows) - len(complete)}
    for measure, values in series.items():
        expected[f"{measure}.n"] = len(values)
        expected[f"{measure}.mean"] = statistics.fmean(values)
        expected[f"{measure}.deviation"] = statistics.stdev(values)
        expected[f"{measure}.least"] = min(values)
        expected[f"{measure}.most"] = max(values)
    expected["correlation"] = statistics.correlation(series["body_mass_g"], series["flipper_length_mm"])
    actual: dict[str, float] = {
        f"{measure}.{key}": value for measure, found in output["measures"].items() for key, value in found.items()
    }
    actual |= {"incomplete": output["incomplete"], "correlation": output["correlation"]["massAndFlipper"]}
    faults = [
        f"{key} is {actual.get(key)}, not {value:.3f}"
        for key, value in expected.items()
        if key not in actual or abs(actual[key] - value) > TOLERANCE
    ]
    if output["approvedBy"] != f"reviewer of {name}":
        faults.append(f"it was approved by {output['approvedBy']!r}")
    return faults
