"""Runs that stand under a results folder: how a command names them, and works on one after the other."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

from harness import benchmarks
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.template import check_digest
from harness.commands.options import run_name
from harness.commands.origin import check_trust, is_own
from harness.errors import BadInput, HarnessError, MachineError
from harness.model import Benchmark
from harness.store.manifest import Manifest, differences, load
from harness.store.run import RunFiles, runs, shown
from harness.ui.streams import tell

ENDS_ALL = frozenset({4, 130, 143})
"""Exit codes of a session after which no other is begun: a disk that is full, a signal."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Earlier:
    """`manifest` is as it was when the runs were looked up: whoever changes a run reads it again under its lock."""

    files: RunFiles
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def _module(self) -> Any:
        return benchmarks.module(self.manifest.identity["benchmark"])

    def _folder(self, folder: Path | None) -> Path:
        """The tasks folder: the one named, else where it was."""
        if folder is not None:
            return folder
        below = Path(self._module.files_needed(self.files.subset)[0])
        above = Path(self.manifest.tasks["path"]).parents
        if len(above) < len(below.parts):
            raise BadInput(f"{self.files.manifest}: field tasks.path: expected the path of a tasks file")
        return above[len(below.parts) - 1]

    def tasks(self, folder: Path | None) -> Path:
        """Its tasks file, in another folder where one is named. Raises `BadInput` where it is not there."""
        below: str = self._module.files_needed(self.files.subset)[0]
        path = self._folder(folder) / below
        if not os.path.exists(path):  # unlike the path's own method it fails for no name, however long
            raise BadInput(f"its tasks file {path} is not there: name the folder that has it with --tasks-dir")
        return path

    @property
    def is_own(self) -> bool:
        """Whether this user made the run on this machine."""
        return is_own(self.manifest, os.environ)

    @property
    def has_code(self) -> bool:
        """Whether to play the run is to run code that it was given."""
        names = [*self.manifest.identity["files"], self.manifest.provenance.get("source") or ""]
        in_agent_mode = self.manifest.identity["settings"].get("mode") == "agent"
        return in_agent_mode or any(Path(name).suffix == ".py" for name in names)

    def benchmark(
        self,
        folder: Path | None,
        *,
        allowed: frozenset[str] = frozenset(),
        play: bool = True,
        trust: bool = False,
    ) -> Benchmark:
        """The benchmark with the settings of this run; its tasks may be in another folder.

        `allowed` names the files of prompt or agent that may be taken as they are now. One that is not to `play` only
        measures saved answers, and runs no code of theirs; nor is any run that came with the folder, without `trust`.
        """
        self.tasks(folder)
        source = self.source(allowed) if play else None
        if play and self.has_code and not self.is_own:
            check_trust(self.name, self.files.folder, self.manifest.identity["files"], trust=trust)
        settings = self._module.settings_again(self.manifest.identity["settings"], source, self._folder(folder))
        is_copy = source is not None and source.resolve() in [copy.resolve() for copy in self._kept]
        digests = self.manifest.identity["files"] if is_copy else None
        made: Benchmark = self._module.configure({**settings, "play": play, "digests": digests})
        return made

    def as_it_was(self, folder: Path | None, *, play: bool, trust: bool = False) -> Benchmark:
        """The benchmark on the very data of the run. Raises `BadInput` where these have become others."""
        made = self.benchmark(folder, play=play, trust=trust)
        found = differences(self.manifest.identity["settings"], made.identity())
        if found:
            told = "; ".join(f"{name} was {shown(a)}, is now {shown(b)}" for name, (a, b) in found.items())
            raise BadInput(f"the run was made with other data ({told}): put those back, or name them with --tasks-dir")
        return made

    def source(self, allowed: frozenset[str] = frozenset()) -> Path | None:
        """The prompt or agent that the run was given: the folder's copy, or where it was.

        The latter is taken for this user's own run alone, where there is no copy, or what changed is `allowed`.
        """
        named = self.manifest.provenance.get("source")
        if not named:
            return None
        copies = [copy for copy in self._kept if Path(named).name in (copy.name, _own_name(copy))]
        if self.is_own and (not copies or allowed.issuperset(self.changed)):
            return Path(named)
        if not copies:
            raise BadInput(f"{self.files.folder} has no copy of the run's prompt or agent {Path(named).name}: add it")
        for copy in self._kept:
            check_digest(copy, _content(copy), self.manifest.identity["files"])
        return copies[0]

    @property
    def changed(self) -> list[str]:
        """The files of prompt or agent, as identity names them, that are no longer what the run was given.

        None of a run that is not this user's own, whose manifest names no file of theirs.
        """
        named = self.manifest.provenance.get("source")
        if not named or not self.is_own:
            return []
        return [f"files.{copy.name}" for copy in self._kept if not _same(copy, _original(copy, Path(named)))]

    @property
    def _kept(self) -> list[Path]:
        """The copies of prompt or agent in the run's folder, the main file's first."""
        return [path for path in map(self.files.folder.joinpath, self.manifest.identity["files"]) if path.is_file()]


def _original(copy: Path, named: Path) -> Path:
    """The file that a copy was made of, which lay beside the one named; copies have a word in front of the name."""
    own = _own_name(copy)
    return named if named.name in (copy.name, own) else named.with_name(own)


def _own_name(copy: Path) -> str:
    return copy.name.partition("_")[2]


def _content(path: Path) -> bytes:
    try:
        return content(path, DOCUMENT_MOST)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error


def _same(one: Path, other: Path) -> bool:
    try:
        return content(one, DOCUMENT_MOST) == content(other, DOCUMENT_MOST)
    except OSError:  # it has gone, or may not be read any more
        return False


def find(args: Namespace) -> list[Earlier]:
    """The runs that `--name`, `--model` and `--platform` name; all where they name none.

    One whose manifest cannot be used is told, keeps no other from being found, and makes the command's exit code
    that of a bad input at least (`args.least_code`, which the command line takes up).
    """
    platforms = {name.lower() for name in args.platform or ()}
    found = []
    for files in runs(args.results_dir):
        if (args.name and files.folder.name != args.name) or (platforms and files.subset not in platforms):
            continue
        if not has_name(files.folder, args):
            continue
        try:
            manifest = load(files.manifest)
        except HarnessError as error:
            tell(str(error))
            args.least_code = max(error.exit_code, getattr(args, "least_code", 0))
            continue
        if manifest is not None and (not args.model or args.model in _names(manifest)):
            found.append(Earlier(files, manifest))
    return found


def has_name(folder: Path, args: Namespace) -> bool:
    """Whether the name of a folder is text, which reports and manifests can hold; told where it is not, as `find`
    tells of manifests."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        tell(f"{folder}: the name of this folder is not text in UTF-8: give it another")
        args.least_code = max(BadInput.exit_code, getattr(args, "least_code", 0))
        return False
    return True


def _names(manifest: Manifest) -> tuple[str, str]:
    """What a run's model is called, without and with its provider."""
    model = manifest.identity["model"]
    return model, f"{manifest.provenance.get('provider')}:{model}"


def folder_named(args: Namespace) -> str | None:
    """The folder that a command is about, as a pattern for `glob` that fits it alone; None for all."""
    name = args.name or (run_name(None, args.model) if args.model else None)
    return None if name is None else escape(name)


def nothing_found(args: Namespace) -> BadInput:
    named = [f"--name {args.name}"] if args.name else []
    named += [f"--model {args.model}"] if args.model else []
    named += [f"--platform {platform}" for platform in args.platform or ()]
    return BadInput(f"no run under {args.results_dir}{' for ' + ' '.join(named) if named else ''}")


def each(items: Sequence[T], work: Callable[[T], int], name: Callable[[T], str]) -> int:
    """Works on one after the other and returns the worst exit code.

    An error that is one run's own is told and keeps no other from its turn; what ends a session ends them all.
    """
    worst = 0
    for item in items:
        try:
            code = work(item)
        except HarnessError as error:
            tell(f"{name(item)}: {error}")
            worst = max(worst, error.exit_code)
            continue
        worst = max(worst, code)
        if code in ENDS_ALL:
            break
    return worst
