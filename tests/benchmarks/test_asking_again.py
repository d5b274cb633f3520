"""Requests that ask for an unusable reply again."""

from __future__ import annotations

import pytest

from harness.benchmark import Benchmark
from harness.benchmarks.dailymobility.benchmark import DailyMobility
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.chat import Asking, Chat
from harness.errors import InvalidReply
from harness.model import Completion, Request


async def asked(same_note: bool, retries: int = 3) -> list[str]:
    """The last messages of all requests for one answer, none of whose replies is usable."""
    found: list[str] = []

    async def ask(request: Request) -> Completion:
        found.append(request.messages[-1].content)
        return Completion("好的")

    chat = Chat(ask, Asking(parse_retries=retries), "zh", same_note=same_note)
    with pytest.raises(InvalidReply):
        await chat.json("问题")
    return found


@pytest.mark.anyio
async def test_each_retry_differs_from_the_one_before():
    """At temperature 0 the same request would buy the same reply."""
    found = await asked(same_note=False)
    assert len(set(found)) == len(found) == 4


@pytest.mark.anyio
async def test_benchmarks_that_ship_keep_the_requests_of_results_that_exist():
    """Their saved replies are found by these requests; a plug-in's first retry keeps its own."""
    first, *retries = await asked(same_note=True)
    assert len(retries) == 3
    assert len({first, *retries}) == 2
    assert (await asked(same_note=False))[:2] == [first, retries[0]]
    assert [cls.imports.same_note for cls in (StreamProfile, DailyMobility, Benchmark)] == [
        True,
        True,
        False,
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_run_asks_again_as_often_as_it_may(retries):
    """And no more."""
    assert len(await asked(same_note=False, retries=retries)) == 1 + retries
