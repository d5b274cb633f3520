"""What a feature adds to the harness, and the features there are (docs/architecture.md).

A feature is a capability that not every run needs, whole, in one folder: `harness/features/NAME/`, with its tests in
`tests/features/NAME/` and its page in `docs/`. Without these folders the harness works, and has neither a command nor
an option of it: nothing outside a feature's folder imports it.

A folder's `__init__.py` has a `FEATURE`. An installed package adds its own by an entry point of the group
`harness.features`: `name = "package.module:FEATURE"`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness.benchmark import Benchmark
from harness.cost import Pending
from harness.model import JSON
from harness.option import options_of
from harness.store.files import RunFiles
from harness.store.manifest import Manifest

SHIPPED = {
    **{name: f"harness.features.{name}" for name in ("settings", "dashboard", "rescoring", "imports", "prices")},
    **{"replicas": "harness.extensions.replicas", "plays": "harness.features.plays"},
    **{name: f"harness.features.{name}" for name in ("documents", "samples", "remove")},
    "preview": "harness.commands.dry_run",
    **{name: f"harness.extensions.{name}" for name in ("budget", "estimate")},
    "fetch": "harness.commands.fetch",
    **{name: f"harness.extensions.{name}" for name in ("parts", "batches", "reuse", "hedging")},
    **{"exports": "harness.commands.export", "compare": "harness.commands.compare"},
    **{"leaderboard": "harness.commands.stats", "pages": "harness.features.pages"},
    **{name: f"harness.commands.{name}" for name in ("show", "view", "verify", "check")},
    "ray": "harness.extensions.ray",
    **{
        name: f"harness.features.{name}"
        for name in ("endpoint_file", "config", "completion", "python", "trust", "extra")
    },
}
"""Folders below `harness/features/`, in the order in which they take part; one that is missing is skipped."""
GROUP = "harness.features"
PLAYING, EVERY = frozenset({"run", "resume"}), frozenset({"*"})
"""Commands that play; and all that are not `alone`."""


class Command(NamedTuple):
    """A command: its module, which has `execute(options)`, a sentence for the help, and its class of options in
    `package.module:Class`; without, the module's `Options`. One that is `alone` takes neither a settings file nor the
    options of every command."""

    module: str
    does: str
    options: str = ""
    alone: bool = False


class Column(NamedTuple):
    """A column of `status`: `of` returns a member of a run's row, None for a run without it, and `words` shows it."""

    name: str
    of: Callable[[RunFiles, Manifest], JSON | None]
    words: Callable[[JSON], str]


class Instead(NamedTuple):
    """A function, in `package.module:function`, that executes a command where `when` is true of its options."""

    command: str
    when: Callable[[Any], bool]
    function: str


class Foreign(Protocol):
    """Results on one subset that another program wrote: there is no manifest."""

    @property
    def files(self) -> RunFiles: ...
    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def report(self) -> Any:
        """Return the report of these results; None if they are not scored, or were written again."""

    @property
    def is_current(self) -> bool:
        """Return whether the report is of these very results."""

    @property
    def remedy(self) -> str:
        """Return why results without a report cannot be shown, and the command to run."""

    @property
    def command(self) -> str:
        """Return the command that scores them."""

    def row(self, usage: JSON) -> JSON:
        """Return the row of `status`, with the columns of `usage`."""

    def scored_again(self, chosen: Any) -> Any:
        """Score them, as `chosen` (`harness.analysis.rescoring`)."""


@dataclass(frozen=True)
class Feature:
    """A capability. By default each part adds nothing."""

    name: str
    needs: Sequence[str] = ()
    """Features before it in the order; without one of them, this one is not there either."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """New commands, by name."""
    options: Mapping[type, Collection[str]] = field(default_factory=dict)
    """Frozen dataclasses (`harness.option`), each with the commands whose options get its fields."""
    extension: str = ""
    """The subclass of `harness.engine.extension.Extension` in `package.module:Class`, made of the options of a command
    that plays with the feature on."""
    instead: Sequence[Instead] = ()
    reported: str = ""
    """A function in `package.module:function` that acts on a new report, given the options of the command that made it,
    the run, and what prints a line. A run is complete once it returns."""
    logs: Sequence[str] = ()
    """The names of its own files with a run (`RunFiles.log`)."""
    column: Column | None = None
    against_stragglers: str = ""
    """What a user can do about requests that hang, as a main clause."""
    queued: Mapping[str, tuple[Callable[[Any], bool], str]] = field(default_factory=dict)
    """Fields of an entry of a queue: whether a value fits, and what is expected, in words. One with an option's name
    excludes that."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """What `harness` offers Python, and what others call by its name, each in `package.module:function`."""

    def is_on(self, args: Any) -> bool:
        """Return whether the options of `run` or `resume` switch the feature on: one of its own is not the default."""
        every = [one for cls in self.options for one in options_of(cls)]
        return any(getattr(args, one.name, one.default) != one.default for one in every)

    def again(self, manifest: Manifest) -> bool:
        """Return whether `resume` goes on with the feature by a run's manifest, without an option."""
        return False

    def check(self, files: RunFiles, manifest: Manifest, allowed: Collection[str]) -> None:
        """Raise `BadInput` where a run that has users left cannot go on as its manifest now is, whether the feature is
        on or not; `allowed` are the names of `--allow`."""

    def notes(self, manifest: Manifest) -> Iterable[str]:
        """Yield what a report says of a run by its manifest."""
        return ()

    def how_to_get(self, cls: type[Benchmark]) -> str:
        """Return how a user gets missing tasks of a benchmark, as a main clause; empty if the feature knows no way."""
        return ""

    def foreign(self, results: Path) -> Iterable[Foreign]:
        """Yield the results of other programs below a results folder."""
        return ()

    def pending(self, files: RunFiles) -> Iterable[Pending]:
        """Yield requests of a run that a provider may still answer."""
        return ()

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Return members of a manifest's tuning that count over all sessions of a run."""
        return {}


@cache
def features() -> tuple[Feature, ...]:
    """Return the features that ship and are there, then those of installed packages; none whose need is missing."""
    names = list(SHIPPED.values())
    own = [import_module(name).FEATURE for name in names if find_spec(name)]
    found: dict[str, Feature] = {}
    for feature in (*own, *[point.load() for point in entry_points(group=GROUP)]):
        if all(name in found for name in feature.needs):
            found[feature.name] = feature
    return tuple(found.values())


def how_to_get(cls: type[Benchmark]) -> str:
    """Return what a user can do about missing tasks, as a main clause."""
    return next(filter(None, [feature.how_to_get(cls) for feature in features()]), "put them there")


def extensions(args: Any, manifests: Sequence[Manifest] = ()) -> list[Any]:
    """Return the extensions that the options of a command switch on, or the manifests of the runs that go on."""
    return [
        _named(feature.extension)(args)
        for feature in features()
        if feature.extension and (feature.is_on(args) or any(map(feature.again, manifests)))
    ]


def own_logs(files: RunFiles) -> list[Path]:
    """Return the files of features with a run."""
    return [files.log(name) for feature in features() for name in feature.logs]


def counts(manifest: Manifest) -> Counter[str]:
    """Return what features count over all sessions of a run."""
    return Counter({name: number for feature in features() for name, number in feature.counts(manifest).items()})


def foreign(results: Path) -> list[Foreign]:
    """Return the results of other programs below a results folder."""
    return [one for feature in features() for one in feature.foreign(results)]


def foreign_of(files: RunFiles) -> Foreign | None:
    """Return the results of another program that are in a folder of the results."""
    return next((one for one in foreign(files.folder.parent) if one.files.results == files.results), None)


def pending(files: RunFiles) -> list[Pending]:
    """Return the requests of a run that a provider may still answer, and bill."""
    return [one for feature in features() for one in feature.pending(files)]


def takeovers(command: str, args: Any) -> list[Callable[[Any], int]]:
    """Return what executes a command of the core in another way, with these options."""
    every = [one for feature in features() for one in feature.instead]
    return [_named(one.function) for one in every if one.command == command and one.when(args)]


def reported(args: Any, run: Any, say: Callable[[str], None] = lambda words: None) -> None:
    """Let features act on a new report (`harness.engine.files.Reported`)."""
    for feature in features():
        if feature.reported:
            _named(feature.reported)(args, run, say)


def function(name: str) -> Any:
    """Return what features offer under a name, None for nothing."""
    path = next((feature.functions[name] for feature in features() if name in feature.functions), None)
    return path and _named(path)


def _named(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)
