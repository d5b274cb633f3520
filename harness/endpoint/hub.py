"""Data sets on the Hugging Face Hub, or on a mirror of it: what a revision holds, and the bytes of its files.

`huggingface_hub` provides session, token and the classes of errors. Its own downloads check nothing of a file but its
length, and a new process begins again (`tests/endpoint/test_hub.py` shows both). So files are read here, by ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

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
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from harness import __version__
from harness.endpoint.address import Address, check
from harness.errors import BadInput, EndpointStopped, shown

TRIES = 6
"""Of a request, and of a download in a row without a byte; the waits between them add up to half a minute."""
LONGEST_WAIT = 20.0
TIMEOUT_SECONDS = 30.0
"""For the connection, and between two pieces of a body."""
PASSING = frozenset({408, 429, 500, 502, 503, 504})

Sha1 = Annotated[str, Meta(pattern=r"^[0-9a-f]{40}\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True, slots=True)
class Digests:
    """Of a file's bytes: their SHA-256, and the SHA-1 that git gives to a blob of them."""

    sha256: str
    blob: str


class _Lfs(msgspec.Struct, frozen=True):
    sha256: Sha256


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a data set; its size in bytes. Large files are in LFS: then `blob` is that of a pointer to them."""

    path: str = msgspec.field(name="rfilename")
    size: Annotated[int, Meta(ge=0)]
    blob: Sha1 = msgspec.field(name="blobId")
    lfs: _Lfs | None = None

    def has(self, found: Digests) -> bool:
        """Return whether a file with these digests is this one."""
        return found.sha256 == self.lfs.sha256 if self.lfs else found.blob == self.blob


class _Info(msgspec.Struct, frozen=True):
    sha: Sha1
    siblings: list[RemoteFile]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a data set holds at a commit: its files by path."""

    repository: str
    commit: str
    files: Mapping[str, RemoteFile]


class Hub:
    """A hub by its address. `sleep` waits between tries; `timeout` is in seconds.

    Methods raise `BadInput` for a revision that does not exist, and `EndpointStopped` for all else that the hub does.
    """

    def __init__(self, address: str, sleep: Callable[[float], None], timeout: float = TIMEOUT_SECONDS) -> None:
        made = Address(address.rstrip("/"), get_token())
        try:
            check(made)
        except BadInput as error:
            raise BadInput(f"HF_ENDPOINT or HF_TOKEN cannot be used: {error}") from None
        self.shown = made.shown
        self._url = made.url
        self._headers = {"User-Agent": f"behavior-harness/{__version__}", "Accept-Encoding": "identity"}
        if made.key:
            self._headers["Authorization"] = f"Bearer {made.key}"
        self._sleep = sleep
        self._timeout = timeout

    def snapshot(self, repository: str, revision: str) -> Snapshot:
        """Return what a data set holds at a branch, tag or commit."""
        url = f"{self._url}/api/datasets/{repository}/revision/{quote(revision, safe='')}"
        with self._reported(repository, revision):
            found = msgspec.json.decode(self._tries()(self._get, url), type=_Info)
        return Snapshot(repository, found.sha, {file.path: file for file in found.siblings})

    def pieces(self, of: Snapshot, file: RemoteFile, start: int) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` on; where the connection breaks, the next one goes on from there.

        They are not checked, and may be more than the file's size.
        """
        if start == file.size:
            return
        with self._reported(of.repository, of.commit):
            for attempt in self._tries():
                with attempt:
                    for piece in self._stream(of, file, start):
                        start += len(piece)
                        attempt.retry_state.attempt_number = 1  # what counts is tries without a byte
                        yield piece
                        if start > file.size:
                            return
                    if start < file.size:
                        raise httpx2.ReadError(f"the body ended after {start} of {file.size} bytes")

    def _tries(self) -> Retrying:
        return Retrying(
            stop=stop_after_attempt(TRIES),
            wait=wait_exponential(max=LONGEST_WAIT),
            retry=retry_if_exception(_passes),
            sleep=self._sleep,
            reraise=True,
        )

    def _get(self, url: str) -> bytes:
        response = get_session().get(
            url, params={"blobs": "true"}, headers=self._headers, timeout=self._timeout, follow_redirects=True
        )
        hf_raise_for_status(response)
        return response.content

    def _stream(self, of: Snapshot, file: RemoteFile, start: int) -> Iterator[bytes]:
        url = f"{self._url}/datasets/{of.repository}/resolve/{of.commit}/{quote(file.path)}"
        headers = {**self._headers, **({"Range": f"bytes={start}-"} if start else {})}
        with get_session().stream(
            "GET", url, headers=headers, timeout=self._timeout, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            skipped = 0 if response.status_code == httpx2.codes.PARTIAL_CONTENT else start
            for piece in response.iter_raw():
                kept = piece[skipped:]
                skipped -= len(piece) - len(kept)
                if kept:
                    yield kept

    @contextmanager
    def _reported(self, repository: str, revision: str) -> Iterator[None]:
        """Map every error of the hub and of the way to it; none of their own words, which may hold signed addresses."""
        try:
            yield
        except RevisionNotFoundError:
            raise BadInput(f"the data set {repository} has no revision {shown(revision)} at {self.shown}") from None
        except HfHubHTTPError as error:
            raise EndpointStopped(self._refusal(error, repository)) from None
        except OfflineModeIsEnabled:
            raise EndpointStopped(f"HF_HUB_OFFLINE is set, so nothing is asked of {self.shown}: unset it") from None
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
        return f"{self.shown} answered {status} for the data set {repository}"


def _passes(error: BaseException) -> bool:
    """Return whether another try may succeed."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    return isinstance(error, httpx2.TransportError) and not isinstance(error, httpx2.UnsupportedProtocol)
