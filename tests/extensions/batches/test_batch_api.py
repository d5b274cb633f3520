"""The Batch API of the endpoint that tests use over loopback connections, used as a run uses it."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from harness.client.address import Address
from harness.client.http import Client
from harness.errors import EndpointStopped, TransportFault
from harness.extensions.batches import api as batch_api
from harness.extensions.batches.api import ENDED, BatchApi, ProviderBatch
from tests.support.embedded import session_with
from tests.support.endpoint_double.app import Options
from tests.support.endpoint_double.faults import STEPS, FaultPlan

pytestmark = pytest.mark.anyio

HANGS = 30.0  # seconds; reached only by a test that would wait for ever
PROMPT = '[1] Content: 早\nTags: 猫\n从 ["狗", "猫", "鸟", "鱼"] 里选'
BODY = {"model": "baseline/recency", "messages": [{"role": "user", "content": PROMPT}]}


def input_file(lines: int, **changes: Any) -> bytes:
    made = [
        {
            "custom_id": str(n),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {**BODY, "seed": n},
            **changes,
        }
        for n in range(lines)
    ]
    return b"".join(orjson.dumps(line) + b"\n" for line in made)


@asynccontextmanager
async def api(options: Options | None = None) -> AsyncIterator[tuple[BatchApi, Any]]:
    """The API as the harness uses it, and a function that returns the endpoint's counts."""
    async with (
        session_with(options or Options()) as (endpoint, session),
        Client(Address(endpoint.url), timeout=HANGS, connections=2) as client,
    ):

        async def stats() -> dict[str, Any]:
            async with session.get(f"{endpoint.url.removesuffix('/v1')}/stats") as response:
                counts: dict[str, Any] = orjson.loads(await response.read())
                return counts

        yield BatchApi(client), stats


async def ended(api: BatchApi, batch: ProviderBatch) -> ProviderBatch:
    while batch.status not in ENDED:
        batch = await api.get(batch.id)
    return batch


async def submitted(api: BatchApi, content: bytes) -> ProviderBatch:
    return await ended(api, await api.create(await api.upload("a.jsonl", content), "label"))


async def lines_of(api: BatchApi, file: str | None) -> list[dict[str, Any]]:
    if file is None:
        return []
    into = io.BytesIO()
    await api.download(file, into)
    return [orjson.loads(line) for line in into.getvalue().splitlines()]


def always(*kinds: str) -> Options:
    return Options(faults=FaultPlan(1.0, kinds))


async def test_batch_answers_each_line_as_the_request_by_itself():
    """The bodies in the output file are those of the chat endpoint, by custom_id."""
    async with api() as (made, stats):
        batch = await submitted(made, input_file(12))
        found = await lines_of(made, batch.output_file_id)
        assert (batch.status, batch.completed) == ("completed", 12)
        assert [line["custom_id"] for line in found] == [str(n) for n in range(12)]
        online = await made.call("/chat/completions", data=orjson.dumps({**BODY, "seed": 3}))
        assert found[3]["response"]["body"] == online
        assert batch.error_file_id is None
        counts = await stats()
        assert (counts["batched"], counts["batches"], counts["files"]) == (12, 1, 1)


async def test_lists_are_paged_and_files_and_batches_are_found_in_them(
    monkeypatch,
):
    """Also beyond the first page; what is not there is not found."""
    monkeypatch.setattr(batch_api, "PAGE", 2)
    async with api() as (made, _):
        first = await made.create(await made.upload("first.jsonl", input_file(1)), "the first")
        for number in range(4):
            await made.create(await made.upload(f"{number}.jsonl", input_file(1)), "another")
        assert await made.find_file("first.jsonl") == first.input_file_id
        found = [
            await made.find_batch("", "the first"),
            await made.find_batch(first.input_file_id or "", "none"),
        ]
        assert [one.id for one in found if one] == [first.id, first.id]
        assert await made.find_file("none.jsonl") is None
        assert await made.find_batch("none", "none") is None


@pytest.mark.parametrize(
    ("kind", "counts", "error"),
    [
        ("upload-refused", (0, 0), TransportFault),
        ("upload-500", (1, 0), TransportFault),
        ("upload-lost", (1, 0), TransportFault),
        ("create-refused", (1, 0), TransportFault),
        ("create-500", (1, 1), TransportFault),
        ("create-lost", (1, 1), TransportFault),
        ("poll-500", (1, 1), TransportFault),
        ("download-cut", (1, 1), TransportFault),
    ],
)
async def test_fault_of_a_step_keeps_what_was_accepted(kind, counts, error):
    """A refused step leaves nothing behind; an answer that fails or is lost after it leaves file or
    batch."""
    async with api(always(kind)) as (made, stats):
        with pytest.raises(error):
            batch = await submitted(made, input_file(2))
            await lines_of(made, batch.output_file_id)
        seen = await stats()
        assert (seen["files"], seen["batches"]) == counts
        assert seen["faults"] == {kind: 1}


@pytest.mark.parametrize("kind", STEPS["batch"])
async def test_fault_of_a_whole_batch(kind):
    """It expires or is cancelled half done, or is not accepted at all."""
    async with api(always(kind)) as (made, _):
        batch = await submitted(made, input_file(10))
        assert batch.status == kind.removeprefix("batch-")
        assert batch.completed == (0 if batch.status == "failed" else 5)


async def test_key_is_needed_for_every_operation():
    """What comes without it is refused, and nothing is kept."""
    async with api(Options(key="secret-key")) as (made, stats):
        for act in (
            made.upload("a", input_file(1)),
            made.create("x", "y"),
            made.get("x"),
            made.find_file("a"),
        ):
            with pytest.raises(EndpointStopped):
                await act
        assert (await stats())["files"] == 0
