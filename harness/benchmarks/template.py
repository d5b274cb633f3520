"""Prompt templates: a text with places `${name}`, in parts headed `[system]` and `[user]`, or the
user's alone.

A template is cut into parts once, so that a prompt costs a join (docs/design.md, section 8).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.errors import BadInput
from harness.model import Message

KEPT = "prompt_"
"""Before the names under which a run's folder keeps prompts; a kept one can be named as `--prompt`
again."""

OWN, AUTHORS = "own", "authors"
"""What a report calls the prompt that ships, and that of a benchmark's authors."""


class Template:
    """The template of a file, or the one that ships.

    `source` is its origin (`own` or a file's name); `files` are the bytes that define it, by name.
    Raise `BadInput` for a file that cannot be read, a place that is not in `known`, or one missing
    that is `needed`.
    """

    def __init__(
        self,
        path: Path | None,
        shipped: Path,
        known: frozenset[str],
        needed: frozenset[str],
    ) -> None:
        file = path or shipped
        data = read_file(file)
        try:
            # Editors on Windows write a byte order mark.
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadInput(f"{file}: a prompt template must be UTF-8 text") from None

        self.path = path
        self.source = kept_name(file).removeprefix(KEPT)
        self.files: Mapping[str, bytes] = {kept_name(file): data}
        if path is None or data == read_file(shipped):
            self.source = OWN
            self.files = {f"{KEPT}own.txt": data}
        elif self.source in (OWN, AUTHORS):
            # A file of this name is not what a report calls by it.
            self.source = f"file {self.source}"

        system, user = _split_roles(text, file)
        self._system = _cut(system, known, file)
        self._user = _cut(user, known, file)
        # Without places it is the same for each request, so it is made once.
        self._fixed_system: Message | None = None
        if len(self._system) == 1:
            self._fixed_system = _filled("system", self._system, {})

        missing = needed.difference(self._system[1::2], self._user[1::2])
        if missing:
            places = " and ".join([f"${{{name}}}" for name in sorted(missing)])
            raise BadInput(
                f"{file}: the prompt template has no place {places}, and without it no model could"
                " answer"
            )

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the messages, filled with the value of each place."""
        user = _filled("user", self._user, values)
        if not self._system:
            return (user,)
        system = self._fixed_system or _filled("system", self._system, values)
        return (system, user)


def kept_name(path: Path) -> str:
    return KEPT + path.name.removeprefix(KEPT)


def read_file(path: Path) -> bytes:
    return input_file(path, "prompt ", DOCUMENT_MOST)


def check_digest(path: Path, data: bytes, digests: Mapping[str, str] | None) -> None:
    """Raise `BadInput` for a file in a run's folder that has not its hash in `digests`; None checks
    nothing."""
    if digests is not None and sha256(data).hexdigest() != digests.get(path.name):
        raise BadInput(f"{path} is not what the run was given: it was changed since")


def _split_roles(text: str, file: Path) -> tuple[str, str]:
    """Return the texts under `[system]` and `[user]`, each a line of its own. Without these, all is
    the user's."""
    preamble, *sections = re.split(r"^\[(system|user)\][ \t]*\r?$", text, flags=re.MULTILINE)
    preamble = preamble.strip()
    roles = sections[::2]
    texts = [*map(str.strip, sections[1::2])]
    if roles not in ([], ["user"], ["system", "user"]) or (roles and preamble):
        raise BadInput(
            f"{file}: a prompt template has one part [user], after one part [system] or nothing"
        )

    system, user = ("", preamble, *texts)[-2:]
    if not user:
        raise BadInput(f"{file}: the prompt template has no text for the user message")

    return system, user


def _cut(text: str, known: frozenset[str], file: Path) -> tuple[str, ...]:
    """Return the pieces of a text: literal text at even positions, names of places at odd ones."""
    if not text:
        return ()

    pieces = re.split(r"\$\{([^{}\n]*)\}", text)
    for name in pieces[1::2]:
        # A misspelt place would stay in the prompt as it is.
        if name not in known:
            raise BadInput(
                f"{file}: unknown place ${{{name}}}; known are {', '.join(sorted(known))}"
            )

    return tuple(pieces)


def _filled(role: str, pieces: tuple[str, ...], values: Mapping[str, str]) -> Message:
    """Return a message of the pieces that `_cut` returns."""
    texts = list(pieces)
    texts[1::2] = map(values.__getitem__, pieces[1::2])
    return Message(role, "".join(texts))
