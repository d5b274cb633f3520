"""The Batch API of OpenAI and those compatible with it: files of requests, and batches that run
them within a day.

Source: https://platform.openai.com/docs/api-reference/batch. Each method is one attempt, and raises
`TransportFault`, `Rejected`, `EndpointStopped` or `MachineError`. An attempt whose answer is lost
may have succeeded: `find_file` and `find_batch` show whether it has.
"""

from __future__ import annotations

import io
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, BinaryIO
from urllib.parse import quote

import aiohttp
import msgspec
import orjson

from harness.client import replies
from harness.client.body import Body, whole_body
from harness.client.error_phrases import error_text, one_line, searchable
from harness.client.http import LARGEST_REPLY, Client, check_size
from harness.client.objects import object_of, objects_of
from harness.client.transport import Received
from harness.errors import HarnessError, MachineError, Rejected, TransportFault
from harness.model import JSON

PATH = "/v1/chat/completions"
"""What each line of an input file calls, below the provider's root, whatever the base of its
address."""
WINDOW = "24h"
LABEL = "behavior_harness"
"""The key of a batch's metadata that holds our own identifier of it."""
MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000
"""Of an input file (https://platform.openai.com/docs/guides/batch)."""
TOO_MUCH = ("token_limit_exceeded", "enqueued")
"""Words for more than the account may have enqueued: OpenAI and Azure fail such a batch, others do
not create it."""
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
UNANSWERED = frozenset({"batch_cancelled", "batch_expired", "batch_failed"})
"""Kinds of lines that no model was asked."""
PAGE = 100


class RequestCounts(msgspec.Struct, frozen=True):
    """Requests of a batch that the provider has answered."""

    completed: int = 0


class ProviderBatch(msgspec.Struct, frozen=True):
    """A batch as the provider describes it; its results are in the files."""

    id: str
    status: str = "validating"
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: RequestCounts | None = None
    metadata: dict[str, Any] | None = None
    errors: Any = None

    @property
    def completed(self) -> int:
        return self.request_counts.completed if self.request_counts else 0


class BatchApi:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def upload(self, name: str, content: bytes) -> str:
        """Upload an input file; return its id."""
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", io.BytesIO(content), filename=name, content_type="application/jsonl")
        return _id(await self.call("/files", data=form))

    async def create(self, file: str, label: str) -> ProviderBatch:
        """Create a batch of an uploaded file; `label` is our own identifier of it."""
        wanted = {
            "input_file_id": file,
            "endpoint": PATH,
            "completion_window": WINDOW,
            "metadata": {LABEL: label},
        }
        return _batch(await self.call("/batches", data=orjson.dumps(wanted)))

    async def get(self, batch: str) -> ProviderBatch:
        # An id is the provider's text: with a slash in it, it would be another path.
        return _batch(await self.call(f"/batches/{quote(batch, safe='')}"))

    async def find_file(self, name: str) -> str | None:
        """Return the id of the uploaded file of this name; None without one."""
        async for listed in self._listed("/files", "purpose=batch&"):
            if listed.get("filename") == name:
                return _id(listed)
        return None

    async def find_batch(self, file: str, label: str) -> ProviderBatch | None:
        """Return the batch with our identifier, or of this input file, which not every provider
        needs metadata for."""
        async for listed in self._listed("/batches"):
            batch = _batch(listed)
            if batch.input_file_id == file or (batch.metadata or {}).get(LABEL) == label:
                return batch
        return None

    async def download(self, file: str, into: BinaryIO) -> None:
        """Write the content of a file."""
        await self.call(f"/files/{quote(file, safe='')}/content", into=into)

    def why(self, batch: ProviderBatch) -> str:
        """Return the provider's words for a batch that failed."""
        errors = objects_of(object_of(batch.errors).get("data"))
        phrases = dict.fromkeys(error_text({"error": error}) for error in errors)
        phrases.pop("", None)
        return self._client.hide("; ".join(phrases) or replies.NO_EXPLANATION)

    def is_too_much(self, reason: str) -> bool:
        """Return whether an account may not have as much enqueued, by the provider's words for a
        refusal."""
        return any(phrase in searchable(reason) for phrase in TOO_MUCH)

    def judged(self, line: JSON, body: bytes) -> Received:
        """Return what a line of the results settles; `body` is its request. Raise as
        `Transport.send`."""
        response = object_of(line.get("response"))
        if isinstance(response.get("body"), dict):
            return self._settled(response, body)
        error = line.get("error")
        kind = object_of(error).get("code")
        if not isinstance(kind, str) or not kind.isidentifier():
            kind = "batch_error"
        reason = self._client.hide(error_text({"error": error}) or replies.NO_EXPLANATION)
        raise TransportFault(self._client.hide(kind), reason, unreachable=kind in UNANSWERED)

    def _settled(self, response: JSON, body: bytes) -> Received:
        """Return what a reply settles, with its status and its own `body`, to the request
        `body`."""
        client = self._client
        status = response.get("status_code")
        reply = response["body"]
        try:
            if type(status) is not int or 200 <= status < 300:
                completion = replies.completion_of(reply, request=body)
                check_size(completion)
            else:
                now = datetime.now(UTC)
                completion = replies.refused(status, {}, orjson.dumps(reply), now, body)
        except HarnessError as error:
            raise client.scrubbed(client.named(error)) from None
        return Received(client.vetted(completion), client.shown)

    async def call(
        self,
        path: str,
        query: str = "",
        *,
        data: bytes | aiohttp.FormData | None = None,
        into: BinaryIO | None = None,
    ) -> JSON:
        """Return the JSON object of a GET, or a POST of `data`, below the endpoint's base; or write
        the reply `into` a file, and return nothing of it."""
        client = self._client
        path = client.base.path + path
        query = "&".join(filter(None, (client.base.query, query)))
        url = client.base._replace(path=path, query=query).geturl()
        method = "GET" if data is None else "POST"
        headers = client.headers.copy()
        if not isinstance(data, bytes):
            del headers["Content-Type"]  # a form has its own
        # A redirect could take the key, and what users wrote, to another host.
        options: JSON = {"data": data, "headers": headers, "allow_redirects": False}
        try:
            async with (
                client.sessions(client.timeout) as session,
                session.request(method, url, **options) as response,
            ):
                if into is not None and response.status == 200:
                    body = Body(response)
                    while (block := await body.read(math.inf)) is not None:
                        _write(into, block)
                    return {}
                content = await whole_body(response, LARGEST_REPLY, math.inf, ())
        except client.errors as error:
            # aiohttp's reader keeps its error, whose frames would keep the reader.
            error.__traceback__ = None
            raise client.scrubbed(client.mapped(error)) from None
        try:
            return _object(response, content)
        except HarnessError as error:
            raise client.scrubbed(client.named(error)) from None

    async def _listed(self, path: str, query: str = "") -> AsyncIterator[JSON]:
        """Yield what an account has, page by page."""
        cursor = ""
        seen: set[str] = set()
        while True:
            page = await self.call(path, f"{query}limit={PAGE}{cursor}")
            listed = objects_of(page.get("data"))
            for item in listed:
                yield item
            if not (page.get("has_more") and listed):
                return
            last = _id(listed[-1])
            if last in seen:  # a provider without cursors sends the first page for ever
                return
            seen.add(last)
            cursor = f"&after={quote(last, safe='')}"


def _object(response: aiohttp.ClientResponse, content: bytes) -> JSON:
    if not 200 <= response.status < 300:
        replies.refused(response.status, response.headers, content, datetime.now(UTC))
        raise Rejected(f"http_{response.status}", one_line(content.decode("utf-8", "replace")))
    reply = replies.decoded(content)
    if reply is None:
        raise TransportFault("bad_json", "the reply is not whole JSON")
    return reply


def _write(into: BinaryIO, block: bytes) -> None:
    try:
        into.write(block)
    except OSError as error:  # else it would be taken for one of the connection
        raise MachineError(f"cannot keep what is downloaded: {error.strerror}") from error


def _id(reply: JSON) -> str:
    identifier = reply.get("id")
    if not (isinstance(identifier, str) and identifier):
        raise TransportFault("bad_json", "the reply has no id")
    return identifier


def _batch(reply: JSON) -> ProviderBatch:
    _id(reply)
    try:
        return msgspec.convert(reply, ProviderBatch)
    except msgspec.ValidationError as error:
        raise TransportFault("bad_json", f"the reply describes no batch: {error}") from None
