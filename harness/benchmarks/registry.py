"""Finds benchmarks: those that ship by name, others by `FILE.py` or `package.module:Name`.

The bytes of a class that does not ship are part of what a run is: they are kept in the run's folder, and a run is
played, measured and reported again with the very class that it had.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from harness.benchmark import Benchmark, Importer, Metric, Origin
from harness.benchmarks import settings
from harness.benchmarks.files import content
from harness.benchmarks.user_code import described
from harness.errors import BadInput, shown
from harness.model import RUN_FACTS, Baseline

SHIPPED = {
    "streamprofile": ("harness.benchmarks.streamprofile.benchmark", "StreamProfile"),
    "dailymobility": ("harness.benchmarks.dailymobility.benchmark", "DailyMobility"),
}
BASELINES = ("harness.benchmarks.streamprofile.baselines", "harness.benchmarks.dailymobility.baselines")
"""Modules with `BASELINES`, models that the harness serves by itself, and a `reader`. They need no library but orjson:
the extras of a benchmark may be missing."""


class Command(NamedTuple):
    """A command that only one benchmark has: its module, and what it does. `harness.commands.extra` calls it."""

    module: str
    does: str


COMMANDS: Mapping[str, Command] = {
    "score-mobility": Command(
        "harness.benchmarks.dailymobility.score_mobility",
        "score a file of DailyMobility's four lists in its three protocols",
    ),
}
KEPT = "benchmark_"
"""Before the names under which a run's folder keeps the files of benchmarks."""
RESERVED = frozenset(
    {"benchmark", "run", "responses", "failures", "inference", "eval", "generated", "users"},
)
"""First words of names of files that every run's folder has: no copy of a setting's file begins with one."""
LANGUAGES = ("en", "zh")
WORD = re.compile("[a-z0-9_-]*[a-z0-9][a-z0-9_-]*")


def names() -> tuple[str, ...]:
    return tuple(SHIPPED)


def is_shipped(name: str) -> bool:
    return name.lower() in SHIPPED


def find(spec: str) -> type[Benchmark]:
    """Return the class of a benchmark. Raise `BadInput` where there is none, or where it declares too little."""
    if is_shipped(spec):
        module, name = SHIPPED[spec.lower()]
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    if spec.endswith(".py"):
        path = Path(spec)
        return of_file(str(path.resolve()), path.name, _read(path))
    module, colon, name = spec.partition(":")
    if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return _of_module(spec, module, name)
    raise BadInput(
        f"unknown benchmark {shown(spec)}: this harness has {', '.join(SHIPPED)}; others are named as FILE.py or "
        "package.module:Name"
    )


def importing(subset: str) -> tuple[type[Benchmark], Importer]:
    """Return the benchmark that has results of another program on a subset, and what reads them. Raise `BadInput`
    where no benchmark that ships does."""
    for cls in map(find, SHIPPED):
        if subset in cls.subsets and (importer := cls.importer()) is not None:
            return cls, importer
    raise BadInput(f"run_{subset}.json is missing, and no benchmark reads results of {shown(subset)} without it")


def baselines() -> dict[str, Baseline]:
    """Return the models that the harness serves by itself, by name."""
    return {name: answer for module in _baseline_modules() for name, answer in module.BASELINES.items()}


def reader(text: str) -> str | None:
    """Return the baseline that can answer a prompt which is for another model, None where none can."""
    found = (module.reader(text) for module in reversed(_baseline_modules()))  # the first takes any list for candidates
    return next(filter(None, found), None)


def _baseline_modules() -> Sequence[Any]:
    return [import_module(name) for name in BASELINES]


@cache
def of_file(spec: str, name: str, data: bytes) -> type[Benchmark]:
    """Return the benchmark in the bytes of a file. Its code is run, once: the same file is the same class."""
    module = ModuleType(f"harness_benchmark_{sha256(data).hexdigest()[:16]}")
    module.__file__ = name
    sys.modules[module.__name__] = module  # where dataclasses look up their annotations
    try:
        exec(compile(data, name, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:  # the author's code, not ours
        raise BadInput(f"{name}: could not be loaded: {_described(error)}") from error
    values = list(dict.fromkeys(filter(_is_benchmark, vars(module).values())))  # a class may have two names
    found = [value for value in values if value.__module__ == module.__name__]
    if wanted := _class_named(spec):
        found = [one for one in found if one is vars(module).get(wanted)]
    else:
        found = [one for one in found if not any(one is not other and issubclass(other, one) for other in found)]
    if len(found) != 1:
        raise BadInput(f"{name}: expected one class that extends harness.Benchmark, found {_listed(found)}")
    return _declared(found[0], Origin(spec, kept_name(name), data), name)


def _class_named(spec: str) -> str:
    """The class that `package.module:Name` names, empty for a file."""
    return "" if spec.endswith(".py") else spec.partition(":")[2]


def _listed(found: list[Any]) -> str:
    return f"{len(found)} ({', '.join(one.__name__ for one in found)})" if found else "none"


def kept_name(name: str) -> str:
    return KEPT + name.removeprefix(KEPT)


def _of_module(spec: str, module: str, name: str) -> type[Benchmark]:
    try:
        found: Any = getattr(import_module(module), name, None)
        source = find_spec(found.__module__) if _is_benchmark(found) else None
    except ImportError as error:
        raise BadInput(f"{spec}: cannot be imported ({error})") from None
    except (Exception, SystemExit) as error:  # the author's code, not ours
        raise BadInput(f"{spec}: could not be loaded: {_described(error)}") from error
    if source is None or source.origin is None:
        raise BadInput(f"{spec}: expected a class that extends harness.Benchmark")
    path = Path(source.origin)
    return _declared(found, Origin(spec, kept_name(path.name), _read(path)), spec)


def _is_benchmark(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Benchmark) and value is not Benchmark


def _read(path: Path) -> bytes:
    try:
        return content(path)
    except OSError as error:
        raise BadInput(f"cannot read the benchmark {path}: {error.strerror}") from None


def _described(error: BaseException) -> str:
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    return f"{described(error) if isinstance(error, Exception) else 'it ended the process'}{line}"


def _declared(cls: type[Benchmark], origin: Origin, name: str) -> type[Benchmark]:
    """The class, once it declares what every benchmark must."""
    wrong = undeclared(cls)
    if wrong:
        raise BadInput(f"{name}: class {cls.__name__}: {wrong}")
    cls.origin = origin
    return cls


def undeclared(cls: Any) -> str | None:
    """What is wrong with a declaration, None for nothing."""
    return _bad_words(cls) or _bad_subsets(cls) or _bad_metrics(cls) or _missing_methods(cls) or _bad_settings(cls)


def _bad_words(cls: Any) -> str | None:
    name = getattr(cls, "name", None)
    if type(name) is not str or not name.isidentifier() or not name.isascii():
        return f"name: expected a word of letters, digits and _, got {shown(name)}"
    if is_shipped(name) and find(name) is not cls:
        return f"name: {name} is a benchmark that ships: call it otherwise"
    for field in ("version", "parser_version", "user", "key_field", "invalid_as"):
        if type(value := getattr(cls, field)) is not str or not value or not value.isprintable():
            return f"{field}: expected text, got {shown(value)}"
    if cls.language not in LANGUAGES:
        return f"language: expected one of {', '.join(LANGUAGES)}, got {shown(cls.language)}"
    baselines = cls.baselines
    if not isinstance(baselines, dict) or not all(_is_word(name) and callable(of) for name, of in baselines.items()):
        return (
            'baselines: expected {"name": function of messages and seed}, names of lower-case letters, digits, - and _'
        )
    return None


def _bad_subsets(cls: Any) -> str | None:
    subsets = getattr(cls, "subsets", None)
    if not isinstance(subsets, dict) or not subsets:
        return 'subsets: expected {"subset": "tasks file below the tasks folder"}'
    if not isinstance(cls.data_files, tuple | list):
        return "data_files: expected a tuple of paths below the tasks folder"
    for subset in subsets:
        if not _is_word(subset):
            return f"subsets: {shown(subset)}: expected lower-case letters, digits, - and _"
    for of, file in [*subsets.items(), *(("data_files", file) for file in cls.data_files)]:
        if type(file) is not str or not file or Path(file).is_absolute() or ".." in Path(file).parts:
            return f"{of}: expected a path below the tasks folder, got {shown(file)}"
    return None


def _is_word(word: object) -> bool:
    return type(word) is str and WORD.fullmatch(word) is not None


def _bad_metrics(cls: Any) -> str | None:
    metrics = getattr(cls, "metrics", None)
    for name, found in (("metrics", metrics), ("secondary", cls.secondary)):
        if not isinstance(found, tuple | list) or not all(isinstance(one, Metric) for one in found):
            return f"{name}: expected a tuple of Metric(...)"
    if not metrics:
        return "metrics: expected one or more"
    of_names = [metric.name for metric in (*metrics, *cls.secondary)]
    for name in of_names:
        if type(name) is not str or not name or not name.isprintable() or "/" in name or len(name) > 60:
            return f"metrics: {shown(name)}: expected a name of at most 60 characters without /"
    if len({name.casefold() for name in of_names}) < len(of_names):
        return "metrics: a name is there twice"
    if not isinstance(cls.headline, tuple | list):
        return "headline: expected a tuple of names of metrics"
    if unknown := [name for name in cls.headline if name not in of_names]:
        return f"headline: {', '.join(map(shown, unknown))}: no such metric"
    gives = cls.values is not Benchmark.values or cls.figures is not Benchmark.figures
    if cls.secondary and not gives and cls.further_figures is Benchmark.further_figures:
        return "secondary: nothing gives them a value: write `values`, `figures` or `further_figures`"
    return None


def _missing_methods(cls: Any) -> str | None:
    missing = [name for name in ("parse", "play", "measure") if getattr(cls, name) is getattr(Benchmark, name)]
    return f"{', '.join(missing)}: has to be written" if missing else None


def _bad_settings(cls: Any) -> str | None:
    try:
        names = settings.kinds(cls.Settings)
        settings.defaults(cls.Settings)
    except settings.BadSettings as error:
        return str(error)
    except Exception as error:  # of the author's annotations, not ours
        return f"Settings: {described(error)}"
    taken = [name for name in names if name in RUN_FACTS]
    if taken:
        return f"Settings.{taken[0]}: reports have something else under this name: call it otherwise"
    taken = [name for name in settings.file_fields(cls.Settings) if name.partition("_")[0] in RESERVED]
    if taken:
        return f"Settings.{taken[0]}: the run's folder has other files whose names begin like this: call it otherwise"
    return None
