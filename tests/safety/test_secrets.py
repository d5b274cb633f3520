"""No secret in anything that a user sees or keeps: every file, every output, the process list; whatever an endpoint
echoes. What a model says is never touched."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import unescape
from html.entities import html5
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from zlib import crc32

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.endpoint import address
from harness.endpoint.address import Scrubber
from harness.store.log import sound_lines
from tests.support.scripted import PromptHandler, baseline, completion, listening

Told = pytest.CaptureFixture[str]

KEY = "sk-test-MARKED+k/ey==0123456789-abcdefXYZ"
"""With characters that are spelt otherwise in addresses."""
NUMBERED = ("%{:02x}", "&#{};", "&#X{:X};", "\\u{:04x}")
"""Each character by its number: in addresses, in HTML, in JSON."""
PART = 12
"""Characters of a secret in a row that nothing may show."""


def spellings(secret: str) -> set[str]:
    """As it is, as addresses have it, as headers have it, alone or behind a word."""
    raw = secret.encode()
    shifted = [b64encode(b"x" * shift + raw).decode()[4:] for shift in range(3)]
    numbered = ["".join(map(form.format, raw)) for form in NUMBERED]
    in_hex = raw.hex(), raw.hex().upper()
    return {
        secret,
        quote(secret),
        quote(secret, safe=""),
        urlsafe_b64encode(raw).decode(),
        *in_hex,
        *shifted,
        *numbered,
    }


def traces(secret: str) -> set[bytes]:
    """Every part of every spelling that would be too much."""
    return {text[at : at + PART].encode() for text in spellings(secret) for at in range(max(1, len(text) - PART - 2))}


TRACES = traces(KEY)
assert {len(trace) for trace in TRACES} == {PART}


def shows_key(content: bytes) -> bytes | None:
    """The first trace of the key in some content, None where there is none."""
    parts = (content[at : at + PART] for at in range(len(content) - PART + 1))
    return next((part for part in parts if part in TRACES), None)


def leaks(*roots: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """Files below the folders that show the key, and what they show; `but` are the user's own, by name."""
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and path.name not in but]
    assert files
    return {str(path): trace for path in files if (trace := shows_key(str(path).encode() + path.read_bytes()))}


SPELT = ["".join(map(form.format, KEY.encode())) for form in NUMBERED]
ECHO = " ".join(
    [
        f"key {KEY}!",
        f"Bearer {KEY}",
        f"begins {KEY[:20]}...",
        f"ends ...{KEY[-20:]}",
        f"quoted {quote(KEY, safe='')}",
        f"base64 {b64encode(KEY.encode()).decode()}",
    ]
)
"""An endpoint that tells all that it knows. Messages are shown up to 300 characters, so each stands first somewhere."""
ECHOES = [
    ECHO,
    *(f"你的密钥 {word}" for word in (b64encode(f"Bearer {KEY}".encode()).decode(), KEY[5:30], KEY.encode().hex())),
    *(f"你的密钥 {word}" for word in (KEY.encode().hex().upper(), *SPELT)),
]


def error(words: str) -> bytes:
    return orjson.dumps({"error": {"message": words, "code": words.split()[-1]}})


Reply = tuple[int, bytes, dict[str, str]]
Script = Callable[[dict[str, Any], int], Reply]
"""From a request's body and number to status, body and headers."""


def faulty(request: dict[str, Any], number: int) -> Reply:
    """Faults that pass, a parameter to learn, and then answers of a model whose name holds the key."""
    faults: list[Reply] = [
        *[(503, error(words), {}) for words in ECHOES],
        (429, error(ECHO), {"Retry-After": "0", "X-Echo": KEY}),
        (500, ECHO.encode(), {"Content-Type": "text/html"}),
        (200, error(ECHO), {}),
        (200, b"{" + ECHO.encode(), {}),
        (200, b'data: {"error":{"message":"' + ECHO.encode() + b'"}}\n\n', {"Content-Type": "text/event-stream"}),
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
    """Users that are refused, by whichever server, beside others that are answered: failures with its words."""
    refused = crc32(request["messages"][-1]["content"].encode()) % 3 == 0
    return (400, error(f"no: {ECHOES[number % len(ECHOES)]}"), {}) if refused else (*baseline(request), {})


ENDINGS: dict[str, tuple[Script, int]] = {
    "faults": (faulty, 0),
    "failures": (stubborn, 1),
    "401": (lambda request, number: (401, error(ECHO), {}), 3),
    "401 in base64": (lambda request, number: (401, error(ECHOES[1]), {}), 3),
    "402": (lambda request, number: (402, error(ECHOES[2]), {}), 3),
    "404": (lambda request, number: (404, error(ECHOES[3]), {}), 3),
    "redirect": (lambda request, number: (307, b"", {"Location": f"http://h.example/v1?key={quote(KEY)}&k={KEY}"}), 3),
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
    monkeypatch.setattr("harness.endpoint.caller.full_jitter", lambda *_: 0.0)  # nothing here is about waiting


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
            file.write_text(f'[providers.p]\nbase_url = "{url}"\nkey_env = "P_SECRET"\n', encoding="utf-8")
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
            return ["--api-url", url, "--api-url", url.replace("127.0.0.1", "localhost"), "--api-key", KEY]
        case "proxy":
            proxy = f"http://user:{quote(KEY, safe='')}@{url.removeprefix('http://').removesuffix('/v1')}"
            monkeypatch.setenv("HTTP_PROXY", proxy)
            return ["--api-url", "http://model.example/v1"]
        case _:
            raise AssertionError(name)


WAYS = (
    *("LLM_API_KEY", "OPENAI_API_KEY", "provider", "provider's header", "--api-key", "--api-key-file"),
    *("--extra-header", "credentials", "credentials in a variable", "query", "replicas", "proxy"),
)


def is_sent(seen: str) -> bool:
    """Whether the key went out with a request, in some spelling."""
    return any(spelt in seen for spelt in spellings(KEY)) or b64encode(f"user:{KEY}".encode()).decode() in seen


OFTEN = ("provider's header", "proxy")


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in WAYS]
)
def test_secret_is_in_no_file_and_no_output(
    name: str, server: Echoing, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Told
) -> None:
    """However it is given, and though the endpoint echoes it in every fault: through a run and all that follows it."""
    results = tmp_path / "results"
    how = way(name, server.url, tmp_path, monkeypatch)
    server.script = ENDINGS["failures"][0]
    assert main(["run", "--model", "m", *how, *options(tasks, results)]) in (1, 3)
    server.script, server.number = faulty, 0
    again = ["--results-dir", str(results)]
    assert main(["resume", *how, *again, "--max-retries", "30"]) == 0
    assert any(map(is_sent, server.seen))
    for words in ("status", "status --json", "verify", "verify --json", "stats", "reeval", "reeval --reparse"):
        assert main([*words.split(), *again]) == 0
    assert main(["run", "--model", "m", *how, *options(tasks, results)]) == 0
    shown = capfd.readouterr()
    assert shows_key(shown.out.encode()) is None
    assert shows_key(shown.err.encode()) is None
    assert leaks(tmp_path, but=OWN) == {}
    log = (results / "m" / "run_weibo.log").read_bytes()
    assert b'"learned"' in log and b"***" in log


@pytest.mark.parametrize("ending", ENDINGS)
def test_secret_that_ends_a_run_is_in_no_file_and_no_output(
    ending: str, server: Echoing, tasks: Path, tmp_path: Path, capfd: Told
) -> None:
    """Whole, cut, quoted, in base64 or in another's address: the words are reported without it."""
    server.script, code = ENDINGS[ending]
    how = ["--api-url", server.url, "--api-key", KEY]
    assert main(["run", "--model", "m", *how, *options(tasks, tmp_path / "results")]) in (code, 3)
    shown = capfd.readouterr()
    assert shows_key((shown.out + shown.err).encode()) is None
    assert leaks(tmp_path / "results") == {}


# Spellings

Spelling = Callable[[str], str]


def each(form: str) -> Spelling:
    """Every character by its number."""
    return lambda text: "".join(form.format(ord(character)) for character in text)


def named(text: str) -> str:
    """As HTML has it where it has names for characters."""
    names = {character: name for name, character in html5.items() if name.endswith(";")}
    return "".join(f"&{names[one]}" if one in names else one for one in text)


def in_json(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def numbers_read(pattern: str) -> Spelling:
    """Reads characters by their numbers in hex, the first group of a pattern."""
    return lambda text: re.sub(pattern, lambda found: chr(int(found[1], 16)), text)


def json_read(text: str) -> str:
    """Escapes of JSON read, wherever they are in a text."""
    simple = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

    def meant(found: re.Match[str]) -> str:
        return chr(int(found[1], 16)) if found[1] else simple.get(found[2], found[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|([\"\\/bfnrt]))", meant, text)


SPELLINGS: dict[str, tuple[Spelling, Spelling]] = {
    "percent": (each("%{:02X}"), unquote),
    "percent in lower case": (each("%{:02x}"), unquote),
    "address": (lambda text: quote(text, safe=""), unquote),
    "HTML": (each("&#{};"), unescape),
    "HTML with zeros": (each("&#{:07};"), unescape),
    "HTML in hex": (each("&#x{:x};"), unescape),
    "HTML in upper-case hex": (each("&#X{:X};"), unescape),
    "HTML without semicolons": (each("&#x{:02x}"), numbers_read("&#x([0-9a-f]{2})")),
    "HTML in decimals without semicolons": (
        each("&#{}"),
        lambda text: re.sub("&#(1[0-2][0-9]|[3-9][0-9])", lambda one: chr(int(one[1])), text),
    ),
    "HTML by names": (named, unescape),
    "JSON by number": (each("\\u{:04x}"), json_read),
    "JSON by number in upper case": (each("\\u{:04X}"), json_read),
    "JSON": (in_json, json_read),
    "Python": (each("\\x{:02x}"), numbers_read(r"\\x([0-9a-f]{2})")),
}
"""How a text is spelt, and how it is read again."""


KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="*"), min_size=20, max_size=200)
"""All that a key can be; one with stars in it could not be distinguished from what is put in its place."""
AROUND = st.text(st.sampled_from("a0%&#x;u\\\"' =密钥3fF"), max_size=12)


def parts(key: str) -> set[str]:
    return {key[at : at + 10] for at in range(len(key) - 9)}


@given(KEYS, st.lists(st.sampled_from(sorted(SPELLINGS)), min_size=1, max_size=2), AROUND, AROUND, st.integers(0, 40))
@example(KEY, ["JSON by number", "JSON"], "key ", ".", 0)
@example("0" * 20, ["HTML without semicolons"], "", "0", 25)
@example("0" * 20, ["HTML in decimals without semicolons"], "", "0", 20)
@example("0" * 20, ["HTML with zeros"], "%00", "", 28)
@example('sk-"quotes"-and-\\back\\slashes-0123456789', ["JSON", "JSON"], "", "", 0)
@example("sk-" + "0123456789abcdef" * 12, ["percent", "HTML"], "", "", 7)
def test_no_part_of_a_key_survives_in_any_spelling(
    key: str, names: list[str], before: str, after: str, cut: int
) -> None:
    """Whatever stands around it, and though both its ends are cut off: read again, no ten characters are the key's.

    A key that has escapes in it is looked for as a whole. An escape before it (`%00`) is one character to the scrubber:
    what of its spelling the key has too would be taken for characters of the key.
    """
    cut = 0 if address.ESCAPE.search(key) else cut
    before = before.rstrip(key) if address.ESCAPE.search(before) else before
    spelt = key[cut % 10 :]
    for name in names:
        spelt = SPELLINGS[name][0](spelt)
    read = Scrubber([key])(f"{before}{spelt[: len(spelt) - cut]}{after}")
    assert not any(part in read for part in parts(key))
    for name in reversed(names):
        read = SPELLINGS[name][1](read)
        assert not any(part in read for part in parts(key))


@given(KEYS, AROUND, AROUND, st.sampled_from([bytes.hex, lambda raw: raw.hex().upper()]), st.integers(0, 20))
def test_no_part_of_a_key_survives_in_hex(
    key: str, before: str, after: str, spell: Callable[[bytes], str], cut: int
) -> None:
    """In either case, also where it is cut off."""
    spelt = spell(key.encode())[cut:]
    shown = Scrubber([key])(f"{before}{spelt}{after}")
    assert not any(spelt[at : at + 10] in shown for at in range(len(spelt) - 9))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("key", ["sk-key", "pass;word", "tab&lt"])
def test_short_key_goes_as_a_whole_in_any_spelling(key: str, spelling: str) -> None:
    """Parts of it are too short to be distinguished from words."""
    spelt = SPELLINGS[spelling][0](key)
    assert Scrubber([key])(f"no {spelt}!") == "no ***!"
    assert Scrubber([key])(f"no {key.encode().hex().upper()}!") == "no ***!"


@given(st.text(st.sampled_from("ab %&#x;u\\\"'密2f"), max_size=300))
def test_text_without_a_key_is_left_as_it_is(text: str) -> None:
    """Escapes are looked through, and never rewritten."""
    assert Scrubber([KEY, "password99"])(text) == text


def test_key_is_found_at_the_end_of_any_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long words are read block by block, which a key may lie across."""
    monkeypatch.setattr(address, "BLOCK", 64)
    scrub = Scrubber([KEY])
    for spelt in (KEY, SPELLINGS["HTML"][0](KEY), SPELLINGS["JSON"][0](SPELLINGS["JSON by number"][0](KEY))):
        for before in range(130):
            assert scrub("x" * before + spelt + "y") == "x" * before + "***" + "y"


def test_scrubbing_takes_steps_in_proportion_to_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the text is read ten times as far, however deep its escapes are; a level is a pass and no more."""
    read = list[int]()
    once = address._unescaped

    def counted(text: str) -> Iterator[tuple[str, Sequence[int]]]:
        for level in once(text):
            read.append(len(level[0]))
            yield level

    scrub = Scrubber([KEY])
    monkeypatch.setattr(address, "_unescaped", counted)
    for text in ("%" + "25" * 20_000, "&amp;" * 8_000, "\\" * 40_000, "a" * 40_000):
        for times in (1, 10):
            read.clear()
            scrub(text * times)
            assert sum(read) <= 1.2 * (address.LEVELS + 1) * len(text) * times


def test_parts_of_a_long_key_are_some_thousands() -> None:
    """They grow with the key's length, and by no more than its spellings."""
    sizes = [len(Scrubber(["".join(map(chr, range(33, 33 + 80)))[:40] * times])._parts) for times in (1, 5)]
    assert sizes[1] <= 5 * sizes[0]
    assert len(Scrubber([KEY * 5])._parts) < 5000


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
def test_usage_error_does_not_repeat_a_key(words: list[str], capfd: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terminals are recorded, and mistakes are pasted into issues."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # without it, `resume` would start this very process again
    monkeypatch.setattr("sys.argv", ["harness", *words])
    assert main() in (0, 2)
    shown = capfd.readouterr()
    assert shown.out or shown.err
    assert shows_key((shown.out + shown.err).replace("\n", "").encode()) is None


# A defect of the harness itself


@pytest.mark.usefixtures("as_a_program")
@pytest.mark.parametrize("name", ["LLM_API_KEY", "provider", "--api-key", "--api-key-file", "--extra-header", "query"])
def test_defect_of_the_harness_tells_no_key(
    name: str, server: Echoing, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Told
) -> None:
    """An error that nobody foresaw may hold what an endpoint said; its sentence and the file of details do not."""
    how = way(name, server.url, tmp_path, monkeypatch)

    def defect(*_: object, **__: object) -> None:
        raise LookupError(f"nobody thought of {ECHO}")

    monkeypatch.setattr("harness.endpoint.replies.completion_of", defect)
    monkeypatch.setattr("harness.endpoint.replies.completion", defect)
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


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc here")
@pytest.mark.parametrize(
    ("name", "files"),
    [
        pytest.param("--api-key-file", ("cmdline", "environ"), marks=pytest.mark.slow),
        ("--api-key", ("cmdline",)),
        pytest.param("credentials", ("cmdline",), marks=pytest.mark.slow),
    ],
)
def test_process_list_and_killed_run_show_no_key(
    name: str,
    files: tuple[str, ...],
    server: Echoing,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run on a terminal: not in its process, nor in what is shown, nor in what kill -9 leaves behind.

    Where the command line itself holds the key, the process writes over it as it starts.
    """
    calm = threading.Event()

    def slow(request: dict[str, Any], number: int) -> Reply:
        if number > 3:
            calm.set()
            server.go.wait(60)
        return faulty(request, number if number < 2 else 20)

    server.script = slow
    how = way(name, server.url, tmp_path, monkeypatch)
    results = tmp_path / "results"
    process, terminal = started(["run", "--model", "m", *how, *options(tasks, results)])
    try:
        while not calm.is_set():
            assert process.poll() is None, shown_on(terminal)
            time.sleep(0.01)
        for file in files:
            found = of_process(process, file)
            assert str(process.pid) in found
            assert [shows_key(content) for content in found.values()] == [None] * len(found), file
        assert b"--model\0m\0" in of_process(process, "cmdline")[str(process.pid)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    server.go.set()
    shown = shown_on(terminal)
    assert list(sound_lines(results / "m" / "run_weibo.log"))
    assert leaks(tmp_path, but=OWN) == {}
    process, terminal = started(["resume", "--allow-invalid", *how, "--results-dir", str(results)])
    shown += shown_on(terminal)
    assert process.wait() == 0
    assert b"4/4" in shown
    assert shows_key(re.sub(rb"\s+", b"", shown)) is None
    assert leaks(tmp_path, but=OWN) == {}


# What a model says


@pytest.mark.parametrize("key", ["EMPTY", KEY])
def test_completion_is_never_touched(key: str, server: Echoing, tasks: Path, tmp_path: Path, capfd: Told) -> None:
    """A model that says the word that serves as a key, repeats its prompt, or even says the key, has said it."""
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
    saved = [orjson.loads(line.text)["completion"]["text"] for line in sound_lines(folder / "responses_weibo.jsonl")]
    assert set(saved) == said
    records = [orjson.loads(line.text) for line in sound_lines(folder / "inference_results_weibo.jsonl")]
    assert {tag for record in records for step in record["steps"] for tag in step["prediction"]} == {key}
    assert b"EMPTY queue" in (folder / "run_weibo.log").read_bytes()
    assert main(["verify", "--results-dir", str(tmp_path / "results")]) == 0
