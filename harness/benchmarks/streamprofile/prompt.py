"""From the given part of a step to the messages of a request.

A template is cut into parts once, so that a prompt costs a join (docs/design.md, section 8). Two kinds
of prompt stand behind one name, `Prompt`: a template with named places, and the benchmark authors' own
`bench_task.py`, which the user names and whose code therefore runs on purpose.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import orjson

from harness.benchmarks.streamprofile.platforms import PLATFORMS
from harness.benchmarks.streamprofile.task import Given, GivenStep
from harness.errors import BadInput
from harness.model import Message

OWN_PROMPT = Path(__file__).with_name("prompt.txt")
PLACES = frozenset(
    [
        "platform_name",
        "platform_context",
        "username",
        "bio",
        "step_id",
        "total_steps",
        "persona",
        "posts",
        "pool",
        "asked",
    ]
)
NEEDED = frozenset({"posts", "pool"})
KEPT = "prompt_"
"""Before the names under which a run's folder keeps prompts; a kept one can be named as `--prompt` again."""

INFERENCE = "bench_inference.py"
NOTHING_YET = "（尚无画像，这是第一次见到该用户）"
NO_BIO = "（未填写）"
OWN, AUTHORS = "own", "authors"
AUTHORS_SYSTEM = "You answer with one JSON object."
"""Used only where the authors' `bench_inference.py` cannot be found beside their `bench_task.py`."""


class Prompt(Protocol):
    """`source` tells whose it is (`own`, `authors`, a file's name); `files` are the bytes that define it, by name."""

    source: str
    path: Path | None
    files: Mapping[str, bytes]

    def messages(self, subset: str, given: Given, step: GivenStep, persona: str) -> tuple[Message, ...]: ...


class TemplatePrompt:
    """A text with places `${name}`, in parts headed `[system]` and `[user]`; without heads, all is the user's."""

    def __init__(self, path: Path | None = None) -> None:
        file = path or OWN_PROMPT
        content = read_file(file)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadInput(f"{file}: a prompt template must be UTF-8 text") from None
        self.path = path
        own = path is None or content == read_file(OWN_PROMPT)
        self.source = OWN if own else _source(file)
        self.files: Mapping[str, bytes] = {f"{KEPT}own.txt" if own else kept_name(file): content}
        system, user = _split_roles(text, file)
        self._system, self._user = _cut(system, file), _cut(user, file)

    @property
    def places(self) -> frozenset[str]:
        """The places that the template has."""
        return frozenset((*self._system[1::2], *self._user[1::2]))

    def messages(self, subset: str, given: Given, step: GivenStep, persona: str) -> tuple[Message, ...]:
        platform = PLATFORMS[subset]
        values = {
            "platform_name": platform.name,
            "platform_context": platform.context,
            "username": given.username,
            "bio": given.bio or NO_BIO,
            "step_id": str(step.step_id),
            "total_steps": str(step.total_steps),
            "persona": persona or NOTHING_YET,
            "posts": step.posts_text,
            "pool": orjson.dumps(step.pool).decode(),
            "asked": str(step.asked),
        }
        user = Message("user", _fill(self._user, values))
        return (Message("system", _fill(self._system, values)), user) if self._system else (user,)


class AuthorsPrompt:
    """The authors' `BenchTaskBuilder(platform).format_prompt(...)`, from the user's copy of their release.

    The system message of `bench_inference.py` beside it is read from the source, not run. Without it the prompt is
    not the authors' whole one, and `source` says so.
    """

    def __init__(self, path: Path) -> None:
        content = read_file(path)
        self.files: Mapping[str, bytes] = {kept_name(path): content}
        self.path: Path | None = path
        self._file = path
        self._make_builder = _load_builder(path, content)
        self._builders: dict[str, Any] = {}
        inference = next(filter(Path.is_file, map(path.with_name, (INFERENCE, KEPT + INFERENCE))), None)
        system = system_message(inference) if inference else None
        if inference and system is not None:
            self.files = {**self.files, kept_name(inference): read_file(inference)}
        self.source = f"{path.name.removeprefix(KEPT)} without {INFERENCE}" if system is None else AUTHORS
        self._system = Message("system", AUTHORS_SYSTEM if system is None else system)

    def messages(self, subset: str, given: Given, step: GivenStep, persona: str) -> tuple[Message, ...]:
        try:
            builder = self._builders.get(subset)
            if builder is None:
                builder = self._builders[subset] = self._make_builder(subset)
            text = builder.format_prompt(
                username=given.username,
                bio=given.bio,
                batch_n_posts=step.posts_text,
                candidate_pool=list(step.pool),
                step_id=step.step_id,
                total_steps=step.total_steps,
                prev_persona=persona,
            )
        except Exception as error:  # the authors' code, not ours
            raise BadInput(
                f"{self._file}: format_prompt failed for user {given.user_id}, step {step.step_id}: "
                f"{type(error).__name__}: {error}"
            ) from error
        if type(text) is not str:
            raise BadInput(f"{self._file}: format_prompt returned {type(text).__name__}, expected a string")
        return (self._system, Message("user", text))


def load(path: Path | None) -> Prompt:
    """Our own prompt, a template file, or (a `.py` file) the authors' builder."""
    if path is not None and path.suffix == ".py":
        return AuthorsPrompt(path)
    template = TemplatePrompt(path)
    if missing := NEEDED - template.places:
        places = " and ".join(f"${{{name}}}" for name in sorted(missing))
        raise BadInput(f"{path}: the prompt template has no place {places}, and without it no model could answer")
    return template


def kept_name(path: Path) -> str:
    return KEPT + path.name.removeprefix(KEPT)


def _source(file: Path) -> str:
    """The file's name as a run's folder keeps it, never one of the two that stand for something else."""
    name = kept_name(file).removeprefix(KEPT)
    return f"file {name}" if name in (OWN, AUTHORS) else name


def read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read prompt {path}: {error.strerror}") from None


def system_message(source: Path) -> str | None:
    """The text of the first `{"role": "system", "content": "..."}` in a Python source, None where there is none."""
    try:
        tree = ast.parse(read_file(source))
    except (SyntaxError, ValueError):
        return None
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    for literal in sorted(literals, key=lambda node: (node.lineno, node.col_offset)):
        pairs = {
            key.value: value.value
            for key, value in zip(literal.keys, literal.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant)
        }
        if pairs.get("role") == "system" and isinstance(content := pairs.get("content"), str):
            return content
    return None


def _load_builder(path: Path, content: bytes) -> Callable[[str], Any]:
    """Runs the very bytes that were read, so that what a run's folder keeps is what made its prompts."""
    module = ModuleType("streamprofile_authors_bench_task")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look up their annotations
    sys.path.insert(0, str(path.parent))  # their file imports its neighbours
    try:
        exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # the authors' code, not ours
        raise BadInput(f"{path}: could not be loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    builder = getattr(module, "BenchTaskBuilder", None)
    if not callable(builder):
        raise BadInput(f"{path}: has no class BenchTaskBuilder")
    made: Callable[[str], Any] = builder
    return made


def _split_roles(text: str, file: Path) -> tuple[str, str]:
    """The texts under `[system]` and `[user]`; a head is a line of its own. Without heads, all is the user's."""
    before, *parts = re.split(r"^\[(system|user)\][ \t]*\r?$", text, flags=re.MULTILINE)
    roles, texts = parts[::2], [part.strip() for part in parts[1::2]] or [before.strip()]
    if roles not in ([], ["user"], ["system", "user"]) or (roles and before.strip()):
        raise BadInput(f"{file}: a prompt template has one part [user], after one part [system] or nothing")
    if not texts[-1]:
        raise BadInput(f"{file}: the prompt template has no text for the user message")
    return (texts[0] if len(texts) == 2 else ""), texts[-1]


def _cut(text: str, file: Path) -> tuple[str, ...]:
    """Literal text at even places, names of places at odd ones."""
    parts = tuple(re.split(r"\$\{([^{}\n]*)\}", text)) if text else ()
    for name in parts[1::2]:
        if name not in PLACES:
            raise BadInput(f"{file}: unknown place ${{{name}}}; known are {', '.join(sorted(PLACES))}")
    return parts


def _fill(parts: tuple[str, ...], values: Mapping[str, str]) -> str:
    return "".join([values[part] if odd & 1 else part for odd, part in enumerate(parts)])
