"""From the path of an agent file to the class in it.

The file is run as a module of its own whose `import` statement finds the modules of shims.py; so do the modules that
lie beside the file and that it imports by name. The rest of the process imports as before: an installed
`agentsociety` is neither needed nor hidden. (`importlib.import_module` in an agent file is not the statement.)

As it runs, what it draws at random comes from a seed made of its bytes; what it does to the root logger, the filters
of warnings and the working directory is undone, and what it prints goes to the agents' logger, since terminal and
standard output are the harness's.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, NoReturn

from harness.benchmarks.dailymobility.agents.classes import CitizenAgentBase, DailyMobilityAgent, get_logger
from harness.benchmarks.dailymobility.agents.errors import UNTOLD, described, heard, one_line
from harness.benchmarks.dailymobility.agents.fake_modules import shims
from harness.benchmarks.dailymobility.agents.watchdog import Dice, Folder
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.template import check_digest
from harness.errors import BadInput

KEPT = "agent_"
"""Before the names under which a run's folder keeps agent files; a kept one can be named as `--agent` again."""

WANTED = "one class derived from DailyMobilityAgent"


@dataclass(frozen=True, slots=True)
class AgentFile:
    """An agent file as it was loaded: its class, its bytes, and those of the modules beside it, by file name.

    Names are those that the user gave, also of copies that a run's folder keeps. `sources` are the files as frames and
    tracebacks name them, `warnings` what Python had to warn of as they were loaded.
    """

    cls: type[CitizenAgentBase]
    path: Path
    data: bytes
    beside: Mapping[str, bytes]
    sources: frozenset[str]
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.path.name.removeprefix(KEPT)


def load_agent(path: Path, digests: Mapping[str, str] | None = None) -> AgentFile:
    """Raises `BadInput`, with file, line and reason, for a file that cannot be run or holds no single agent class.

    `digests` are the SHA-256 of a run's kept files by name: no file of another name or hash is run.
    """
    data = _read(path)
    check_digest(path, data, digests)
    loading = _Loading(path.resolve().parent, digests)
    with _undisturbed(Dice("loading", data)), heard(loading.hear):
        try:
            cls = _agent_class(path, loading.run(path, data))
        except BadInput:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            _failed(path, error, loading.files)
        finally:
            loading.over = True
    beside, sources = dict(loading.beside), frozenset(loading.files)
    return AgentFile(cls, path, data, beside, sources, tuple(loading.warnings))


class _Loading:
    """The modules of one agent file. `over` is whether it has been loaded: what is beside it then was not recorded."""

    def __init__(self, folder: Path, digests: Mapping[str, str] | None) -> None:
        self.over = False
        self.beside: dict[str, bytes] = {}
        self.files: set[str] = set()
        self.warnings: list[str] = []
        self._folder = folder
        self._digests = digests
        self._shims = shims()
        self._beside: dict[str, ModuleType] = {}
        self._builtins = vars(builtins) | {"__import__": self._import, "print": _print}

    def run(self, path: Path, data: bytes) -> ModuleType:
        """A module of the file. It stands in `sys.modules`, where dataclasses look for it, under a name of its own."""
        name = f"agent_{hashlib.sha256(str(path).encode() + data).hexdigest()[:16]}"
        module = ModuleType(name)
        module.__file__, module.__package__ = str(path), ""
        module.__dict__["__builtins__"] = self._builtins
        self.files.add(str(path))
        sys.modules[name] = module
        exec(compile(data, str(path), "exec", dont_inherit=True), module.__dict__)
        return module

    def hear(self, text: str, file: str, line: int) -> bool:
        where = f" ({Path(file).name}, line {line})" if file in self.files else ""
        self.warnings.append(one_line(text) + where)
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
        if level == 0 and root in self._shims:
            return _found(self._shims, name, fromlist)
        if level == 0 and (file := self._file(root)) is not None:
            return self._sibling(root, file)
        return builtins.__import__(name, globals, locals, fromlist or (), level)

    def _file(self, root: str) -> Path | None:
        """The file beside the agent's that is meant by a name, unless the standard library has a module of it."""
        if root in sys.stdlib_module_names:
            return None
        names = [f"{kept}{root}.py" for kept in ("", KEPT)]
        known = [name for name in names if self._digests is None or name in self._digests]
        return next(filter(Path.is_file, map(self._folder.joinpath, known)), None)

    def _sibling(self, root: str, file: Path) -> ModuleType:
        if root not in self._beside:
            if self.over:
                raise ImportError(f"{file.name} is imported while the agent runs: import it at the top of the file")
            data = self.beside[f"{root}.py"] = _read(file)
            check_digest(file, data, self._digests)
            self._beside[root] = self.run(file, data)
        return self._beside[root]


def _found(modules: Mapping[str, ModuleType], name: str, fromlist: tuple[str, ...] | None) -> ModuleType:
    """As the import statement wants it: the module itself for `from a.b import c`, `a` for `import a.b`."""
    if name not in modules:
        raise ImportError(f"no module {name!r} among what agent files find here: {', '.join(sorted(modules))}")
    module = modules[name]
    for wanted in fromlist or ():
        if wanted != "*" and not hasattr(module, wanted):
            here = [each for each in vars(module) if not each.startswith("_")]
            raise ImportError(f"{name} has no {wanted!r} here, only {', '.join(sorted(here))}")
    return module if fromlist else modules[name.partition(".")[0]]


def _agent_class(path: Path, module: ModuleType) -> type[CitizenAgentBase]:
    """Of the public agent classes those that the file defines, or else those that it imports from beside it."""
    agents: dict[int, tuple[str, type[CitizenAgentBase]]] = {
        id(thing): (name, thing) for name, thing in vars(module).items() if _is_agent(name, thing)
    }
    own = [found for found in agents.values() if found[1].__module__ == module.__name__] or list(agents.values())
    if len(own) != 1:
        listed = ", ".join(sorted(name for name, _ in own)) or "none"
        hint = " (a name that starts with an underscore is not counted)" if own else ""
        raise BadInput(f"{path}: expected {WANTED}, got {listed}{hint}")
    ((name, agent),) = own
    if inspect.isabstract(agent):
        raise BadInput(f"{path}: expected {WANTED}, got {name}, which has no forward")
    return agent


def _is_agent(name: str, thing: Any) -> bool:
    """By identity and without `issubclass`: a class whose metaclass has no hash or equality of use is one too."""
    if not issubclass(type(thing), type) or name.startswith("_"):
        return False
    above = [base is CitizenAgentBase for base in type.mro(thing)]
    return any(above) and thing is not CitizenAgentBase and thing is not DailyMobilityAgent


def _read(path: Path) -> bytes:
    try:
        return content(path, DOCUMENT_MOST)
    except OSError as error:
        raise BadInput(f"{path}: cannot read the agent file: {error.strerror}") from None


def _failed(path: Path, error: BaseException, files: set[str]) -> NoReturn:
    try:
        where, why = _why(path, error, files)
    except Exception:  # its class is the file's, and anything of it may be
        where, why = str(path), f"the agent file cannot be loaded: {UNTOLD}"
    raise BadInput(f"{where}: {why}") from None


def _why(path: Path, error: BaseException, files: set[str]) -> tuple[str, str]:
    """The line is the last one that was reached in the agent's own files. Of an unknown coding Python says line 0."""
    if isinstance(error, SyntaxError) and error.filename in files:
        where = f"{error.filename}, line {error.lineno}" if error.lineno else f"{error.filename}"
        return where, f"expected Python, got a syntax error: {one_line(str(error.msg))}"
    lines = [(frame.filename, frame.lineno) for frame in extract_tb(error.__traceback__) if frame.filename in files]
    where = "{}, line {}".format(*lines[-1]) if lines else str(path)
    return where, f"the agent file cannot be loaded: {_told(error)}"


def _told(error: BaseException) -> str:
    try:
        return described(error)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return UNTOLD


@contextmanager
def _undisturbed(dice: Dice) -> Iterator[None]:
    """Random states, level and handlers of the root logger, and the working directory are afterwards as they were."""
    folder = Folder()
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    dice.swap()
    try:
        yield
    finally:
        dice.swap()
        folder.put_back()
        root.setLevel(level)
        root.handlers[:] = handlers


def _print(*values: object, file: Any = None, **how: Any) -> None:
    """`print` in an agent file: to the agents' logger, where it would go to the terminal."""
    if file not in (None, sys.stdout, sys.stderr):
        print(*values, file=file, **how)
        return
    text = StringIO()
    print(*values, file=text, sep=how.get("sep"), end="")
    get_logger().info("%s", text.getvalue())
