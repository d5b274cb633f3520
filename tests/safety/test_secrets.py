"""No secret in anything that a user sees or keeps: every file, every output, the process list;
whatever an endpoint echoes. What a model says is never touched."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.scrubber import HIDDEN, Scrubber
from harness.store.log import valid_lines
from tests.support.scripted import PromptHandler, baseline, completion, listening

Told = pytest.CaptureFixture[str]

KEY = "sk-test-MARKED+k/ey==0123456789-abcdefXYZ"
"""With characters that are spelt otherwise in addresses."""
BEGINNING = 12
"""Characters of a secret, from its first one on, that nothing may show."""


def spellings(secret: str) -> set[str]:
    """As it is, as addresses have it, and as headers have it, alone or behind a word."""
    raw = secret.encode()
    shifted = {b64encode(b"x" * shift + raw).decode()[4:] for shift in (1, 2)}
    return {secret, quote(secret), quote(secret, safe=""), b64encode(raw).decode(), *shifted}


def traces(secret: str) -> set[bytes]:
    """The beginning in every spelling, as far as it does not depend on what follows."""
    beginning = secret[:BEGINNING]
    ends = {
        spelt[: len(spelt) - 3].encode() for spelt in spellings(beginning) if spelt != beginning
    }
    return {beginning.encode(), *ends}


TRACES = traces(KEY)


def shows_key(content: bytes) -> bytes | None:
    """The first trace of the key in some content, None where there is none."""
    return next((trace for trace in TRACES if trace in content), None)


def leaks(*roots: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Files below the folders that show the key, and what they show; `but` are the user's own, by
    name."""
    files = [
        path
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and path.name not in but
    ]
    assert files
    return {
        str(path): trace
        for path in files
        if (trace := shows_key(str(path).encode() + path.read_bytes()))
    }


ECHO = " ".join(
    [
        f"key {KEY}!",
        f"Bearer {KEY}",
        f"begins {KEY[:20]}...",
        f"quoted {quote(KEY, safe='')}",
        f"base64 {b64encode(KEY.encode()).decode()}",
    ]
)
"""An endpoint that tells all that it knows. Messages are shown up to 300 characters, so each stands
first somewhere."""
ECHOES = [
    ECHO,
    *(
        f"你的密钥 {b64encode(prefix + KEY.encode()).decode()}"
        for prefix in (b"", b"Bearer ", b"key ", b"user:")
    ),
    f"你的密钥 {KEY[:BEGINNING]}",
    f"你的密钥 {quote(KEY, safe='').lower()}",
]


def error(words: str) -> bytes:
    return orjson.dumps({"error": {"message": words, "code": words.split()[-1]}})


Reply = tuple[int, bytes, dict[str, str]]
Script = Callable[[dict[str, Any], int], Reply]
"""From a request's body and number to status, body and headers."""


def faulty(request: dict[str, Any], number: int) -> Reply:
    """Faults that pass, a parameter to learn, and then answers of a model whose name holds the
    key."""
    faults: list[Reply] = [
        *[(503, error(words), {}) for words in ECHOES],
        (429, error(ECHO), {"Retry-After": "0", "X-Echo": KEY}),
        (500, ECHO.encode(), {"Content-Type": "text/html"}),
        (200, error(ECHO), {}),
        (200, b"{" + ECHO.encode(), {}),
        (
            200,
            b'data: {"error":{"message":"' + ECHO.encode() + b'"}}\n\n',
            {"Content-Type": "text/event-stream"},
        ),
    ]
    if number < len(faults):
        return faults[number]
    if "temperature" in request:
        return 400, error(f"Unsupported parameter: 'temperature' for {KEY}"), {}
    status, body = baseline(request)
    data = orjson.loads(body) | {"model": f"served/{KEY}", "id": KEY, "system_fingerprint": KEY}
    data["choices"][0]["finish_reason"] = f"as {KEY} says"
    data["choices"][0]["message"]["refusal"] = f"none for {KEY}"
    return status, orjson.dumps(data), {}


def stubborn(request: dict[str, Any], number: int) -> Reply:
    """Users that are refused, by whichever server, beside others that are answered: failures with
    its words."""
    refused = crc32(request["messages"][-1]["content"].encode()) % 3 == 0
    return (
        (400, error(f"no: {ECHOES[number % len(ECHOES)]}"), {})
        if refused
        else (*baseline(request), {})
    )


ENDINGS: dict[str, tuple[Script, int]] = {
    "faults": (faulty, 0),
    "failures": (stubborn, 1),
    "401": (lambda request, number: (401, error(ECHO), {}), 3),
    "401 in base64": (lambda request, number: (401, error(ECHOES[1]), {}), 3),
    "402": (lambda request, number: (402, error(ECHOES[2]), {}), 3),
    "404": (lambda request, number: (404, error(ECHOES[3]), {}), 3),
    "redirect": (
        lambda request, number: (
            307,
            b"",
            {"Location": f"http://h.example/v1?key={quote(KEY)}&k={KEY}"},
        ),
        3,
    ),
}


@dataclass
class Echoing:
    """A server on loopback that is also a proxy: it answers whatever address it is asked for."""

    script: Script
    number: int = 0
    seen: list[str] = field(default_factory=list)
    port: int = 0
    go: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@pytest.fixture
def server() -> Iterator[Echoing]:
    made = Echoing(faulty)
    lock = threading.Lock()

    class Handler(PromptHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                number, made.number = made.number, made.number + 1
                made.seen.append(f"{self.path} {self.headers}")
            status, content, headers = made.script(orjson.loads(body), number)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(content)

    with listening(Handler) as made.port:
        try:
            yield made
        finally:
            made.go.set()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    # Nothing here is about waiting.
    monkeypatch.setattr("harness.client.caller.pause_before", lambda *_: 0.0)
    monkeypatch.setattr("harness.client.health.BETWEEN_PROBES", 0.05)
    monkeypatch.setattr("harness.client.health.BETWEEN_TRIES", 0.05)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", 4, 5, 2.0)))
    return folder


def options(tasks: Path, results: Path) -> list[str]:
    return [
        *("--platform", "weibo", "--tasks-dir", str(tasks), "--results-dir", str(results)),
        *("--max-retries", "30", "--concurrency", "2", "--allow-invalid"),
    ]


# Ways to give a key

OWN = ("key.txt", "providers.toml", "asbench.yaml")
"""Files of the user's that hold or name the key."""


def way(name: str, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:  # noqa: C901, a table
    """The options by which a command gets address and key; variables are set."""
    user = url.replace("//", f"//user:{quote(KEY, safe='')}@")
    match name:
        case "LLM_API_KEY" | "OPENAI_API_KEY":
            monkeypatch.setenv(name, KEY)
            monkeypatch.setenv({"LLM_API_KEY": "LLM_API_BASE"}.get(name, "OPENAI_BASE_URL"), url)
            return []
        case "provider":
            monkeypatch.setenv("P_SECRET", KEY)
            file = folder / "providers.toml"
            file.write_text(
                f'[providers.p]\nbase_url = "{url}"\nkey_env = "P_SECRET"\n', encoding="utf-8"
            )
            return ["--provider", "p", "--providers", str(file)]
        case "provider's header":
            monkeypatch.setenv("P_SECRET", KEY)
            file = folder / "providers.toml"
            head = f'[providers.p]\nbase_url = "{url}"\nkey_required = false\n'
            file.write_text(head + 'extra_headers = { X-Pass = "${P_SECRET}" }\n', encoding="utf-8")
            return ["--provider", "p", "--providers", str(file)]
        case "--api-key":
            return ["--api-url", url, "--api-key", KEY]
        case "--api-key-file":
            (folder / "key.txt").write_text(f"{KEY}\n", encoding="utf-8")
            return ["--api-url", url, "--api-key-file", str(folder / "key.txt")]
        case "--extra-header":
            return ["--api-url", url, "--extra-header", f"X-Pass: {KEY}"]
        case "credentials":
            return ["--api-url", user]
        case "credentials in a variable":
            monkeypatch.setenv("LLM_API_BASE", user)
            return []
        case "query":
            return ["--api-url", f"{url}?key={quote(KEY, safe='')}"]
        case "replicas":
            return [
                "--api-url",
                url,
                "--api-url",
                url.replace("127.0.0.1", "localhost"),
                "--api-key",
                KEY,
            ]
        case "proxy":
            proxy = f"http://user:{quote(KEY, safe='')}@{url.removeprefix('http://').removesuffix('/v1')}"
            monkeypatch.setenv("HTTP_PROXY", proxy)
            return ["--api-url", "http://model.example/v1"]
        case _:
            raise AssertionError(name)


WAYS = (
    *(
        "LLM_API_KEY",
        "OPENAI_API_KEY",
        "provider",
        "provider's header",
        "--api-key",
        "--api-key-file",
    ),
    *("--extra-header", "credentials", "credentials in a variable", "query", "replicas", "proxy"),
)


def is_sent(seen: str) -> bool:
    """Whether the key went out with a request, in some spelling."""
    return (
        any(spelt in seen for spelt in spellings(KEY))
        or b64encode(f"user:{KEY}".encode()).decode() in seen
    )


OFTEN = ("provider's header", "proxy")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in WAYS]
)
def test_secret_is_in_no_file_and_no_output(
    name,
    server,
    tasks,
    tmp_path,
    monkeypatch,
    capfd,
):
    """However it is given, and though the endpoint echoes it in every fault: through a run and all
    that follows it."""
    results = tmp_path / "results"
    how = way(name, server.url, tmp_path, monkeypatch)
    server.script = ENDINGS["failures"][0]
    assert main(["run", "--model", "m", *how, *options(tasks, results)]) in (1, 3)
    server.script, server.number = faulty, 0
    again = ["--results-dir", str(results)]
    assert main(["resume", *how, *again, "--max-retries", "30"]) == 0
    assert any(map(is_sent, server.seen))
    for words in (
        "status",
        "status --json",
        "verify",
        "verify --json",
        "stats",
        "reeval",
        "reeval --reparse",
    ):
        assert main([*words.split(), *again]) == 0
    assert main(["run", "--model", "m", *how, *options(tasks, results)]) == 0
    shown = capfd.readouterr()
    assert shows_key(shown.out.encode()) is None
    assert shows_key(shown.err.encode()) is None
    assert leaks(tmp_path, but=OWN) == {}
    log = (results / "m" / "run_weibo.log").read_bytes()
    assert b'"learned"' in log and b"***" in log


@pytest.mark.parametrize("ending", ENDINGS)
def test_secret_that_ends_a_run_is_in_no_file_and_no_output(ending, server, tasks, tmp_path, capfd):
    """Whole, cut, quoted, in base64 or in another's address: the words are reported without it."""
    server.script, code = ENDINGS[ending]
    how = ["--api-url", server.url, "--api-key", KEY]
    assert main(["run", "--model", "m", *how, *options(tasks, tmp_path / "results")]) in (code, 3)
    shown = capfd.readouterr()
    assert shows_key((shown.out + shown.err).encode()) is None
    assert leaks(tmp_path / "results") == {}


# Spellings

KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"),
    min_size=6,
    max_size=80,
)
"""All that a key can be; one with stars in it could not be distinguished from what is put in its
place."""
AROUND = st.text(st.sampled_from(" a0:,;\"'密钥3fF"), max_size=12)
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "percent-encoded": lambda text: quote(text, safe=""),
    "percent-encoded as a path": quote,
    "percent-encoded in lower case": lambda text: re.sub(
        "%..", lambda escape: escape[0].lower(), quote(text, safe="")
    ),
}


@given(KEYS, st.sampled_from(sorted(SPELLINGS)), AROUND, AROUND, st.integers(0, 80))
def test_no_beginning_of_a_key_survives(key, name, before, after, cut):
    """Cut anywhere behind its twelfth character, and whatever stands around it."""
    spelt = SPELLINGS[name](key[: max(BEGINNING, len(key) - cut)])
    shown = Scrubber([key])(f"{before}{spelt}{after}")
    assert HIDDEN in shown
    assert SPELLINGS[name](key[:BEGINNING]) not in shown


@given(
    KEYS,
    st.binary(max_size=9),
    st.binary(max_size=5),
    st.sampled_from([b64encode, urlsafe_b64encode]),
)
def test_no_beginning_of_a_key_survives_in_base64(key, before, after, encode):
    """At each of the three offsets, as in `Basic dXNlcjpr...`, and with anything behind it."""
    raw = key.encode()[:BEGINNING]
    first, end = -(-len(before) * 8 // 6), (len(before) + len(raw)) * 8 // 6
    trace = encode(before + raw).decode()[first:end]
    shown = Scrubber([key])(f"denied: {encode(before + key.encode() + after).decode()}")
    assert HIDDEN in shown and trace not in shown


def test_what_follows_the_beginning_of_a_key_goes_with_it():
    """A long key is shown in part by many endpoints: no more than its end is left."""
    scrub = Scrubber([KEY])
    assert scrub(f"invalid key {KEY[:30]}...: see /help") == "invalid key ***: see /help"
    assert scrub(f"invalid key {KEY}, see /help") == "invalid key ***, see /help"


@pytest.mark.parametrize("key", ["sk-key", "pass;word", "tab&lt", "with space"])
def test_short_key_goes_as_a_whole(key):
    """What stands behind it is no part of it."""
    for spell in SPELLINGS.values():
        assert Scrubber([key])(f"no {spell(key)}s!") == "no ***s!"


@given(st.text(st.sampled_from("ab %&#x;u\\\"'密2f"), max_size=300))
def test_text_without_a_key_is_left_as_it_is(text):
    """Escapes are looked through, and never rewritten."""
    assert Scrubber([KEY, "password99"])(text) == text
    assert Scrubber([])(text) == text


def test_scrubbing_takes_time_in_proportion_to_the_text():
    """Half a million characters that begin like the key again and again are done at once: no step
    is repeated."""
    scrub = Scrubber([KEY, "x" * 1000])
    hostile = [KEY[: BEGINNING - 1], "%73" * 11, KEY[:BEGINNING] + " ", "x" * 11 + "y"]
    for text in hostile:
        many = text * (500_000 // len(text))
        assert KEY[:BEGINNING] not in scrub(many)


# Arguments


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--help"],
        ["run", "--api-key", KEY, "--bogus"],
        ["run", "--model", "m", "--apikey", KEY],
        ["run", f"--apikey={KEY}"],
        ["run", "--model", "m", "--api-url", "http://127.0.0.1:9/v1", "--api-key-file", KEY],
        ["run", "--model", "m", "--api-url", f"ftp://user:{KEY}@h/v1"],
        ["run", "--model", "m", "--api-url", f"http://user:{KEY}@h:x/v1"],
        ["run", "--model", "m", "--api-key", KEY, "--api-key", KEY + " "],
        ["run", "--model", "m", "--extra-header", f"Authorization: {KEY}"],
        ["run", "--model", "m", "--extra-header", f"X-Pass: {KEY}\n"],
        ["resume", "--api-key", KEY, "--name", "none"],
        ["status", "--api-key", KEY],
        ["--api-key", KEY],
    ],
)
@pytest.mark.usefixtures("as_a_program")
def test_usage_error_does_not_repeat_a_key(words, capfd, monkeypatch):
    """Terminals are recorded, and mistakes are pasted into issues."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv(
        "PYTHONHASHSEED", "0"
    )  # without it, `resume` would start this very process again
    monkeypatch.setattr("sys.argv", ["harness", *words])
    assert main() in (0, 2)
    shown = capfd.readouterr()
    assert shown.out or shown.err
    assert shows_key((shown.out + shown.err).replace("\n", "").encode()) is None


# A defect of the harness itself


@pytest.mark.usefixtures("as_a_program")
@pytest.mark.parametrize(
    "name", ["LLM_API_KEY", "provider", "--api-key", "--api-key-file", "--extra-header", "query"]
)
def test_defect_of_the_harness_tells_no_key(
    name,
    server,
    tasks,
    tmp_path,
    monkeypatch,
    capfd,
):
    """An error that nobody foresaw may hold what an endpoint said; its sentence and the file of
    details do not."""
    how = way(name, server.url, tmp_path, monkeypatch)

    def defect(*_: object, **__: object) -> None:
        raise LookupError(f"nobody thought of {ECHO}")

    monkeypatch.setattr("harness.client.replies.completion_of", defect)
    monkeypatch.setattr("harness.client.replies.completion", defect)
    server.script = lambda request, number: (200, completion("{}"), {})
    words = ["run", "--model", "m", *how, *options(tasks, tmp_path / "results")]
    monkeypatch.setattr("sys.argv", ["harness", *words])
    assert main() == 70
    shown = capfd.readouterr()
    assert "LookupError" in shown.err
    (file,) = (tmp_path / "tmp").glob("harness-error-*.txt")
    assert "nobody thought of" in file.read_text(encoding="utf-8")
    assert shows_key((shown.out + shown.err).encode()) is None
    assert leaks(tmp_path, but=OWN) == {}


# The process list


def started(words: list[str], **variables: str) -> tuple[subprocess.Popen[bytes], int]:
    """The harness on a terminal of its own; its process and the terminal's other end."""
    mine, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *words],
        stdin=subprocess.DEVNULL,
        stdout=its,
        stderr=its,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "300", **variables},
    )
    os.close(its)
    return process, mine


def shown_on(terminal: int) -> bytes:
    """All that came, once nobody writes to it any more."""
    content = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as file:
        while block := file.read(1 << 16):
            content += block
    return content


def of_process(process: subprocess.Popen[bytes], what: str) -> dict[str, bytes]:
    """A file of /proc of a process and of its children, as whoever lists processes sees it."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if process.pid in (int(folder.name), parent):
                found[folder.name] = (folder / what).read_bytes()
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc here")
def test_process_list_and_killed_run_show_no_key(server, tasks, tmp_path, monkeypatch):
    """A run with a key file on a terminal: not in its process, nor in what is shown, nor in what
    kill -9 leaves."""
    calm = threading.Event()

    def slow(request: dict[str, Any], number: int) -> Reply:
        if number > 3:
            calm.set()
            server.go.wait(60)
        return faulty(request, number if number < 2 else 20)

    server.script = slow
    how = way("--api-key-file", server.url, tmp_path, monkeypatch)
    results = tmp_path / "results"
    process, terminal = started(["run", "--model", "m", *how, *options(tasks, results)])
    try:
        while not calm.is_set():
            assert process.poll() is None, shown_on(terminal)
            time.sleep(0.01)
        for file in ("cmdline", "environ"):
            found = of_process(process, file)
            assert str(process.pid) in found
            assert [shows_key(content) for content in found.values()] == [None] * len(found), file
        assert b"--model\0m\0" in of_process(process, "cmdline")[str(process.pid)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    server.go.set()
    shown = shown_on(terminal)
    assert list(valid_lines(results / "m" / "run_weibo.log"))
    assert leaks(tmp_path, but=OWN) == {}
    process, terminal = started(["resume", "--allow-invalid", *how, "--results-dir", str(results)])
    shown += shown_on(terminal)
    assert process.wait() == 0
    assert b"4/4" in shown
    assert shows_key(re.sub(rb"\s+", b"", shown)) is None
    assert leaks(tmp_path, but=OWN) == {}


# What a model says


@pytest.mark.parametrize("key", ["EMPTY", KEY])
def test_completion_is_never_touched(key, server, tasks, tmp_path, capfd):
    """A model that says the word that serves as a key, repeats its prompt, or even says the key,
    has said it."""
    said: set[str] = set()

    def repeating(request: dict[str, Any], number: int) -> Reply:
        if not number:
            return 503, b"EMPTY queue", {}
        text = orjson.dumps(
            {
                "persona_summary": f"{key} EMPTY",
                "predicted_tags": [key],
                "reasoning": request["messages"][-1]["content"],
            }
        ).decode()
        said.add(text)
        return 200, completion(text), {}

    server.script = repeating
    how = ["--api-url", server.url, "--api-key", key]
    assert main(["run", "--model", "m", *how, *options(tasks, tmp_path / "results")]) == 0
    folder = tmp_path / "results" / "m"
    saved = [
        orjson.loads(line.text)["completion"]["text"]
        for line in valid_lines(folder / "responses_weibo.jsonl")
    ]
    assert set(saved) == said
    records = [
        orjson.loads(line.text) for line in valid_lines(folder / "inference_results_weibo.jsonl")
    ]
    assert {
        tag for record in records for step in record["steps"] for tag in step["prediction"]
    } == {key}
    assert b"EMPTY queue" in (folder / "run_weibo.log").read_bytes()
    assert main(["verify", "--results-dir", str(tmp_path / "results")]) == 0
