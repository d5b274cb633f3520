"""Extensions: what takes part in runs once an option, or an earlier session of the run, switches it
on.

One that ships is a folder below `harness/extensions/`, whose `__init__` has an `EXTENSION`. A
folder can be deleted, and the rest works. An installed package adds its own by an entry point of
the group `harness.extensions`: `name = "package.module:EXTENSION"`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from harness.option import Check
from harness.options.options import PlayOptions
from harness.store.manifest import Manifest

if TYPE_CHECKING:
    from harness.engine.hooks import Hooks

SHIPPED = ("budget", "estimate", "batches", "reuse", "hedging", "ray")
"""Folders below `harness/extensions/`, in the order in which they take part; one that is missing is
skipped."""
GROUP = "harness.extensions"

OptionsT = TypeVar("OptionsT")


class Extension(Generic[OptionsT]):
    """An extension: its name, its options, and the hooks with which it takes part in a run.

    `options` is a frozen dataclass (`harness.option`), whose fields become options of the
    `commands`. `queue_checks` has the fields that an entry of a queue in the providers file may
    have for it; one with an option's name excludes that option.
    """

    name: ClassVar[str]
    options: type[OptionsT]
    commands: ClassVar[Collection[str]] = frozenset({"run", "resume"})
    queue_checks: ClassVar[Mapping[str, Check]] = {}

    def hooks(self, options: OptionsT, command: PlayOptions) -> Hooks:
        """Return the extension's part in the runs of a command. Raise `BadInput` for options that
        cannot be."""
        raise NotImplementedError

    def is_on(self, options: OptionsT, command: PlayOptions) -> bool:
        """Return whether the options of a command switch the extension on: one of its own is not
        the default."""
        return options != self.options()

    def continues(self, manifest: Manifest) -> bool:
        """Return whether `resume` goes on with the extension by a run's manifest, without an
        option."""
        return False

    def notes(self, manifest: Manifest) -> Iterable[str]:
        """Yield what a report says of a run by its manifest."""
        return ()

    def counts(self, manifest: Manifest) -> Mapping[str, int]:
        """Return members of a manifest's tuning that count over all sessions of a run."""
        return {}


@cache
def extensions() -> Sequence[Extension[Any]]:
    """Return the extensions that ship and are there, then those of installed packages."""
    shipped = [f"{GROUP}.{name}" for name in SHIPPED]
    shipped_extensions = [
        import_module(module).EXTENSION for module in shipped if find_spec(module)
    ]
    return [*shipped_extensions, *[point.load() for point in entry_points(group=GROUP)]]


def hooks_of(command: PlayOptions, manifests: Sequence[Manifest] = ()) -> list[Hooks]:
    """Return the hooks of the extensions that the options of a command switch on, or the manifests
    of the runs that go on."""
    hooks = []
    for extension in extensions():
        options = command.extension_options.get(extension.name) or extension.options()
        if extension.is_on(options, command) or any(map(extension.continues, manifests)):
            hooks.append(extension.hooks(options, command))
    return hooks


def counts(manifest: Manifest) -> Counter[str]:
    """Return what extensions count over all sessions of a run."""
    numbers = Counter[str]()
    for extension in extensions():
        numbers.update(extension.counts(manifest))
    return numbers
