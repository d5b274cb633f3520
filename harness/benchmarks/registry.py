"""Finds benchmarks: those that ship or are installed by name, others by `FILE.py` or
`package.module:Name`.

The bytes of a class that does not ship are part of what a run is: they are kept in the run's
folder, and a run is played, measured and reported again with the very class that it had.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from harness.benchmark import (
    OBJECTS,
    About,
    Benchmark,
    Cards,
    Importer,
    Means,
    Metric,
    Origin,
    Records,
    TaskFiles,
    metrics_of,
)
from harness.benchmarks import settings
from harness.benchmarks.files import input_file
from harness.benchmarks.user_code import described, loading, module_of
from harness.defaults import BASELINE_PREFIX
from harness.errors import BadInput, in_brief, which_is_known
from harness.model import RUN_FACTS, Baseline

SHIPPED = {
    "streamprofile": ("harness.benchmarks.streamprofile.benchmark", "StreamProfile"),
    "dailymobility": ("harness.benchmarks.dailymobility.benchmark", "DailyMobility"),
}
BASELINES = (
    "harness.benchmarks.streamprofile.baselines",
    "harness.benchmarks.dailymobility.baselines",
)
"""Modules with `BASELINES`, models that the harness serves by itself, and a `reader`. They need no
library but orjson: the extras of a benchmark may be missing."""


class Command(NamedTuple):
    """A command that only one benchmark has: its module, and a sentence for the help."""

    module: str
    does: str


COMMANDS: Mapping[str, Command] = {
    "score-mobility": Command(
        "harness.benchmarks.dailymobility.score_mobility",
        "score a file of DailyMobility's four lists in its three protocols",
    )
}


KEPT = "benchmark_"
"""Before the names under which a run's folder keeps the files of benchmarks."""
RESERVED = frozenset(
    {"benchmark", "run", "responses", "failures", "inference", "eval", "generated", "users"}
)
"""First words of names of files that every run's folder has: no copy of a setting's file begins
with one."""
TABLES = ("units", "published", "summary", "costs")
"""Keys in the JSON of `stats` and its Excel file that are no metrics."""
OWNERS = {
    "about": About,
    "records": Records,
    "cards": Cards,
    "task_files": TaskFiles,
    "scoring": Means,
}
INSIDE: Mapping[str, str] = {
    "remark": "about",
    "card_columns": "cards",
    **{
        member: name
        for name, kind in OWNERS.items()
        for member in (*dir(kind), *kind.__annotations__)
        if not member.startswith("_") and not hasattr(Benchmark, member)
    },
}
"""Members of objects -> the object. A class that has one itself is refused, since it would be
ignored."""
DATA_SET = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
WORD = re.compile("[a-z0-9_-]*[a-z0-9][a-z0-9_-]*")


GROUP = "harness.benchmarks"
"""The entry points of installed packages with benchmarks: `name = "package.module:Class"`."""


def names() -> tuple[str, ...]:
    return tuple(SHIPPED)


def is_shipped(name: str) -> bool:
    return name.lower() in SHIPPED


def command_module(name: str) -> ModuleType:
    """Return the module of a command that only one benchmark has: with `Options`, and `execute`,
    which takes an object of it, and returns data for `--json` and blocks for people."""
    return import_module(COMMANDS[name].module)


@cache
def installed() -> Mapping[str, str]:
    """Return the benchmarks of installed packages: name -> package.module:Class. A shipped one
    keeps its name."""
    return {
        point.name: point.value for point in entry_points(group=GROUP) if not is_shipped(point.name)
    }


def is_name(word: str) -> bool:
    """Return whether a word of a command names a benchmark, and is no file or module."""
    return is_shipped(word) or word in installed()


def find(spec: str) -> type[Benchmark]:
    """Return the class of a benchmark. Raise `BadInput` if there is none, or if it declares too
    little."""
    if is_shipped(spec):
        module, name = SHIPPED[spec.lower()]
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    if spec.endswith(".py"):
        path = Path(spec)
        return of_file(str(path.resolve()), path.name, input_file(path, "the benchmark "))
    spec = installed().get(spec, spec)
    module, colon, name = spec.partition(":")
    if colon and name.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return _of_module(spec, module, name)
    known = which_is_known(spec, [*SHIPPED, *installed()])
    raise BadInput(
        f"unknown benchmark {in_brief(spec)}{known} (others are named as FILE.py or"
        " package.module:Name)"
    )


def importing(subset: str) -> tuple[type[Benchmark], Importer]:
    """Return the benchmark that has results of another program on a subset, and what reads them.
    Raise `BadInput` where no benchmark that ships does."""
    for cls in map(find, SHIPPED):
        if subset in cls.subsets and (importer := cls.imports.importer) is not None:
            return cls, importer
    raise BadInput(
        f"run_{subset}.json is missing, and no benchmark reads results of {in_brief(subset)}"
        " without it"
    )


def baselines() -> dict[str, Baseline]:
    """Return the models that the harness serves by itself, by name."""
    return {
        name: answer
        for module in BASELINES
        for name, answer in import_module(module).BASELINES.items()
    }


def served(cls: type[Benchmark]) -> dict[str, Baseline]:
    """Return a benchmark's own baselines, by the names of models that the harness serves."""
    return {f"{BASELINE_PREFIX}{name}": answer for name, answer in cls.baselines.items()}


def check_baseline(model: str, cls: type[Benchmark]) -> None:
    """Raise `BadInput` for a model that is none of the baselines that the harness can play for a
    benchmark."""
    known = {**baselines(), **served(cls)}
    if model not in known:
        raise BadInput(
            f"--model: no baseline {in_brief(model)}{which_is_known(model, known, '--model')}"
        )


def reader(text: str) -> str | None:
    """Return the baseline that can answer a prompt which is for another model, None if none can."""
    found = (
        import_module(module).reader(text) for module in reversed(BASELINES)
    )  # the first takes any list for a pool
    return next(filter(None, found), None)


@cache
def of_file(spec: str, name: str, data: bytes) -> type[Benchmark]:
    """Return the benchmark in the bytes of a file. Its code is run, once: the same file is the same
    class."""
    module = module_of(f"harness_benchmark_{sha256(data).hexdigest()[:16]}", name, data)
    values = list(
        dict.fromkeys(filter(_is_benchmark, vars(module).values()))
    )  # a class may have two names
    found = [value for value in values if value.__module__ == module.__name__]
    if not spec.endswith(".py"):  # package.module:Name
        found = [one for one in found if one is vars(module).get(spec.partition(":")[2])]
    else:
        found = [
            one
            for one in found
            if not any(one is not other and issubclass(other, one) for other in found)
        ]
    if len(found) != 1:
        listed = f"{len(found)} ({', '.join(one.__name__ for one in found)})" if found else "none"
        raise BadInput(f"{name}: expected one class that extends harness.Benchmark, found {listed}")
    return _declared(found[0], spec, name, data)


def _of_module(spec: str, module: str, name: str) -> type[Benchmark]:
    with loading(spec):
        found: Any = getattr(import_module(module), name, None)
        source = find_spec(found.__module__) if _is_benchmark(found) else None
    if source is None or source.origin is None:
        raise BadInput(f"{spec}: expected a class that extends harness.Benchmark")
    path = Path(source.origin)
    return _declared(found, spec, path.name, input_file(path, "the benchmark "))


def _is_benchmark(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Benchmark) and value is not Benchmark


def _declared(cls: type[Benchmark], spec: str, file: str, data: bytes) -> type[Benchmark]:
    """Return the class with its origin, if it declares what every benchmark must."""
    if wrong := undeclared(cls):
        raise BadInput(f"{file if spec.endswith('.py') else spec}: class {cls.__name__}: {wrong}")
    cls.origin = Origin(spec, KEPT + file.removeprefix(KEPT), data)
    return cls


def undeclared(cls: type[Benchmark]) -> str | None:
    """Return the first mistake of a declaration, None for none."""
    return next(
        chain(
            _bad_objects(cls),
            _bad_words(cls),
            _bad_subsets(cls),
            _bad_metrics(cls),
            _bad_shown(cls),
            _bad_code(cls),
        ),
        None,
    )


# Each of these yields mistakes. What follows the first one may raise: it is not run.


def _bad_words(cls: type[Benchmark]) -> Iterator[str]:
    name: Any = getattr(cls, "name", None)
    if type(name) is not str or not name.isidentifier() or not name.isascii():
        yield f"name: expected a word of letters, digits and _, got {in_brief(name)}"
    if is_shipped(name) and find(name) is not cls:
        yield f"name: {name} is a benchmark that ships: rename this one"
    about, files = cls.about, cls.task_files
    texts = {
        field: getattr(about, field)
        for field in ("parser_version", "user", "invalid_as", "title", "synthetic")
    }
    for field, value in {"version": cls.version, "key_field": files.key_field, **texts}.items():
        needed = field not in ("title", "synthetic")
        if type(value) is not str or (needed and not value) or not value.isprintable():
            yield f"{field}: expected text, got {in_brief(value)}"
    if type(files.data_set) is not str or (
        files.data_set and not DATA_SET.fullmatch(files.data_set)
    ):
        yield f"data_set: expected owner/name of a data set, got {in_brief(files.data_set)}"
    if about.language not in ("en", "zh"):
        yield f"language: expected en or zh, got {in_brief(about.language)}"
    named = cls.baselines.items() if isinstance(cls.baselines, dict) else [(None, None)]
    if not all(_is_word(one) and callable(of) for one, of in named):
        yield (
            'baselines: expected {"name": function of messages and seed}, with names of a-z, 0-9, -'
            " and _"
        )


def _bad_subsets(cls: type[Benchmark]) -> Iterator[str]:
    subsets: Any = getattr(cls, "subsets", None)
    if not isinstance(subsets, dict) or not subsets:
        yield 'subsets: expected {"subset": "tasks file below the tasks folder"}'
    if not isinstance(cls.task_files.data_files, tuple | list):
        yield "data_files: expected a tuple of paths below the tasks folder"
    for subset in subsets:
        if not _is_word(subset):
            yield f"subsets: {in_brief(subset)}: expected lower-case letters, digits, - and _"
    if "all" in subsets and len(subsets) > 1:
        yield "subsets: all: `compare` uses this name for the mean over subsets: rename it"
    for of, file in [
        *subsets.items(),
        *(("data_files", file) for file in cls.task_files.data_files),
    ]:
        if (
            type(file) is not str
            or not file
            or Path(file).is_absolute()
            or ".." in Path(file).parts
        ):
            yield f"{of}: expected a path below the tasks folder, got {in_brief(file)}"


def _is_word(word: object) -> bool:
    return type(word) is str and WORD.fullmatch(word) is not None


def _bad_metrics(cls: type[Benchmark]) -> Iterator[str]:
    for name, of in {"metrics": cls, "secondary": cls.scoring}.items():
        found = getattr(of, name, None)
        if not isinstance(found, tuple | list) or not all(isinstance(one, Metric) for one in found):
            yield f"{name}: expected a tuple of Metric(...)"
        else:
            yield from (
                f"{name}: {in_brief(one.name)}: {wrong}"
                for one in found
                if (wrong := _bad_text(one))
            )
    if not cls.metrics:
        yield "metrics: expected one or more"
    every = (*cls.metrics, *cls.scoring.secondary)
    names = [metric.name for metric in every]
    for name in names:
        if (
            type(name) is not str
            or not name
            or not name.isprintable()
            or "/" in name
            or len(name) > 60
        ):
            yield f"metrics: {in_brief(name)}: expected a name of at most 60 characters without /"
    alike = [
        name for name, number in Counter(map(str.casefold, map(str, names))).items() if number > 1
    ]
    if alike:
        yield f"metrics: duplicate name {alike[0]} (in any case)"
    if taken := [name for name in names if name.casefold() in TABLES]:
        yield f"metrics: {in_brief(taken[0])}: `stats` uses this name for something else: rename it"
    if unknown := [metric.ranked_by for metric in every if metric.ranked_by not in ("", *names)]:
        yield f"metrics: ranked_by: {', '.join(map(in_brief, unknown))}: no such metric"


def _bad_shown(cls: type[Benchmark]) -> Iterator[str]:
    names = metrics_of(cls)
    for field, chosen in {"headline": cls.scoring.headline, "live": cls.scoring.live}.items():
        if not isinstance(chosen, tuple | list):
            yield f"{field}: expected a tuple of names of metrics"
        elif unknown := [name for name in chosen if name not in names]:
            yield f"{field}: {', '.join(map(in_brief, unknown))}: no such metric"


def _bad_text(metric: Metric) -> str | None:
    texts = {name: getattr(metric, name) for name in ("definition", "ranked_by", "unranked")}
    wrong = next(
        (name for name, text in texts.items() if type(text) is not str or not text.isprintable()),
        None,
    )
    if not isinstance(metric.leaves_out, tuple | list) or not all(
        type(kind) is str for kind in metric.leaves_out
    ):
        return (
            f"leaves_out: expected a tuple of kinds of breaches, got {in_brief(metric.leaves_out)}"
        )
    return wrong and f"expected a {wrong} that is text on one line"


def _bad_objects(cls: type[Benchmark]) -> Iterator[str]:
    if lost := [name for name in INSIDE if hasattr(cls, name)]:
        yield f"{', '.join(lost)}: belongs to the object `{INSIDE[lost[0]]}`: move or rename yours"
    if hidden := [
        name for name, kind in OBJECTS.items() if not isinstance(getattr(cls, name), kind)
    ]:
        yield (
            f"{hidden[0]}: expected an object of a class that extends {OBJECTS[hidden[0]].__name__}"
        )
    for one, kind in ((cls.about, About), (cls.task_files, TaskFiles)):
        own, ours = type(one), vars(kind)
        if lost := [
            name
            for name, value in vars(one).items()
            if value == ours.get(name, ...) != getattr(own, name)
        ]:
            yield (
                f"{lost[0]}: {own.__name__} sets it, and its object has the default: give it as an"
                " argument"
            )
    if hasattr(cls, "configuration"):
        yield "configuration: the harness sets this: rename yours"


def _bad_code(cls: type[Benchmark]) -> Iterator[str]:
    if missing := [
        name
        for name in vars(Benchmark)
        if getattr(getattr(cls, name), "__isabstractmethod__", False)
    ]:
        yield f"{', '.join(missing)}: has to be written"
    ours = [name for name in vars(Benchmark) if callable(getattr(Benchmark, name))]
    if hidden := [name for name in ours if not callable(getattr(cls, name))]:
        yield f"{', '.join(hidden)}: the harness calls this: rename yours"
    try:
        kinds = settings.kinds(cls.Settings)
        settings.defaults(cls.Settings)
    except settings.BadSettings as error:
        yield str(error)
    except Exception as error:  # of the author's annotations, not ours
        yield f"Settings: {described(error)}"
    for name, kind in kinds.items():
        if name in RUN_FACTS:
            yield f"Settings.{name}: reports use this name for something else: rename it"
        if kind is Path and name.partition("_")[0] in RESERVED:
            yield (
                f"Settings.{name}: names of other files in the run's folder begin like this:"
                " rename it"
            )
