"""The Batch API of the embedded endpoint: files, and batches that answer them line by line.

All is in memory, for as long as the endpoint lives. Each line is answered as the same request would
be at once; its errors are in the error file. Faults of the group `batch` are drawn for each step of
the protocol by itself. Source: https://platform.openai.com/docs/api-reference/batch
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from harness.model import JSON
from tests.support.endpoint_double import calls, faults, wire
from tests.support.endpoint_double.faults import FaultPlan, HttpReply

T = TypeVar("T")
CALLED = "/v1/chat/completions"
MOST_LINES, MOST_BYTES = 50_000, 200_000_000
SLICES = 10
"""Pauses in which a batch's lines are answered, so that its counts grow."""
WINDOW_SECONDS = 24 * 3600
PAGE_MOST = 100
STATES = (
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)
UNANSWERED = {
    "expired": (
        "batch_expired",
        "this request was not answered before the completion window expired",
    ),
    "cancelled": (
        "batch_cancelled",
        "this request was not answered before the batch was cancelled",
    ),
}


@dataclass(frozen=True, slots=True)
class _File:
    id: str
    name: str
    purpose: str
    content: bytes
    created: int

    @property
    def data(self) -> JSON:
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.content),
            "created_at": self.created,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


@dataclass(slots=True)
class _Batch:
    """`moments` are when a state began, by its name in the API."""

    id: str
    input: _File
    metadata: Mapping[str, str] | None
    created: int
    fault: str | None
    status: str = "validating"
    total: int = 0
    output: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)
    output_file: str | None = None
    error_file: str | None = None
    errors: list[JSON] = field(default_factory=list)
    moments: dict[str, int] = field(default_factory=dict)

    @property
    def data(self) -> JSON:
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": CALLED,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input.id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file,
            "error_file_id": self.error_file,
            "created_at": self.created,
            "expires_at": self.created + WINDOW_SECONDS,
            **{f"{state}_at": self.moments.get(state) for state in STATES[1:]},
            "request_counts": {
                "total": self.total,
                "completed": len(self.output),
                "failed": len(self.failed),
            },
            "metadata": self.metadata,
        }


class Batches:
    """`answer` answers one line's body. `seconds` is how long a batch takes, a tenth of it for each
    tenth of the lines.

    `counts` are of `files` that were uploaded, `batches`, and `batch_inputs`, the different names
    of their input files.
    """

    def __init__(
        self, answer: Callable[[bytes], HttpReply], seconds: float, plan: FaultPlan | None
    ) -> None:
        self._answer = answer
        self._seconds = seconds
        self._plan = plan
        self._steps: Counter[str] = Counter()
        self._files: dict[str, _File] = {}
        self._batches: dict[str, _Batch] = {}
        self._running: set[asyncio.Task[None]] = set()
        self.faults: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        inputs = {batch.input.name for batch in self._batches.values()}
        uploaded = sum(file.purpose == "batch" for file in self._files.values())
        return {"files": uploaded, "batches": len(self._batches), "batch_inputs": len(inputs)}

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return method, path and handler of each operation."""
        return [
            ("POST", "/v1/files", self.upload),
            ("GET", "/v1/files", self.list_files),
            ("GET", "/v1/files/{id}", self.file),
            ("GET", "/v1/files/{id}/content", self.content),
            ("POST", "/v1/batches", self.create),
            ("GET", "/v1/batches", self.list_batches),
            ("GET", "/v1/batches/{id}", self.batch),
            ("POST", "/v1/batches/{id}/cancel", self.cancel),
        ]

    async def close(self, app: web.Application) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def upload(self, request: web.Request) -> web.StreamResponse:
        fault = self._drawn("upload")
        name, purpose, content = await _form(request)
        if fault == "upload-refused":
            return wire.respond(HttpReply(503, faults.FAILED))
        made = self._kept(name, purpose, content)
        return self._replied(request, fault, "upload", made.data)

    async def create(self, request: web.Request) -> web.StreamResponse:
        fault = self._drawn("create")
        try:
            wanted = orjson.loads(await request.read())
            file = self._files.get(wanted["input_file_id"])
            fits = wanted["endpoint"] == CALLED and wanted["completion_window"] == "24h"
        except (ValueError, LookupError, TypeError):
            calls.refuse("expected input_file_id, endpoint and completion_window")
        if file is None or file.purpose != "batch":
            calls.refuse("no such file of requests", "input_file_id")
        if not fits:
            calls.refuse(
                f"expected the endpoint {CALLED} and the completion window 24h", "endpoint"
            )
        if fault == "create-refused":
            return wire.respond(HttpReply(503, faults.FAILED))
        number = len(self._batches) + 1
        batch = _Batch(
            f"batch_{number:06}",
            file,
            wanted.get("metadata"),
            int(time.time()),
            self._drawn("batch"),
        )
        self._batches[batch.id] = batch
        task = asyncio.create_task(self._run(batch))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return self._replied(request, fault, "create", batch.data)

    async def file(self, request: web.Request) -> web.StreamResponse:
        return _found(_named(request, self._files, "file").data)

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = _named(request, self._files, "file")
        if self._drawn("download"):
            return await wire.reset_within(request, file.content)
        return web.Response(body=file.content, content_type="application/octet-stream")

    async def batch(self, request: web.Request) -> web.StreamResponse:
        if self._drawn("poll"):
            return wire.respond(HttpReply(500, faults.FAILED))
        return _found(_named(request, self._batches, "batch").data)

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        batch = _named(request, self._batches, "batch")
        if batch.status in ("validating", "in_progress"):
            _enter(batch, "cancelling")
        return _found(batch.data)

    async def list_files(self, request: web.Request) -> web.StreamResponse:
        purpose = request.query.get("purpose")
        return _page(
            request, [file.data for file in self._files.values() if purpose in (None, file.purpose)]
        )

    async def list_batches(self, request: web.Request) -> web.StreamResponse:
        return _page(request, [batch.data for batch in self._batches.values()])

    async def _run(self, batch: _Batch) -> None:
        """Take a batch through its states."""
        await asyncio.sleep(self._seconds / SLICES)
        lines = self._validated(batch)
        if batch.errors:
            return _enter(batch, "failed")
        if batch.status == "validating":
            _enter(batch, "in_progress")
        end = "completed"
        for number, line in enumerate(lines):
            if number % max(1, len(lines) // SLICES) == 0:
                await asyncio.sleep(self._seconds / SLICES)
            if batch.status == "cancelling" or (batch.fault and number >= len(lines) // 2):
                end = "expired" if batch.fault == "batch-expired" else "cancelled"
                break
            self._answered(batch, line)
        for line in lines[len(batch.output) + len(batch.failed) :]:
            code, message = UNANSWERED[end]
            batch.failed.append(_result(line, None, {"code": code, "message": message}))
        if end == "completed":
            _enter(batch, "finalizing")
        batch.output_file = self._result_file(batch, "output", batch.output)
        batch.error_file = self._result_file(batch, "error", batch.failed)
        _enter(batch, end)

    def _validated(self, batch: _Batch) -> list[JSON]:
        """Return the lines of a batch; one that cannot be used makes it fail."""
        lines, seen = list[JSON](), set[str]()
        for number, text in enumerate(batch.input.content.splitlines(), 1):
            try:
                line = orjson.loads(text)
                fits = (line["method"], line["url"]) == ("POST", CALLED) and line[
                    "custom_id"
                ] not in seen
                seen.add(line["custom_id"])
                lines.append({"custom_id": line["custom_id"], "body": orjson.dumps(line["body"])})
            except (ValueError, LookupError, TypeError):
                fits = False
            if not fits:
                batch.errors.append(
                    {
                        "code": "invalid_line",
                        "message": "not a request",
                        "line": number,
                        "param": None,
                    }
                )
        batch.total = len(lines)
        if not lines or len(lines) > MOST_LINES or batch.fault == "batch-failed":
            batch.errors.append(
                {"code": "invalid_file", "message": "the file was not accepted", "line": None}
            )
        return lines

    def _answered(self, batch: _Batch, line: JSON) -> None:
        reply = self._answer(line["body"])
        response = {
            "status_code": reply.status,
            "request_id": line["custom_id"],
            "body": orjson.loads(reply.body),
        }
        (batch.output if reply.status == 200 else batch.failed).append(
            _result(line, response, None)
        )

    def _result_file(self, batch: _Batch, kind: str, lines: Sequence[bytes]) -> str | None:
        return (
            self._kept(f"{batch.id}_{kind}.jsonl", "batch_output", b"".join(lines)).id
            if lines
            else None
        )

    def _kept(self, name: str, purpose: str, content: bytes) -> _File:
        made = _File(f"file-{len(self._files) + 1:06}", name, purpose, content, int(time.time()))
        self._files[made.id] = made
        return made

    def _replied(
        self, request: web.Request, fault: str | None, step: str, data: JSON
    ) -> web.StreamResponse:
        """Reply to what has been accepted, or as the step's fault has it."""
        if fault == f"{step}-500":
            return wire.respond(HttpReply(500, faults.FAILED))
        return wire.reset(request, web.Response()) if fault == f"{step}-lost" else _found(data)

    def _drawn(self, step: str) -> str | None:
        """Return the fault of a step, None for none; of a step's nth time it is always the same."""
        self._steps[step] += 1
        fault = self._plan.draw_step(step, self._steps[step]) if self._plan else None
        if fault:
            self.faults[fault] += 1
        return fault


MALFORMED = (ValueError, LookupError, RuntimeError, AssertionError, HttpProcessingError)
"""What aiohttp raises for a form that is none, or broken."""


async def _form(request: web.Request) -> tuple[str, str, bytes]:
    """Return name, purpose and content of an uploaded file."""
    try:
        name, purpose, content = await _parts(request)
    except MALFORMED as error:
        calls.refuse(f"expected a form with a file: {error}")
    if purpose != "batch" or not name:
        calls.refuse("expected a file with the purpose batch", "purpose")
    return name, purpose, content


async def _parts(request: web.Request) -> tuple[str, str, bytes]:
    name, purpose, content = "", "", bytearray()
    reader = await request.multipart()
    while isinstance(part := await reader.next(), BodyPartReader):
        if part.name == "purpose":
            purpose = await part.text()
        elif part.name == "file":
            name = part.filename or ""
            while block := await part.read_chunk(1 << 16):
                content += block
                if len(content) > MOST_BYTES:
                    raise web.HTTPRequestEntityTooLarge(MOST_BYTES, len(content))
    return name, purpose, bytes(content)


def _result(line: JSON, response: JSON | None, error: JSON | None) -> bytes:
    made = {
        "id": f"batch_req_{line['custom_id']}",
        "custom_id": line["custom_id"],
        "response": response,
        "error": error,
    }
    return orjson.dumps(made) + b"\n"


def _enter(batch: _Batch, status: str) -> None:
    batch.status = status
    batch.moments[status] = int(time.time())


def _found(data: JSON) -> web.Response:
    return wire.respond(HttpReply(200, orjson.dumps(data)))


def _page(request: web.Request, listed: list[JSON]) -> web.Response:
    """Return a page of a list, the newest first, after the object that the query names."""
    try:
        limit = min(PAGE_MOST, max(1, int(request.query.get("limit", "20"))))
    except ValueError:
        calls.refuse("limit: expected a whole number", "limit")
    newest = listed[::-1]
    ids = [one["id"] for one in newest]
    after = request.query.get("after")
    start = ids.index(after) + 1 if after in ids else 0
    page: list[Any] = newest[start : start + limit]
    more = start + limit < len(newest)
    ends = {
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }
    return _found({"object": "list", "data": page, **ends, "has_more": more})


def _named(request: web.Request, there: Mapping[str, T], what: str) -> T:
    """Return what the path names. Raise `web.HTTPNotFound`."""
    if (found := there.get(request.match_info["id"])) is None:
        body = faults.error_body(f"no such {what}", "invalid_request_error", None, "id")
        raise web.HTTPNotFound(text=body.decode(), content_type="application/json")
    return found
