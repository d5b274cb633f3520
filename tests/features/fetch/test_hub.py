"""Data sets on a hub: what a revision holds, bytes of files over connections that break, refusals."""

from __future__ import annotations

import gzip
import logging
import socketserver
import struct
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download

from harness.errors import BadInput, EndpointStopped, HarnessError
from harness.features.fetch import hub as hub_module
from harness.features.fetch.hub import TRIES, Digests, Hub, RemoteFile, Snapshot
from tests.support.hub import LISTING, REPOSITORY, Fault, HubServer, blob, serving_hub

LARGE, SMALL = "data/部分.jsonl", "notes/读我.md"
FILES = {LARGE: "一行\n".encode() * 40_000, SMALL: b"small\n" * 1000}
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.fixture
def server() -> Iterator[HubServer]:
    hub = HubServer()
    hub.commit(FILES)
    with serving_hub(hub):
        yield hub


class Waits(list[float]):
    """Seconds that a hub would have slept."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def body(hub: Hub, found: Snapshot, path: str, start: int = 0) -> bytes:
    return b"".join(hub.pieces(found, found.files[path], start))


def test_a_snapshot_has_the_commit_of_a_branch_and_digests_of_its_files(server: HubServer) -> None:
    """The commit of the branch, and that commit by its own name, hold the same; digests are those of the bytes."""
    hub = Hub(server.url, Waits())
    found = hub.snapshot(REPOSITORY, "main")
    assert found == hub.snapshot(REPOSITORY, found.commit)
    assert found.commit == server.refs["main"] and found.files.keys() == FILES.keys()
    for path, content in FILES.items():
        digests = Digests(sha256(content).hexdigest(), blob(content))
        assert found.files[path].size == len(content) and found.files[path].has(digests)
        assert not found.files[path].has(Digests("0" * 64, "0" * 40))


@pytest.mark.parametrize("page", [1, 2])
def test_a_listing_may_have_several_pages(server: HubServer, page: int) -> None:
    """What a snapshot holds does not depend on how many entries of the tree a page has."""
    wanted = Hub(server.url, Waits()).snapshot(REPOSITORY, "main")
    server.page = page
    hub = Hub(server.url, Waits())
    assert hub.snapshot(REPOSITORY, "main") == wanted
    assert body(hub, wanted, SMALL) == FILES[SMALL]


@pytest.mark.parametrize("headers", [{"RateLimit": '"api";r=0;t=43'}, {"RateLimit": "t=43"}, {"Retry-After": "43"}])
def test_a_wait_that_a_hub_asks_for_is_kept_and_said(server: HubServer, headers: dict[str, str]) -> None:
    """Longer than the harness's own waits are in all; the connection is not closed as too slow meanwhile."""
    server.faults[SMALL] = [Fault(status=429, headers=headers)]
    waits, said = Waits(), list[str]()
    hub = Hub(server.url, waits, say=said.append)
    assert body(hub, hub.snapshot(REPOSITORY, "main"), SMALL) == FILES[SMALL]
    assert waits == [43.0] and len(said) == 1 and "43 s" in said[0]


def test_hub_that_asks_for_more_than_an_hour_ends_the_command(server: HubServer) -> None:
    """In one wait, or in several before the same answer."""
    for asked, kept in (([3601], []), ([1800, 1801], [1800.0])):
        server.faults[LISTING] = [Fault(status=429, headers={"RateLimit": f'"api";r=0;t={one}'}) for one in asked]
        waits = Waits()
        with pytest.raises(EndpointStopped, match="429"):
            Hub(server.url, waits).snapshot(REPOSITORY, "main")
        assert waits == kept


def test_time_that_a_hub_asks_for_is_not_counted_as_slowness() -> None:
    """All time-outs of one window go by in the wait."""
    with hub_module._Pace(0.01) as pace:
        with pace.waiting():
            assert not pace._over.wait(0.25)
        pace.note(1)


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on_where_it_broke(server: HubServer, path: str, ranges: bool) -> None:
    """Each connection asks from the first byte that is missing; a server without ranges sends the rest all the same."""
    server.ranges = ranges
    server.faults[path] = [Fault(cut=1000), Fault(cut=3000), Fault(cut=3500 if not ranges else 0)]
    waits = Waits()
    hub = Hub(server.url, waits)
    assert body(hub, hub.snapshot(REPOSITORY, "main"), path) == FILES[path]
    starts = [one.start for one in server.downloads()]
    assert starts == ([0, 1000, 4000, 4000] if ranges else [0, 1000, 3000, 3500])
    assert len(waits) == 3


def test_bytes_start_a_new_count_of_tries(server: HubServer) -> None:
    """A download that comes forward is tried on, however often it breaks; one that does not, `TRIES` times."""
    hub = Hub(server.url, Waits())
    found = hub.snapshot(REPOSITORY, "main")
    server.faults[SMALL] = [Fault(cut=100) for _ in range(3 * TRIES)]
    assert body(hub, found, SMALL) == FILES[SMALL]
    server.asked.clear()
    server.faults[SMALL] = [Fault(cut=100), *(Fault(cut=0) for _ in range(2 * TRIES))]
    with pytest.raises(EndpointStopped):
        body(hub, found, SMALL)
    assert len(server.downloads()) == TRIES


@pytest.mark.parametrize("what", [LISTING, LARGE, SMALL])
def test_an_error_that_passes_is_tried_again(server: HubServer, what: str) -> None:
    """Two answers of 503 and 429, then a good one; waits grow."""
    server.faults[what] = [Fault(status=503), Fault(status=429)]
    waits = Waits()
    hub = Hub(server.url, waits)
    found = hub.snapshot(REPOSITORY, "main")
    assert all(body(hub, found, path) == FILES[path] for path in FILES)
    assert len(waits) == 2 and waits == sorted(waits) and waits[0] > 0


def test_a_silent_connection_is_given_up(server: HubServer) -> None:
    """After the time-out the next connection takes the rest."""
    server.faults[SMALL] = [Fault(cut=500, stalls=True)]
    hub = Hub(server.url, Waits(), timeout=1.0)  # on a busy machine the others of its replies come within that, too
    assert body(hub, hub.snapshot(REPOSITORY, "main"), SMALL) == FILES[SMALL]
    assert [one.start for one in server.downloads()] == [0, 500]


def test_more_bytes_than_the_listing_says_end_a_download(server: HubServer) -> None:
    """What came is over the size, so no check can pass, and no endless body fills a disk."""
    server.faults[SMALL] = [Fault(length=10_000_000)]
    hub = Hub(server.url, Waits())
    assert len(FILES[SMALL]) < len(body(hub, hub.snapshot(REPOSITORY, "main"), SMALL)) < 1_000_000


def test_the_token_goes_to_the_hub_alone(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that a redirect leads to does not get it."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.token = TOKEN
    hub = Hub(server.url, Waits())
    body(hub, hub.snapshot(REPOSITORY, "main"), LARGE)
    assert {one.token for one in server.asked if not one.elsewhere} == {TOKEN}
    assert {one.token for one in server.asked if one.elsewhere} == {None}


REFUSALS: dict[str, tuple[str | None, str, str, type[HarnessError]]] = {
    "private, no token": (None, REPOSITORY, "main", EndpointStopped),
    "private, another token": ("hf_ofsomebodyelse1234567890", REPOSITORY, "main", EndpointStopped),
    "no such data set": (TOKEN, "someone/else", "main", EndpointStopped),
    "no such revision": (TOKEN, REPOSITORY, "v9/测试", BadInput),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_error_without_another_try(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Access and names that do not exist: asked once, and no message has the token in it."""
    token, repository, revision, error = REFUSALS[case]
    server.token = TOKEN
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    waits = Waits()
    with pytest.raises(error) as caught:
        Hub(server.url, waits).snapshot(repository, revision)
    assert type(caught.value) is error and len(server.asked) == 1 and not waits
    assert not {TOKEN, token} & set(str(caught.value).split()) and "hf_" not in str(caught.value)


def test_a_gated_data_set_and_a_missing_file_are_refused(server: HubServer) -> None:
    """One that is shared on request; a file that the listing has and the hub does not."""
    hub = Hub(server.url, Waits())
    found = hub.snapshot(REPOSITORY, "main")
    del server.commits[found.commit][SMALL]
    with pytest.raises(EndpointStopped, match="404"):
        body(hub, found, SMALL)
    server.gated = True
    with pytest.raises(EndpointStopped):
        hub.snapshot(REPOSITORY, "main")


@pytest.mark.parametrize(
    "listing", [b"<html>", b"[]", b'{"sha": "main", "siblings": []}', b'{"siblings": []}'], ids=repr
)
def test_a_server_that_is_no_hub_is_refused(server: HubServer, listing: bytes) -> None:
    """A mirror may answer 200 to everything."""
    server.faults[LISTING] = [Fault(body=listing)]
    with pytest.raises(EndpointStopped):
        Hub(server.url, Waits()).snapshot(REPOSITORY, "main")


def test_offline_means_that_nothing_is_asked(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own switch holds here, too."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(EndpointStopped, match="HF_HUB_OFFLINE"):
        Hub(server.url, Waits()).snapshot(REPOSITORY, "main")
    assert not server.asked


def test_an_address_where_nobody_is_stops_after_its_tries(server: HubServer) -> None:
    """The connection is refused each time."""
    waits = Waits()
    with pytest.raises(EndpointStopped):
        Hub("http://127.0.0.1:9", waits).snapshot(REPOSITORY, "main")
    assert len(waits) == TRIES - 1
    with pytest.raises(BadInput):
        Hub("ftp://somewhere", waits)


@contextmanager
def endless(head: bytes, again: bytes, pause: float = 0.0) -> Iterator[str]:
    """Serve `head`, and then `again` every `pause` seconds, to each request, until the client goes."""
    over = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while self.rfile.readline().strip():
                    pass
                self.wfile.write(head)
                while again and not over.wait(pause):
                    self.wfile.write(again)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, args=(0.005,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}"
        finally:
            over.set()
            listener.shutdown()


OK, CHUNKED = b"HTTP/1.1 200 OK\r\n", b"Transfer-Encoding: chunked\r\n\r\n"
BLANKS = b"10000\r\n" + b" " * 65536 + b"\r\n"


def bomb(pieces: int) -> bytes:
    """Return what gzip makes of `pieces` of 2**20 spaces: the same bytes for each, and a sum of all."""
    packer, blank = zlib.compressobj(9, wbits=-15), b" " * 2**20
    head, first = gzip.compress(b"")[:10], packer.compress(blank) + packer.flush(zlib.Z_FULL_FLUSH)
    piece = packer.compress(blank) + packer.flush(zlib.Z_FULL_FLUSH)
    total = 0
    for _ in range(pieces):
        total = zlib.crc32(blank, total)
    end = packer.flush() + struct.pack("<II", total, pieces * 2**20 % 2**32)
    return head + first + piece * (pieces - 1) + end


BOMB = bomb(2**8)
ENDLESS = {
    "a body": (OK + CHUNKED, BLANKS),
    "a body, drop by drop": (OK + b"\r\n", b" ", 0.01),
    "a head, drop by drop": (OK + b"X: ", b"a", 0.01),
    "a header": (OK + b"X: ", b"a" * 10_000),
    "headers": (OK, b"X: a\r\n" * 1000),
    "a status line": (b"HTTP/1.1 200 ", b"a" * 10_000),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20, 0.005),
    "extensions of chunks": (OK + CHUNKED, b"1;" + b"a" * 1000 + b"\r\n \r\n", 0.001),
    "the body of a refusal": (b"HTTP/1.1 404 Not Found\r\n" + CHUNKED, BLANKS),
    "the body of a redirect": (b"HTTP/1.1 302 Found\r\nLocation: /\r\n" + CHUNKED, BLANKS),
    "redirects": (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", b""),
    "gzip, a thousandfold": (OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB, b""),
}


@pytest.mark.parametrize("what", ["listing", "file"])
@pytest.mark.parametrize("case", ENDLESS)
def test_nothing_that_a_hub_sends_without_end_holds_the_command(case: str, what: str) -> None:
    """It is refused within a bound of memory and of time, in one error; a file beyond its size has come to its end."""
    file = RemoteFile(path="a", size=20_000_000, blob="0" * 40)
    with endless(*ENDLESS[case]) as url:
        hub = Hub(url, Waits(), timeout=0.05)
        tracemalloc.start()
        try:
            if what == "file":
                for _ in hub.pieces(Snapshot(REPOSITORY, "0" * 40, {}), file, 0):
                    pass
            else:
                hub.snapshot(REPOSITORY, "main")
        except EndpointStopped:
            pass
        else:
            assert (case, what) == ("a body", "file")
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak < (200_000_000 if what == "listing" else 2_000_000)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hf_hub_download` without questions to other hosts, without waits."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def fetched_by_library(server: HubServer, path: str, folder: Path) -> bytes:
    name = hf_hub_download(REPOSITORY, path, repo_type="dataset", local_dir=folder, endpoint=server.url)
    return Path(name).read_bytes()


@pytest.mark.usefixtures("library")
def test_the_library_itself_takes_wrong_bytes(server: HubServer, tmp_path: Path) -> None:
    """Why files are checked here: its download accepts any bytes of the right length."""
    server.faults[LARGE] = [Fault(flip=700)]
    got = fetched_by_library(server, LARGE, tmp_path)
    assert got != FILES[LARGE] and len(got) == len(FILES[LARGE])


@pytest.mark.usefixtures("library")
def test_the_library_itself_begins_again(server: HubServer, tmp_path: Path) -> None:
    """Why files are received here: what its download has of a file goes with the process."""
    server.faults[LARGE] = [Fault(cut=1000) for _ in range(20)]
    with pytest.raises(Exception, match="peer closed"):
        fetched_by_library(server, LARGE, tmp_path)
    server.faults[LARGE].clear()
    server.asked.clear()
    assert fetched_by_library(server, LARGE, tmp_path) == FILES[LARGE]
    assert [one.start for one in server.downloads()] == [0]
