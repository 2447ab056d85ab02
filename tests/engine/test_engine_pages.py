"""Pages of lists, when documents are large."""

from __future__ import annotations

from engine_fakes import Host

LARGE = b'{"text":"' + b"x" * 900_000 + b'"}'


async def test_a_page_of_instances_ends_before_it_grows_too_large(host: Host) -> None:
    """W-041: outputs of a MiB each still list: pages end early, and the walk misses and repeats nothing."""
    host.define(lambda event, step: iter_large())
    for number in range(7):
        await host.engine.create("wf", f"i{number}", None)
    for number in range(7):
        await host.until(f"i{number}", "complete")
    seen: list[str] = []
    cursor = None
    pages = 0
    while True:
        views, cursor = await host.engine.list("wf", None, 100, cursor)
        assert sum(len(view.output or b"") for view in views) < 3 * 1024 * 1024
        seen += [view.id for view in views]
        pages += 1
        if cursor is None:
            break
    assert seen == [f"i{number}" for number in range(7)]
    assert pages > 1


async def test_a_page_of_steps_ends_before_it_grows_too_large(host: Host) -> None:
    """W-041, W-096: a journal of large results is read in pages, in order, nothing twice."""

    def program(event, step):
        for number in range(6):
            yield step.do(f"s{number}", lambda: LARGE)

    host.define(program)
    await host.engine.create("wf", "i", None)
    await host.until("i", "complete")
    names: list[str] = []
    cursor = None
    while True:
        steps, cursor, _ = await host.engine.steps("wf", "i", cursor)
        assert sum(len(step.result or b"") for step in steps) < 3 * 1024 * 1024
        names += [step.name for step in steps]
        if cursor is None:
            break
    assert names == [f"s{number}" for number in range(6)]


def iter_large():  # type: ignore[no-untyped-def]
    yield from ()
    return LARGE
