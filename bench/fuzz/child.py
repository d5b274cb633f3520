"""One target in a process of its own: `python -m bench.fuzz.child TARGET FINDS [OPTIONS OF
LIBFUZZER]`.

An exception that the target does not expect is a find: its input is saved under FINDS, once for
each place that raises, and the fuzzer goes on. The same for an input that takes longer than `SLOW`
seconds.
"""

from __future__ import annotations

import hashlib
import logging
import re
import resource
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

from bench.fuzz.mutate import mutated

SLOW = 2.0
"""Seconds."""

MOST_BYTES = 4096
"""Of an input, where the target does not say otherwise."""

MEMORY = 4 << 30
"""Bytes of address space, beyond which an input meets `MemoryError` as it would on a small
machine."""

TELL_EVERY = 10_000
"""Executions between two words to the driver, which knows nothing else between libFuzzer's own."""

BESIDE = {"repairs": ("json_repair",), "asbench": ("yaml",), "providers": ("tomllib",)}
"""Packages whose own branches count as coverage beside the harness's, by target."""

NOT_BESIDE = {"yaml.parser", "yaml.reader", "yaml.scanner"}
"""Those of their modules that take no value: what is wrong with the grammar of YAML is all one
error."""

WORD = re.compile(rb"[A-Za-z_\d-]{2,24}")


class Branches:
    """Tells the fuzzer of each branch that an input takes once, at its end, and not at each
    passage.

    A parser in Python goes through a loop for each character, and would spend most of its time on
    telling. How often a branch was taken is lost by that.
    """

    def __init__(self, fuzzer: Any) -> None:
        self._tell = fuzzer._trace_branch
        self._taken: set[int] = set()
        fuzzer._trace_branch = self._taken.add  # which instrumented code looks up at each passage

    def tell(self) -> None:
        for branch in self._taken:
            self._tell(branch)
        self._taken.clear()


class Watched:
    """A target's `run`, with every find kept."""

    def __init__(self, target: Any, name: str, finds: Path, branches: Branches | None) -> None:
        self._target = target
        self._branches = branches
        self._name = name
        self._finds = finds
        self._known: set[str] = set()
        self._ran = 0

    def warm_up(self) -> None:
        """Run the seeds once, so that what is only slow the first time is no find."""
        for seed in self._target.SEEDS:
            with suppress(Exception):  # what is wrong with it, the fuzzer's own first runs tell
                self._target.run(seed)

    def __call__(self, data: bytes) -> None:
        self._ran += 1
        if self._ran % TELL_EVERY == 0:
            print(f"ran {self._ran}", file=sys.stderr, flush=True)
        start = perf_counter()
        try:
            self._target.run(data)
        except self._target.EXPECTED:
            pass
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)[1:]
            places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames]
            self._find(
                f"{type(error).__name__} at {places[-1]}",
                data,
                " < ".join(reversed(places)) + f": {error}",
            )
        if (took := perf_counter() - start) > SLOW:
            self._find("slow", data, f"{took:.1f} s")
        if self._branches:
            self._branches.tell()

    def _find(self, what: str, data: bytes, more: str) -> None:
        if what in self._known:
            return
        self._known.add(what)
        path = self._finds / f"{self._name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        told = " ".join(more.encode("utf-8", "backslashreplace").decode().split())[:300]
        print(f"find {what} [{path.name}] {told}", file=sys.stderr, flush=True)


def main(name: str, finds: Path, options: list[str]) -> None:
    """Fuzz a target. The last of the options is the folder of the corpus, to which the seeds are
    added.

    Where libFuzzer's merge starts this once more, another option stands last, and they are there
    already.
    """
    atheris: Any = import_module(
        "atheris"
    )  # not in the environment that the project's own tests have
    logging.disable(logging.CRITICAL)
    target = _watched_by(atheris, name)
    print(f"code {_code(target)}", file=sys.stderr, flush=True)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    watched = Watched(target, name, finds, Branches(atheris) if name in BESIDE else None)
    watched.warm_up()
    corpus = Path(options[-1])
    for number, seed in enumerate(target.SEEDS if corpus.is_dir() else ()):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = Path(tempfile.gettempdir()) / "words"
    words.write_text(_dictionary(target.SEEDS), encoding="utf-8")

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        rng = Random(seed)
        changed = mutated(data, rng) if rng.random() < 0.5 else None
        if changed is None or len(changed) > longest:
            changed = atheris.Mutate(data, longest)
        return changed

    most = getattr(target, "MOST_BYTES", MOST_BYTES)
    # how a merge starts the fuzzer once more
    itself = f"{sys.executable} -m bench.fuzz.child {name} {finds}"
    atheris.Setup(
        [itself, f"-max_len={most}", f"-dict={words}", *options], watched, custom_mutator=mutate
    )
    atheris.Fuzz()


def _watched_by(atheris: Any, name: str) -> Any:
    """Return the target; of the harness the fuzzer is told branches and comparisons, of what is
    beside it branches."""
    if beside := BESIDE.get(name):
        with import_module("atheris.import_hook").HookManager(
            set(beside), NOT_BESIDE, True, trace_dataflow=False
        ):
            for package in beside:
                import_module(package)
    with atheris.instrument_imports(include=["harness"]):
        return import_module(f"bench.fuzz.{name}")


def _code(target: Any) -> str:
    """Return a hash of what is fuzzed: the target, and the modules of the harness that it has
    loaded."""
    whole = hashlib.sha256(Path(target.__file__).read_bytes())
    for _, module in sorted(sys.modules.items()):
        if module.__name__.startswith("harness") and module.__file__:
            whole.update(Path(module.__file__).read_bytes())
    return whole.hexdigest()[:16]


def _dictionary(seeds: list[bytes]) -> str:
    words = sorted({word for seed in seeds for word in WORD.findall(seed)})
    return "".join(f'"{word.decode()}"\n' for word in words[:2000])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
