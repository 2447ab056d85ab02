"""Readers of event streams."""

from __future__ import annotations

from saisei_cli.streams import Record, lines_of, read_ndjson, read_sse


def test_sse_records_comments_and_the_end() -> None:
    """Design 6: `event` is the type and `data` the event; comments are heartbeats; `end` is the last record."""
    lines = [
        ": heartbeat",
        "",
        "id: 1",
        "event: workflow_queued",
        'data: {"eventId":1}',
        "",
        "event: end",
        "data: {}",
        "",
    ]
    assert list(read_sse(lines)) == [Record("workflow_queued", {"eventId": 1}), Record("end", {})]


def test_sse_data_over_several_lines() -> None:
    """Design 6: several data lines are one record's text."""
    assert list(read_sse(["event: a", 'data: {"x":', "data: 1}", ""])) == [Record("a", {"x": 1})]


def test_sse_record_without_its_empty_line_is_cut() -> None:
    """Design 5: a connection that is cut in mid-record yields nothing of it, so that a resume gets it whole."""
    assert list(read_sse(["event: a", 'data: {"eventId":1}'])) == []


def test_ndjson_records_and_heartbeats() -> None:
    """Design 6: one object a line; empty lines are heartbeats; {"type":"end"} is the last."""
    lines = ['{"type":"workflow_queued","eventId":1}', "", '{"type":"end"}']
    assert [record.type for record in read_ndjson(lines)] == ["workflow_queued", "end"]


def test_only_a_newline_ends_a_line() -> None:
    """S-10, Design 6: separators that other places take for line ends stay in the text, wherever the parts are cut."""
    body = 'event: a\ndata: {"t":"x\u0085\u2028\u2029y"}\r\n\n'.encode()
    for size in (1, 2, 7, len(body)):
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        (record,) = read_sse(lines_of(parts))
        assert record.event == {"t": "x\u0085\u2028\u2029y"}
