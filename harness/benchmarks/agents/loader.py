"""Load the class in an agent file.

The file runs as a module of its own, and its `import` statements find the modules of upstream.toml;
so do those of the modules in the same folder that it imports by name. The rest of the process
imports as before: an installed `agentsociety` is neither needed nor hidden.
(`importlib.import_module` in an agent file is not the statement.)

While it loads, its random draws come from a seed made of its bytes; its changes to the filters of
warnings and to the working directory are undone: results may have relative paths. Terminal and
standard output are the harness's: what it prints is kept for the run's log, and its changes to the
root logger hold while it runs.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from traceback import extract_tb, walk_stack, walk_tb
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from harness.benchmarks.agents import classes, environment, llm, memory, prompt
from harness.benchmarks.agents.classes import CitizenAgentBase
from harness.benchmarks.agents.errors import (
    NO_TEXT,
    Written,
    described,
    one_line,
    warnings_to,
)
from harness.benchmarks.agents.interface import UPSTREAM
from harness.benchmarks.agents.watchdog import Dice, Place
from harness.benchmarks.files import DOCUMENT_MOST, input_file
from harness.benchmarks.hash_seed import COPY_PREFIX
from harness.benchmarks.template import check_digest
from harness.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

AgentClass = type[CitizenAgentBase]
PACKAGES = ("agentsociety_benchmark.benchmarks", "mobisimbench.benchmarks")
"""Where agent files import the class of their benchmark from: the present name, and the earlier
one."""


@dataclass(frozen=True, slots=True)
class AgentFile:
    """An agent file as loaded: its class, its bytes, and by file name those of `siblings`, the
    modules in its folder.

    Names are those that the user gave, also of copies that a run's folder keeps. `sources` are the
    files as frames and tracebacks name them, `warnings` those of Python as they were loaded,
    `written` what they write to standard error.
    """

    cls: type[CitizenAgentBase]
    path: Path
    data: bytes
    siblings: Mapping[str, bytes]
    sources: frozenset[str]
    warnings: tuple[str, ...] = ()
    written: Written = field(default_factory=Written)

    @property
    def name(self) -> str:
        return self.path.name.removeprefix(COPY_PREFIX)

    def place_of(self, frame: FrameType) -> Place | None:
        """Return the innermost place in the agent's files from a frame outwards."""
        return next(self._places(walk_stack(frame)), None)

    def place_of_error(self, error: BaseException) -> Place | None:
        """Return the innermost place in the agent's files that an error passed through."""
        return next(reversed([*self._places(walk_tb(error.__traceback__))]), None)

    def _places(self, frames: Iterable[tuple[FrameType, int]]) -> Iterator[Place]:
        names = ((frame.f_code.co_filename, line) for frame, line in frames)
        return ((Path(name).name, line) for name, line in names if name in self.sources)


def load_agent(path: Path, base: AgentClass, digests: Mapping[str, str] | None = None) -> AgentFile:
    """Return the agent file of a benchmark, whose class is derived from `base`.

    The file imports `base` as it does upstream: `XAgent` from `agentsociety_benchmark.benchmarks`,
    its module `X`, or the module's `template_agent`. Raise `BadInput`, with file, line and reason,
    for a file that cannot be run or holds no single agent class.

    `digests` are the SHA-256 of a run's kept files by name: no file of another name or hash is run.
    """
    data = _read(path, digests)
    written = Written()
    loading = _Loading(path.resolve().parent, base, digests, written)
    with (
        chdir("."),
        Dice("loading", data).drawn(),
        written.in_place(),
        warnings_to(loading.receive),
    ):
        try:
            cls = _agent_class(path, loading.run(path, data), base)
        except (BadInput, KeyboardInterrupt):
            raise
        except BaseException as error:
            try:
                where, why = _why(path, error, loading.files)
            except Exception:  # its class is the file's, and anything of it may be
                where, why = (
                    str(path),
                    f"the agent file cannot be loaded: {NO_TEXT}",
                )

            raise BadInput(f"{where}: {why}") from None
        finally:
            # What is imported later would be in no record of the run.
            loading.over = True

    siblings, sources = dict(loading.siblings), frozenset(loading.files)
    return AgentFile(cls, path, data, siblings, sources, tuple(loading.warnings), written)


class _Loading:
    """The modules of one agent file. Once it is `over`, no module of its folder is loaded: no run
    would record it."""

    def __init__(
        self,
        folder: Path,
        base: AgentClass,
        digests: Mapping[str, str] | None,
        written: Written,
    ) -> None:
        self.over = False
        self.siblings: dict[str, bytes] = {}
        self.files: set[str] = set()
        self.warnings: list[str] = []
        self._folder = folder
        self._digests = digests
        self._fake_modules = _fake_modules(base)
        self._modules: dict[str, ModuleType] = {}
        self._builtins = vars(builtins) | {
            "__import__": self._import,
            "print": partial(_print, written),
        }

    def run(self, path: Path, data: bytes) -> ModuleType:
        """Run a file as a module. Dataclasses look for it in `sys.modules`, where it gets a unique
        name."""
        name = f"agent_{hashlib.sha256(str(path).encode() + data).hexdigest()[:16]}"
        module = ModuleType(name)
        module.__file__, module.__package__ = str(path), ""
        module.__dict__["__builtins__"] = self._builtins
        self.files.add(str(path))
        sys.modules[name] = module
        # Otherwise the file would inherit the `from __future__ import annotations` of this module.
        exec(compile(data, str(path), "exec", dont_inherit=True), module.__dict__)
        return module

    def receive(self, text: str, file: str, line: int) -> bool:
        """Keep a warning."""
        warning = one_line(text)
        if file in self.files:
            warning += f" ({Path(file).name}, line {line})"
        self.warnings.append(warning)
        return True

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: tuple[str, ...] | None = (),
        level: int = 0,
    ) -> ModuleType:
        root = name.partition(".")[0]
        # A relative import is of a package, and an agent file is in none.
        if level == 0:
            if root in self._fake_modules:
                return _imported(self._fake_modules, name, fromlist)

            file = self._file(root)
            if file is not None:
                return self._sibling(root, file)

        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def _file(self, root: str) -> Path | None:
        """Return the file in the agent's folder with a name, unless the standard library has such a
        module."""
        # A file next to the agent must not replace a module that the harness uses.
        if root in sys.stdlib_module_names:
            return None

        for name in (f"{root}.py", f"{COPY_PREFIX}{root}.py"):
            if self._digests is None or name in self._digests:
                file = self._folder / name
                if file.is_file():
                    return file

        return None

    def _sibling(self, root: str, file: Path) -> ModuleType:
        if root not in self._modules:
            if self.over:
                raise ImportError(
                    f"{file.name} is imported while the agent runs: import it at the top of the"
                    " file"
                )

            data = self.siblings[f"{root}.py"] = _read(file, self._digests)
            self._modules[root] = self.run(file, data)

        return self._modules[root]


def _fake_modules(base: AgentClass) -> dict[str, ModuleType]:
    """Return modules by name, new ones at each call: no agent file can change those of another."""
    known: dict[str, Any] = {}
    for defining in (environment, llm, memory, prompt, classes):
        known |= vars(defining)

    # An agent may change the dictionary, which the harness and other agents use.
    known["POI_CATG_DICT"] = deepcopy(environment.POI_CATG_DICT)
    modules: dict[str, ModuleType] = {}
    for entry in UPSTREAM["modules"]:
        members = {name: known[name] for name in entry["holds"].split()}
        for name in entry["names"].split():
            _module(modules, name).__dict__.update(members, __all__=list(members))

    members = {base.__name__: base}
    for package in PACKAGES:
        benchmark = f"{package}.{base.__name__.removesuffix('Agent')}"
        for name in (package, benchmark, f"{benchmark}.template_agent"):
            _module(modules, name).__dict__.update(members, __all__=list(members))

    return modules


def _module(modules: dict[str, ModuleType], name: str) -> ModuleType:
    """Return a module, made where it is missing together with the packages above it; each is an
    attribute of its package."""
    if name not in modules:
        module = modules[name] = ModuleType(name)
        module.__path__ = []
        package, _, last = name.rpartition(".")
        if package:
            setattr(_module(modules, package), last, module)
    return modules[name]


def _imported(
    modules: Mapping[str, ModuleType],
    name: str,
    fromlist: tuple[str, ...] | None,
) -> ModuleType:
    """Return what the import statement needs: the module itself for `from a.b import c`, `a` for
    `import a.b`."""
    if name not in modules:
        raise ImportError(
            f"no module {name!r} among what agent files find here: {', '.join(sorted(modules))}"
        )

    module = modules[name]
    for wanted in fromlist or ():
        if wanted != "*" and not hasattr(module, wanted):
            names = sorted(name for name in vars(module) if not name.startswith("_"))
            raise ImportError(f"{name} has no {wanted!r} here, only {', '.join(names)}")

    if fromlist:
        return module

    return modules[name.partition(".")[0]]


def _agent_class(path: Path, module: ModuleType, base: AgentClass) -> AgentClass:
    """Return the public agent class that the file defines, or else the one that it imports from its
    folder."""
    wanted = f"one class derived from {base.__name__}"
    agents: dict[int, tuple[str, AgentClass]] = {
        id(thing): (name, thing)
        for name, thing in vars(module).items()
        if _is_agent(name, thing, base)
    }
    candidates = [*agents.values()]
    defined = [pair for pair in candidates if pair[1].__module__ == module.__name__]
    candidates = defined or candidates
    if len(candidates) != 1:
        got = "none"
        if candidates:
            names = ", ".join(sorted(name for name, _ in candidates))
            got = f"{names} (a name that starts with an underscore is not counted)"

        raise BadInput(f"{path}: expected {wanted}, got {got}")

    ((name, agent),) = candidates
    if inspect.isabstract(agent):
        raise BadInput(f"{path}: expected {wanted}, got {name}, which has no forward")

    return agent


def _is_agent(name: str, thing: Any, base: AgentClass) -> bool:
    """Compare by identity and without `issubclass`: the metaclass of an agent may have no usable
    hash or equality."""
    if not issubclass(type(thing), type) or name.startswith("_"):
        return False
    derived = any(above is CitizenAgentBase for above in type.mro(thing))
    return derived and thing is not CitizenAgentBase and thing is not base


def _read(path: Path, digests: Mapping[str, str] | None) -> bytes:
    data = input_file(path, "the agent file ", DOCUMENT_MOST)
    check_digest(path, data, digests)
    return data


def _why(path: Path, error: BaseException, files: set[str]) -> tuple[str, str]:
    """Return place and reason. The line is the last one that was reached in the agent's own files.

    For an unknown coding Python gives line 0.
    """
    if isinstance(error, SyntaxError) and error.filename in files:
        where = error.filename
        if error.lineno:
            where += f", line {error.lineno}"

        return (
            where,
            f"expected Python, got a syntax error: {one_line(str(error.msg))}",
        )

    where = str(path)
    for frame in extract_tb(error.__traceback__):
        if frame.filename in files:
            where = f"{frame.filename}, line {frame.lineno}"

    try:
        text = described(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = NO_TEXT

    return where, f"the agent file cannot be loaded: {text}"


def _print(
    written: Written,
    *values: object,
    file: SupportsWrite[str] | None = None,
    **how: Any,
) -> None:
    """Print in an agent file, in whichever thread: what it writes is held, instead of shown on the
    terminal."""
    if file not in (None, sys.stdout, sys.stderr):
        print(*values, file=file, **how)
        return
    text = StringIO()
    print(*values, file=text, sep=how.get("sep"), end="")
    written.keep(text.getvalue())
