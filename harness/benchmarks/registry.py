"""Find benchmarks: those that ship or are installed by name, others by `FILE.py` or
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
    "streamprofile": (
        "harness.benchmarks.streamprofile.benchmark",
        "StreamProfile",
    ),
    "dailymobility": (
        "harness.benchmarks.dailymobility.benchmark",
        "DailyMobility",
    ),
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
    {
        "benchmark",
        "run",
        "responses",
        "failures",
        "inference",
        "eval",
        "generated",
        "users",
    }
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


def _members() -> dict[str, str]:
    members = {"remark": "about", "card_columns": "cards"}
    for name, kind in OWNERS.items():
        for member in (*dir(kind), *kind.__annotations__):
            if not member.startswith("_") and not hasattr(Benchmark, member):
                members[member] = name
    return members


INSIDE: Mapping[str, str] = _members()
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
    points = entry_points(group=GROUP)
    return {point.name: point.value for point in points if not is_shipped(point.name)}


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
    module, _, name = spec.partition(":")
    if all(map(str.isidentifier, (name, *module.split(".")))):
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
        importer = cls.imports.importer
        if subset in cls.subsets and importer is not None:
            return cls, importer

    raise BadInput(
        f"run_{subset}.json is missing, and no benchmark reads results of {in_brief(subset)}"
        " without it"
    )


def baselines() -> dict[str, Baseline]:
    """Return the models that the harness serves by itself, by name."""
    models: dict[str, Baseline] = {}
    for module in BASELINES:
        models |= import_module(module).BASELINES
    return models


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
    # StreamProfileBench comes last: its reader takes any list for a pool.
    for module in reversed(BASELINES):
        baseline: str | None = import_module(module).reader(text)
        if baseline:
            return baseline
    return None


@cache
def of_file(spec: str, name: str, data: bytes) -> type[Benchmark]:
    """Return the benchmark in the bytes of a file. Its code is run, once: the same file is the same
    class."""
    module = module_of(f"harness_benchmark_{sha256(data).hexdigest()[:16]}", name, data)
    # A class may have two names, and imported ones are no benchmarks of this file.
    values = dict.fromkeys(filter(_is_benchmark, vars(module).values()))
    classes = [value for value in values if value.__module__ == module.__name__]
    if spec.endswith(".py"):
        # A file may define a base class for its benchmark.
        bases = {*chain.from_iterable(cls.__mro__[1:] for cls in classes)}
        classes = [cls for cls in classes if cls not in bases]
    else:
        named = getattr(module, spec.partition(":")[2], None)
        classes = [cls for cls in classes if cls is named]

    if len(classes) != 1:
        listed = "none"
        if classes:
            listed = f"{len(classes)} ({', '.join([cls.__name__ for cls in classes])})"

        raise BadInput(f"{name}: expected one class that extends harness.Benchmark, found {listed}")

    return _declared(classes[0], spec, name, data)


def _of_module(spec: str, module: str, name: str) -> type[Benchmark]:
    with loading(spec):
        cls: Any = getattr(import_module(module), name, None)
        source = None
        if _is_benchmark(cls):
            # The class may be imported from another module than the one that was named.
            source = find_spec(cls.__module__)

    if source is None or source.origin is None:
        raise BadInput(f"{spec}: expected a class that extends harness.Benchmark")

    path = Path(source.origin)
    return _declared(cls, spec, path.name, input_file(path, "the benchmark "))


def _is_benchmark(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Benchmark) and value is not Benchmark


def _declared(cls: type[Benchmark], spec: str, file: str, data: bytes) -> type[Benchmark]:
    """Return the class with its origin, if it declares what every benchmark must."""
    mistake = undeclared(cls)
    if mistake:
        place = spec
        if spec.endswith(".py"):
            place = file

        raise BadInput(f"{place}: class {cls.__name__}: {mistake}")

    cls.origin = Origin(spec, KEPT + file.removeprefix(KEPT), data)
    return cls


def undeclared(cls: type[Benchmark]) -> str | None:
    """Return the first mistake of a declaration, None for none."""
    mistakes = chain(
        _bad_objects(cls),
        _bad_names(cls),
        _bad_subsets(cls),
        _bad_metrics(cls),
        _bad_shown(cls),
        _bad_code(cls),
    )
    return next(mistakes, None)


# Each of these yields mistakes. What follows the first one may raise: it is not run.


def _bad_names(cls: type[Benchmark]) -> Iterator[str]:
    name: Any = getattr(cls, "name", None)
    if type(name) is not str or not name.isidentifier() or not name.isascii():
        yield f"name: expected a word of letters, digits and _, got {in_brief(name)}"

    if is_shipped(name) and find(name) is not cls:
        yield f"name: {name} is a benchmark that ships: rename this one"

    about = cls.about
    texts = {"version": cls.version, "key_field": cls.task_files.key_field}
    for field in ("parser_version", "user", "invalid_as", "title", "synthetic"):
        texts[field] = getattr(about, field)

    for field, value in texts.items():
        is_needed = field not in ("title", "synthetic")
        if type(value) is not str or (is_needed and not value) or not value.isprintable():
            yield f"{field}: expected text, got {in_brief(value)}"

    data_set = cls.task_files.data_set
    if data_set != "" and not _matches(DATA_SET, data_set):
        yield f"data_set: expected owner/name of a data set, got {in_brief(data_set)}"

    if about.language not in ("en", "zh"):
        yield f"language: expected en or zh, got {in_brief(about.language)}"

    baselines = cls.baselines
    is_mapping = isinstance(baselines, dict) and all(map(callable, baselines.values()))
    if not is_mapping or not all(map(_is_word, baselines)):
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

    files = [*subsets.items()]
    files += [("data_files", file) for file in cls.task_files.data_files]
    for field, file in files:
        if not _is_path_below(file):
            yield f"{field}: expected a path below the tasks folder, got {in_brief(file)}"


def _is_path_below(file: object) -> bool:
    if type(file) is not str or not file:
        return False
    path = Path(file)
    return not path.is_absolute() and ".." not in path.parts


def _is_word(word: object) -> bool:
    return _matches(WORD, word)


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return type(value) is str and pattern.fullmatch(value) is not None


def _bad_metrics(cls: type[Benchmark]) -> Iterator[str]:
    yield from _bad_declarations("metrics", getattr(cls, "metrics", None))
    yield from _bad_declarations("secondary", cls.scoring.secondary)
    if not cls.metrics:
        yield "metrics: expected one or more"

    all_metrics = (*cls.metrics, *cls.scoring.secondary)
    names = [metric.name for metric in all_metrics]
    for name in names:
        if not _is_metric_name(name):
            yield f"metrics: {in_brief(name)}: expected a name of at most 60 characters without /"

        if name.casefold() in TABLES:
            yield f"metrics: {in_brief(name)}: `stats` uses this name for something else: rename it"

    for name, count in Counter(map(str.casefold, names)).items():
        if count > 1:
            yield f"metrics: duplicate name {name} (in any case)"

    unknown = [metric.ranked_by for metric in all_metrics if metric.ranked_by not in ("", *names)]
    if unknown:
        yield f"metrics: ranked_by: {', '.join(map(in_brief, unknown))}: no such metric"


def _bad_declarations(field: str, metrics: object) -> Iterator[str]:
    if not isinstance(metrics, tuple | list) or not all(
        isinstance(metric, Metric) for metric in metrics
    ):
        yield f"{field}: expected a tuple of Metric(...)"
        return

    for metric in metrics:
        problem = _bad_text(metric)
        if problem:
            yield f"{field}: {in_brief(metric.name)}: {problem}"


def _is_metric_name(name: object) -> bool:
    if type(name) is not str or not name.isprintable():
        return False
    return 0 < len(name) <= 60 and "/" not in name


def _bad_shown(cls: type[Benchmark]) -> Iterator[str]:
    names = metrics_of(cls)
    for field in ("headline", "live"):
        chosen = getattr(cls.scoring, field)
        if not isinstance(chosen, tuple | list):
            yield f"{field}: expected a tuple of names of metrics"

        unknown = [name for name in chosen if name not in names]
        if unknown:
            yield f"{field}: {', '.join(map(in_brief, unknown))}: no such metric"


def _bad_text(metric: Metric) -> str | None:
    kinds = metric.leaves_out
    if not isinstance(kinds, tuple | list) or not {*map(type, kinds)} <= {str}:
        return f"leaves_out: expected a tuple of kinds of breaches, got {in_brief(kinds)}"

    for field in ("definition", "ranked_by", "unranked"):
        text = getattr(metric, field)
        if type(text) is not str or not text.isprintable():
            return f"expected a {field} that is text on one line"

    return None


def _bad_objects(cls: type[Benchmark]) -> Iterator[str]:
    # The harness would ignore such a member without a word.
    misplaced = [name for name in INSIDE if hasattr(cls, name)]
    if misplaced:
        owner = INSIDE[misplaced[0]]
        yield f"{', '.join(misplaced)}: belongs to the object `{owner}`: move or rename yours"

    for name, kind in OBJECTS.items():
        if not isinstance(getattr(cls, name), kind):
            yield f"{name}: expected an object of a class that extends {kind.__name__}"

    for settings_object, kind in (
        (cls.about, About),
        (cls.task_files, TaskFiles),
    ):
        # A dataclass's own attribute loses against the argument's default.
        subclass = type(settings_object)
        for name, value in vars(settings_object).items():
            if value == vars(kind).get(name, ...) != getattr(subclass, name):
                yield (
                    f"{name}: {subclass.__name__} sets it, and its object has the default: give it"
                    " as an argument"
                )

    if hasattr(cls, "configuration"):
        yield "configuration: the harness sets this: rename yours"


def _bad_code(cls: type[Benchmark]) -> Iterator[str]:
    missing = [
        name
        for name in vars(Benchmark)
        if getattr(getattr(cls, name), "__isabstractmethod__", False)
    ]
    if missing:
        yield f"{', '.join(missing)}: has to be written"

    functions = [name for name in vars(Benchmark) if callable(getattr(Benchmark, name))]
    hidden = [name for name in functions if not callable(getattr(cls, name))]
    if hidden:
        yield f"{', '.join(hidden)}: the harness calls this: rename yours"

    try:
        kinds = settings.kinds(cls.Settings)
        settings.defaults(cls.Settings)
    except settings.BadSettings as error:
        yield str(error)
    except Exception as error:  # the author's annotations may raise anything
        yield f"Settings: {described(error)}"

    for name, kind in kinds.items():
        if name in RUN_FACTS:
            yield f"Settings.{name}: reports use this name for something else: rename it"

        if kind is Path and name.partition("_")[0] in RESERVED:
            yield (
                f"Settings.{name}: names of other files in the run's folder begin like this:"
                " rename it"
            )
