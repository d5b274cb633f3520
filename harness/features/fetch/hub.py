"""Data sets on the Hugging Face Hub, or on a mirror of it: what a revision holds, and the bytes of its files.

`huggingface_hub` provides session, token and the classes of errors. Its own downloads check nothing of a file but its
length, and a new process begins again (`tests/endpoint/test_hub.py` shows both). So files are read here, by ranges.

All that a hub sends is bounded: heads by httpx2 (100 KB), a listing by `LARGEST_STREAM`, a file by its size in the
listing, redirects by their number, and the time for each of them by `_Pace`. Bodies of redirects and refusals are not
read, and none is decompressed.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Annotated, Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx2
import msgspec
from huggingface_hub import get_session, get_token, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from msgspec import Meta
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from harness import __version__
from harness.endpoint.address import Address, check
from harness.endpoint.client import LARGEST_STREAM
from harness.errors import BadInput, EndpointStopped, in_brief

TRIES = 6
"""Of a request, and of a download in a row without a byte; the waits between them add up to half a minute."""
LONGEST_WAIT = 20.0
LONGEST_REQUESTED_WAIT = 3600.0
"""Of the waits that a hub asks for, in all of a listing or of a file. In seconds, as all of these."""
TIMEOUT_SECONDS = 30.0
"""For the connection, and between two pieces of a body."""
PATIENCE = 10
"""Time-outs in a row, within which at least `LEAST_BYTES` have to come, of whatever number of connections."""
LEAST_BYTES = 300_000
"""A thousand a second, with the time-out above: a data set of 100 MB would take a day."""
MOST_REDIRECTS = 10
MOST_PAGES = 1000
"""Of a listing, a thousand files each."""
PASSING = frozenset({408, 429, 500, 502, 503, 504})

ASKED_TO_WAIT = {"retry-after": re.compile(r"\s*(\d{1,9})\s*\Z"), "ratelimit": re.compile(r"(?:^|;)\s*t=(\d{1,9})\b")}
"""Headers of refusals with the seconds until the next request may pass; hubs send the second one."""

Sha1 = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class Digests:
    """Of a file's bytes: their SHA-256, and the SHA-1 that git gives to a blob of them."""

    sha256: str
    blob: str


class _Commit(msgspec.Struct, frozen=True):
    sha: Sha1


class _Lfs(msgspec.Struct, frozen=True):
    oid: Sha256


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a data set, or a folder; its size in bytes. Large files are in LFS: then `blob` is that of a pointer to
    them."""

    path: str
    blob: Sha1 = msgspec.field(name="oid")
    size: Annotated[int, Meta(ge=0)] = 0
    lfs: _Lfs | None = None
    type: str = "file"

    def has(self, found: Digests) -> bool:
        """Return whether a file with these digests is this one."""
        return found.sha256 == self.lfs.oid if self.lfs else found.blob == self.blob


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a data set holds at a commit: its files by path."""

    repository: str
    commit: str
    files: Mapping[str, RemoteFile]


class _OutOfBounds(Exception):
    """What a hub does that no other try would help against."""


class _Pace:
    """Closes the connection of a request that brings too little, while the block runs. `seconds` is the time-out.

    Time-outs count from one byte to the next, so a hub that sends one now and then, or heads without end, would hold
    the command for ever. Time-outs are counted, not the time: this process may be suspended meanwhile.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._received = 0
        self._waits = 0
        self._too_slow = False
        self._socket: socket.socket | None = None
        self._over = Event()

    def __enter__(self) -> _Pace:
        Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def note(self, size: int) -> None:
        """Note bytes of a body. Raise `_OutOfBounds` if too few have come before them."""
        if self._too_slow:
            raise _OutOfBounds(f"sent less than {LEAST_BYTES} bytes within {PATIENCE * self._seconds:g} s")
        self._received += size

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count no time-outs while the block runs, in which this side waits."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits += 1

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take the socket of each connection, as httpcore2's extension `trace` reports it."""
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = info["return_value"].get_extra_info("socket")
            self.note(0)  # else a connection that is made at the end of the time would have none

    def _watch(self) -> None:
        while not self._too_slow:
            before, waits = self._received, self._waits
            if any(self._over.wait(self._seconds) for _ in range(PATIENCE)):
                return
            waited = waits % 2 or self._waits != waits
            self._too_slow = not waited and self._received - before < LEAST_BYTES
        if self._socket is not None:
            with suppress(OSError):  # closed by its own side just now
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would take its state from a reader


class Hub:
    """A hub by its address. `sleep` waits between tries; `timeout` is in seconds. `say` gets a line for each wait that
    the hub asks for.

    Methods raise `BadInput` for a revision that does not exist, and `EndpointStopped` for all else that the hub does.
    """

    def __init__(
        self,
        address: str,
        sleep: Callable[[float], None],
        timeout: float = TIMEOUT_SECONDS,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        made = Address(address.rstrip("/"), get_token())
        try:
            check(made)
        except BadInput as error:
            raise BadInput(f"HF_ENDPOINT or HF_TOKEN cannot be used: {error}") from None
        self.shown = made.shown
        self._url = made.url
        self._headers = {"User-Agent": f"behavior-harness/{__version__}", "Accept-Encoding": "identity"}
        self._headers["Connection"] = "close"  # so that `_Pace` gets the socket of every request
        if made.key:
            self._headers["Authorization"] = f"Bearer {made.key}"
        self._sleep = sleep
        self._say = say
        self._timeout = timeout

    def snapshot(self, repository: str, revision: str) -> Snapshot:
        """Return what a data set holds at a branch, tag or commit."""
        url = f"{self._url}/api/datasets/{repository}/revision/{quote(revision, safe='')}"
        with self._reported(repository, revision), _Pace(self._timeout) as pace:
            whole, _ = self._tries(pace)(self._listing, url, pace)
            commit = msgspec.json.decode(whole, type=_Commit).sha
            files = {file.path: file for file in self._tree(repository, commit, pace)}
        return Snapshot(repository, commit, files)

    def _tree(self, repository: str, commit: str, pace: _Pace) -> Iterator[RemoteFile]:
        """Yield the files of a commit by the listing of its tree, page by page."""
        url, cursor = f"{self._url}/api/datasets/{repository}/tree/{commit}?recursive=true", ""
        for _ in range(MOST_PAGES):
            page, cursor = self._tries(pace)(self._listing, f"{url}{cursor and f'&cursor={quote(cursor)}'}", pace)
            yield from [one for one in msgspec.json.decode(page, type=list[RemoteFile]) if one.type == "file"]
            if not cursor:
                return
        raise _OutOfBounds(f"sent a listing of more than {MOST_PAGES} pages")

    def pieces(self, of: Snapshot, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` on; where the connection breaks, the next one goes on from there.

        They are not checked, and may be more than the file's size.
        """
        if start == file.size:
            return
        url = f"{self._url}/datasets/{of.repository}/resolve/{of.commit}/{quote(file.path)}"
        with self._reported(of.repository, of.commit), _Pace(self._timeout) as pace:
            for attempt in self._tries(pace):
                with attempt:
                    for piece in self._body(url, pace, start):
                        start += len(piece)
                        attempt.retry_state.attempt_number = 1  # what counts is tries without a byte
                        yield piece
                        if start > file.size:
                            return
                    if start < file.size:
                        raise httpx2.ReadError(f"the body ended after {start} of {file.size} bytes")

    def _tries(self, pace: _Pace) -> Retrying:
        def sleep(seconds: float) -> None:
            with pace.waiting():
                self._sleep(seconds)

        return Retrying(
            stop=_is_last,
            wait=_wait,
            retry=retry_if_exception(_passes),
            sleep=sleep,
            before_sleep=self._say_wait,
            reraise=True,
        )

    def _say_wait(self, state: RetryCallState) -> None:
        if (seconds := _requested_wait(state)) is not None:
            self._say(f"{self.shown} asks to wait {seconds:.0f} s before the next request; Ctrl-C keeps what is there")

    def _listing(self, url: str, pace: _Pace) -> tuple[bytes, str]:
        """Return a listing, and the cursor of its next page, empty for none."""
        blocks, size = [], 0
        with self._asked(url, pace, {}) as response:
            for block in response.iter_raw():
                pace.note(len(block))
                size += len(block)
                if size > LARGEST_STREAM:
                    raise _OutOfBounds(f"sent a listing of more than {LARGEST_STREAM >> 20} MB")
                blocks.append(block)
            following = urlsplit(response.links.get("next", {}).get("url", "")).query
        return b"".join(blocks), parse_qs(following).get("cursor", [""])[0]

    def _body(self, url: str, pace: _Pace, start: int) -> Iterator[bytes]:
        """Yield what is at an address from a byte on, as it came over the wire."""
        with self._asked(url, pace, {"Range": f"bytes={start}-"} if start else {}) as response:
            skipped = 0 if response.status_code == httpx2.codes.PARTIAL_CONTENT else start
            for piece in response.iter_raw():
                pace.note(len(piece))
                kept = piece[skipped:]
                skipped -= len(piece) - len(kept)
                if kept:
                    yield kept

    @contextmanager
    def _asked(self, url: str, pace: _Pace, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
        """Yield the answer of an address, or of the one that it redirects to, before its body is read."""
        session = get_session()
        request: httpx2.Request | None = session.build_request(
            "GET",
            url,
            headers={**self._headers, **headers},
            timeout=self._timeout,
            extensions={"trace": pace.trace},
        )
        for _ in range(MOST_REDIRECTS):
            assert request is not None
            pace.note(0)
            with closing(session.send(request, stream=True, follow_redirects=False)) as response:
                if (request := response.next_request) is None:
                    _raise_for_status(response)
                    yield response
                    return
        raise _OutOfBounds(f"redirects more than {MOST_REDIRECTS} times")

    @contextmanager
    def _reported(self, repository: str, revision: str) -> Iterator[None]:
        """Map every error of the hub and of the way to it; none of their own words, which may hold signed addresses."""
        try:
            yield
        except RevisionNotFoundError:
            raise BadInput(f"the data set {repository} has no revision {in_brief(revision)} at {self.shown}") from None
        except HfHubHTTPError as error:
            raise EndpointStopped(self._refusal(error, repository)) from None
        except OfflineModeIsEnabled:
            raise EndpointStopped(f"HF_HUB_OFFLINE is set, so nothing is asked of {self.shown}: unset it") from None
        except _OutOfBounds as error:
            raise EndpointStopped(
                f"{self.shown} {error}: what was received of files is kept, and the same command continues "
                "(another address: HF_ENDPOINT)"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EndpointStopped(
                f"{self.shown}: {type(error).__name__}, {TRIES} times in a row: what was received is kept, and the "
                "same command continues (another address: HF_ENDPOINT)"
            ) from None
        except msgspec.MsgspecError as error:
            raise EndpointStopped(f"{self.shown} does not answer as a hub does ({error}): see HF_ENDPOINT") from None

    def _refusal(self, error: HfHubHTTPError, repository: str) -> str:
        status = error.response.status_code
        if isinstance(error, GatedRepoError):
            return f"the data set {repository} is shared on request: ask for access on its page, then set HF_TOKEN"
        if isinstance(error, RepositoryNotFoundError) or status in (401, 403):
            token = "refuses this HF_TOKEN" if "Authorization" in self._headers else "wants a token (HF_TOKEN)"
            return f"no data set {repository} at {self.shown}, or it {token} ({status})"
        later = error.response.headers.get("retry-after") or error.response.headers.get("ratelimit")
        when = f" (it names the time of the next request as {in_brief(later)})" if later else ""
        return f"{self.shown} answered {status} for the data set {repository}{when}"


def _raise_for_status(response: httpx2.Response) -> None:
    """Raise as the library does, which would read the body of a refusal for its own words."""
    kept = {name: value for name, value in response.headers.items() if name in ASKED_TO_WAIT}
    headers = kept | {name: value for name, value in response.headers.items() if name.startswith("x-error-")}
    hf_raise_for_status(httpx2.Response(response.status_code, headers=headers, request=response.request))


def _requested_wait(state: RetryCallState) -> float | None:
    """Return the seconds that a hub asks to wait, None if it does not."""
    error = state.outcome.exception() if state.outcome else None
    if not isinstance(error, HfHubHTTPError):
        return None
    found = [of.search(error.response.headers.get(name, "")) for name, of in ASKED_TO_WAIT.items()]
    return max((float(one[1]) for one in found if one), default=None)


def _wait(state: RetryCallState) -> float:
    seconds, own = _requested_wait(state), wait_exponential(max=LONGEST_WAIT)(state)
    return own if seconds is None else max(own, seconds)


def _is_last(state: RetryCallState) -> bool:
    """Return whether no other try follows: there were enough, or the hub asks for too long a wait."""
    too_long = (_requested_wait(state) or 0.0) + state.idle_for > LONGEST_REQUESTED_WAIT
    return state.attempt_number >= TRIES or too_long


def _passes(error: BaseException) -> bool:
    """Return whether another try may succeed."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    return isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol)
