"""Make the messages of a request from what the model may see of a step.

There are two kinds of `Prompt`, with the same members: a template with named places, and the
benchmark authors' own `bench_task.py`, which the user names, so that its code is run on purpose
(docs/design.md, section 8).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from harness.benchmarks.streamprofile.task import (
    PLATFORMS,
    StepInput,
    UserInput,
)
from harness.benchmarks.template import (
    AUTHORS,
    KEPT,
    Template,
    check_digest,
    kept_name,
    read_file,
)
from harness.benchmarks.user_code import described, module_of
from harness.errors import BadInput
from harness.model import Message

OWN_PROMPT = Path(__file__).with_name("prompt.txt")
USER_PLACES = frozenset({"platform_name", "platform_context", "username", "bio", "total_steps"})
PLACES = USER_PLACES | {"step_id", "persona", "posts", "pool", "asked"}
NEEDED = frozenset({"posts", "pool"})
INFERENCE = "bench_inference.py"
NOTHING_YET = "（尚无画像，这是第一次见到该用户）"
NO_BIO = "（未填写）"
AUTHORS_SYSTEM = "You answer with one JSON object."
"""Used only if there is no `bench_inference.py` next to the authors' `bench_task.py`."""


class TemplatePrompt:
    """A template with some of the places above; those in `needed` must be there.

    `source` is its origin (`own` or a file's name); `files` are the bytes that define it, by name.
    """

    def __init__(self, path: Path | None = None, needed: frozenset[str] = NEEDED) -> None:
        self._template = Template(path, OWN_PROMPT, PLACES, needed)
        self.path = path
        self.source = self._template.source
        self.files = self._template.files

    def messages(self, user: UserInput, step: StepInput, persona: str) -> tuple[Message, ...]:
        platform = PLATFORMS[user.subset]
        values = {
            "platform_name": platform.name,
            "platform_context": platform.context,
            "username": user.username,
            "bio": user.bio or NO_BIO,
            "step_id": str(step.step_id),
            "total_steps": str(step.total_steps),
            "persona": persona or NOTHING_YET,
            "posts": step.posts_text,
            "pool": orjson.dumps(step.pool).decode(),
            "asked": str(step.asked),
        }
        return self._template.messages(values)


class AuthorsPrompt:
    """The authors' `BenchTaskBuilder(platform).format_prompt(...)`, from the user's copy of their
    release.

    The system message of `bench_inference.py` next to it is read from the source, not run. Without
    it the prompt is not quite the authors', and `source` says so.
    """

    def __init__(self, path: Path, digests: Mapping[str, str] | None = None) -> None:
        content = read_file(path)
        check_digest(path, content, digests)
        self.files: Mapping[str, bytes] = {kept_name(path): content}
        self.path = path
        self._builder = cache(_load_builder(path, content, neighbours=digests is None))
        self.source = f"{path.name.removeprefix(KEPT)} without {INFERENCE}"
        self._system = Message("system", AUTHORS_SYSTEM)
        candidates = map(path.with_name, (INFERENCE, KEPT + INFERENCE))
        inference = next(filter(Path.is_file, candidates), None)
        if inference is None:
            return

        system = system_message(inference)
        if system is not None:
            self.files = {
                **self.files,
                kept_name(inference): read_file(inference),
            }
            self.source = AUTHORS
            self._system = Message("system", system)

    def messages(self, user: UserInput, step: StepInput, persona: str) -> tuple[Message, ...]:
        try:
            text = self._builder(user.subset).format_prompt(
                username=user.username,
                bio=user.bio,
                batch_n_posts=step.posts_text,
                candidate_pool=list(step.pool),
                step_id=step.step_id,
                total_steps=step.total_steps,
                prev_persona=persona,
            )
        except Exception as error:  # the authors' code may raise anything
            place = f"user {user.user_id}, step {step.step_id}"
            raise BadInput(
                f"{self.path}: format_prompt failed for {place}: {described(error)}"
            ) from error

        if type(text) is not str:
            raise BadInput(
                f"{self.path}: format_prompt returned {type(text).__name__}, expected a string"
            )

        return (self._system, Message("user", text))


Prompt = TemplatePrompt | AuthorsPrompt


def load(path: Path | None, digests: Mapping[str, str] | None = None) -> Prompt:
    """Return our own prompt, a template file, or (a `.py` file) the authors' builder, with its hash
    in `digests` if that is given."""
    if path is not None and path.suffix == ".py":
        return AuthorsPrompt(path, digests)
    return TemplatePrompt(path)


def system_message(source: Path) -> str | None:
    """Return the text of the first `{"role": "system", "content": "..."}` in a Python source, None
    if there is none."""
    # Source that is nested too deep raises RecursionError or MemoryError.
    try:
        tree = ast.parse(read_file(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    # `ast.walk` goes level by level; the first in the file is wanted.
    for literal in sorted(literals, key=lambda node: (node.lineno, node.col_offset)):
        pairs = {}
        for key, value in zip(literal.keys, literal.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                pairs[key.value] = value.value

        content = pairs.get("content")
        if pairs.get("role") == "system" and isinstance(content, str):
            return content

    return None


def _load_builder(path: Path, content: bytes, *, neighbours: bool) -> Callable[[str], Any]:
    """Run the very bytes that were read, so that what a run's folder keeps is what made its
    prompts.

    Their file may import its neighbours, but not what is next to it in a run's folder.
    """
    if neighbours:
        # The authors' file imports modules of its release.
        sys.path.insert(0, str(path.parent))

    try:
        module = module_of("streamprofile_authors_bench_task", str(path), content)
    finally:
        if neighbours:
            sys.path.remove(str(path.parent))

    builder: Callable[[str], Any] | None = getattr(module, "BenchTaskBuilder", None)
    if not callable(builder):
        raise BadInput(f"{path}: has no class BenchTaskBuilder")

    return builder
