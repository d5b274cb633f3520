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
    """The template of a file, or `own`, the one that ships.

    `source` is its origin (`own` or a file's name); `files` are the bytes that define it, by name.
    Raise `BadInput` for a file that cannot be read, a place that is not in `known`, or one missing
    that is `needed`.
    """

    def __init__(
        self, path: Path | None, own: Path, known: frozenset[str], needed: frozenset[str]
    ) -> None:
        file = path or own
        data = read_file(file)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadInput(f"{file}: a prompt template must be UTF-8 text") from None
        is_own = path is None or data == read_file(own)
        name = kept_name(file).removeprefix(KEPT)
        self.path = path
        self.source = OWN if is_own else f"file {name}" if name in (OWN, AUTHORS) else name
        self.files: Mapping[str, bytes] = {f"{KEPT}own.txt" if is_own else kept_name(file): data}
        system, user = _split_roles(text, file)
        self._system, self._user = _cut(system, known, file), _cut(user, known, file)
        self._fixed_system = _filled("system", self._system, {}) if len(self._system) == 1 else None
        if missing := needed.difference(self._system[1::2], self._user[1::2]):
            places = " and ".join(f"${{{name}}}" for name in sorted(missing))
            raise BadInput(
                f"{file}: the prompt template has no place {places}, and without it no model could"
                " answer"
            )

    def messages(self, values: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the messages, filled with the value of each place."""
        user = _filled("user", self._user, values)
        if not self._system:
            return (user,)
        return (self._fixed_system or _filled("system", self._system, values), user)


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
    before, *parts = re.split(r"^\[(system|user)\][ \t]*\r?$", text, flags=re.MULTILINE)
    roles, texts = parts[::2], [part.strip() for part in parts[1::2]] or [before.strip()]
    if roles not in ([], ["user"], ["system", "user"]) or (roles and before.strip()):
        raise BadInput(
            f"{file}: a prompt template has one part [user], after one part [system] or nothing"
        )
    if not texts[-1]:
        raise BadInput(f"{file}: the prompt template has no text for the user message")
    return (texts[0] if len(texts) == 2 else ""), texts[-1]


def _cut(text: str, known: frozenset[str], file: Path) -> tuple[str, ...]:
    """Return the parts of a text: literal text at even positions, names of places at odd ones."""
    parts = tuple(re.split(r"\$\{([^{}\n]*)\}", text)) if text else ()
    for name in parts[1::2]:
        if name not in known:
            raise BadInput(
                f"{file}: unknown place ${{{name}}}; known are {', '.join(sorted(known))}"
            )
    return parts


def _filled(role: str, parts: tuple[str, ...], values: Mapping[str, str]) -> Message:
    """Return a message of the parts that `_cut` returns."""
    texts = list(parts)
    texts[1::2] = [values[name] for name in parts[1::2]]
    return Message(role, "".join(texts))
