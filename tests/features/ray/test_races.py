"""Workers where a request is sent a second time: the driver makes both tries, which race."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from harness.endpoint.transport import Received
from harness.errors import (
    HarnessError,
)
from tests.features.ray.test_crew import lines, made, replies, slow
from tests.features.ray.workers import TURN, Loss, crew_of
from tests.support import virtual
from tests.support.chain_runs import Run
from tests.support.chains import Endpoint

USERS = {f"用户{n}": 1 + n % 3 for n in range(4)}
STEPS = sum(USERS.values())
LIMIT = 3


def raced(run: Run, endpoint: Endpoint, **more: Any) -> tuple[Endpoint, HarnessError | None]:
    of = pytest.importorskip("tests.features.hedging.test_hedging")

    async def main() -> HarnessError | None:
        async with crew_of(run, endpoint, **more) as (crew, _):
            with anyio.fail_after(3600):
                return await run.play(endpoint, crew=crew, limit=2, extensions=[of.at(run, 1.0)], sleep=anyio.sleep)

    return endpoint, virtual.run(main)


MANY = {str(n): 1 for n in range(22)}
"""Enough for a 99th percentile."""


def test_loser_of_two_tries_is_cancelled_before_its_slot_is_free(tmp_path: Path) -> None:
    """The endpoint never sees more than the limit at once, and each reply is saved once."""

    async def one_hangs(user: str, before: int) -> None:
        if user == "7" and not before:
            await anyio.sleep_forever()
        await slow(most=2 * TURN)(user, before)

    run = made(tmp_path, users={str(n): 1 for n in range(40)})
    endpoint, ending = raced(run, Endpoint(one_hangs))
    assert ending is None and endpoint.sent.count("7") == 2 and run.caller.traffic.notices["hedged"] >= 1
    assert endpoint.most_on_the_wire <= 2 and endpoint.on_the_wire == 0
    assert len(replies(run)) == 40


class Numbered(Endpoint):
    """No two of its replies are alike."""

    async def send(self, body: bytes, user: str = "") -> Received:
        number = len(self.sent)
        received = await super().send(body, user)
        return received._replace(completion=replace(received.completion, text=f"{number}"))


def test_both_replies_in_one_turn_are_one(tmp_path: Path) -> None:
    """The first of them is saved, and the play goes on with it."""
    second = anyio.Event()

    async def together(user: str, before: int) -> None:
        if user == "7":
            if before:
                second.set()
            await second.wait()

    run = made(tmp_path, users=MANY)
    endpoint, ending = raced(run, Numbered(together), many=1)
    assert ending is None and endpoint.sent.count("7") == 2
    saved = {key[0]: completion["text"] for key, completion in replies(run).items()}
    assert {line["user_id"]: line["replies"][0] for line in lines(run.files.results)} == saved
    assert len(saved) == len(MANY)


@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("after", range(62, 67))
def test_worker_lost_while_two_tries_race_saves_nothing_twice(tmp_path: Path, after: int, certain: bool) -> None:
    """Also if one has won, and the other is not confirmed."""

    async def one_hangs(user: str, before: int) -> None:
        if user == "7" and not before:
            await anyio.sleep_forever()

    run = made(tmp_path, users=MANY)
    endpoint, ending = raced(run, Endpoint(one_hangs), many=1, losses=[Loss(after, certain, reached=True)])
    assert ending is None and endpoint.most_on_the_wire <= 2
    assert len(replies(run)) == len(run.recorded) == len(MANY)
