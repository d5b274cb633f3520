"""Find the secrets that this process was given, to remove them from its last messages.

The client removes what it sent from what an endpoint echoes. This is for messages that never pass
there: about wrong arguments, and unforeseen errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from harness.benchmarks.files import content
from harness.scrubber import SHORTEST_SECRET, Scrubber

# Not `--api-key-file`: errors have to name that path, and `_of_file` finds the key in it.
SECRET_OPTION = re.compile(
    r"--[a-z_-]*(?:key|token|secret|password)(?!.*file)[a-z_-]*", re.IGNORECASE
)
"""Also matches options that are misspelt or unknown."""
KEY_FILE = re.compile(r"--api[-_]?key[-_]file", re.IGNORECASE)
HEADER, ADDRESS = re.compile("--extra-header"), re.compile("--(?:api[-_]url|base-url)")
VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD", re.IGNORECASE)
ADDRESSES = re.compile(r"_PROXY$|_BASE$|_URL$", re.IGNORECASE)
LONG_SECRET = 20
"""Characters from which on the name of no file may be a key, pasted in its place."""
LARGEST_KEY_FILE = 1 << 16
"""Bytes."""


def scrubber(arguments: Sequence[str], environment: Mapping[str, str]) -> Scrubber:
    """Return a function that removes them from a text."""
    secrets = {*_of_arguments(arguments), *_of_environment(environment)}
    return Scrubber(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)


def _of_arguments(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the secrets among the values of `--name value` and `--name=value`."""
    for word, following in pairwise([*arguments, ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if SECRET_OPTION.fullmatch(name):
            yield value
        elif KEY_FILE.fullmatch(name):
            yield from _of_file(value)
        elif HEADER.fullmatch(name):
            yield value.partition(":")[2].strip()
        elif ADDRESS.fullmatch(name):
            yield from of_address(value)


def _of_file(name: str) -> Iterator[str]:
    """Yield the key in a file; a name of no file may be the key itself."""
    path = Path(name)
    try:
        yield content(path, LARGEST_KEY_FILE).decode("utf-8-sig").strip()
    except (OSError, ValueError):  # a pipe, too, which only the command itself may read
        is_path = path.is_absolute() or ("/" in name and path.parent.is_dir())
        if len(name) >= LONG_SECRET and not is_path:
            yield name


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        if VARIABLE.search(name):
            yield value
        elif ADDRESSES.search(name):
            yield from of_address(value)


def of_address(url: str) -> Iterator[str]:
    """Yield password and query of an address, also unquoted; for invalid ones all between `//` and
    `@`."""
    try:
        address = urlsplit(url)
        secrets = [address.password or address.username or ""]
        secrets += [item.partition("=")[2] for item in address.query.split("&")]
    except ValueError:
        secrets = [url.partition("//")[2].rpartition("@")[0].rpartition(":")[2]]
    # A message may quote an address as it was typed, or as it was understood.
    for secret in secrets:
        yield secret
        yield unquote(secret)
