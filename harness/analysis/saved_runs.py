"""Runs under a results folder: how a command selects them, and processes one after the other."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from harness.benchmark import Benchmark
from harness.benchmarks import registry, settings
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.template import check_digest
from harness.chat import Asking
from harness.config.options import run_name
from harness.config.origin import check_trust, is_own
from harness.defaults import PARSE_RETRIES, RETRIES_MOST
from harness.errors import BadInput, HarnessError, MachineError
from harness.model import JSON
from harness.store.manifest import Manifest, differences, load
from harness.store.run import RunFiles, runs, shown
from harness.ui.streams import tell

ENDS_ALL = frozenset({4, 130, 143})
"""Exit codes of a session after which no other starts: a full disk, a signal."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SavedRun:
    """`manifest` is as read when the runs were found; to change a run, read it again under its lock.

    `trust` says that code of the run's folder may run, and `named` is the benchmark as the command named it again.
    """

    files: RunFiles
    manifest: Manifest
    trust: bool = False
    named: str | None = None

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def benchmark_class(self) -> type[Benchmark]:
        """Return the class that the run was made with: a shipped one, the one named again, or the folder's copy, whose
        code is run only for this user's own run or with trust. Raise `BadInput`."""
        name = self.manifest.identity["benchmark"]
        if self.named is not None:
            found = registry.find(self.named)
            if found.name != name:
                raise BadInput(f"{self.name} is a run of {name}, and {self.named} is {found.name}")
            return found
        if registry.is_shipped(name):
            return registry.find(name)
        if (copy := self._benchmark_copy) is None:
            raise BadInput(f"{self.files.manifest}: field identity.benchmark: unknown benchmark {shown(name)}")
        if not self.is_own:
            check_trust(self.name, self.files.folder, self.manifest.identity["files"], trust=self.trust)
        made = self._kept_class(copy)
        if made.name != name:
            raise BadInput(f"{self.name} is a run of {name}, and its copy {copy.name} is {made.name}")
        return made

    @property
    def _benchmark_copy(self) -> Path | None:
        """Return the folder's copy of the benchmark's file, None for a shipped one."""
        kept = (name for name in self.manifest.identity["files"] if name.startswith(registry.KEPT))
        return next(map(self.files.folder.joinpath, kept), None)

    def _kept_class(self, copy: Path) -> type[Benchmark]:
        spec = self.manifest.provenance.get("benchmark") or copy.name
        if ":" in spec and self.is_own:
            return registry.find(spec)
        data = _content(copy)
        check_digest(copy, data, self.manifest.identity["files"])
        return registry.of_file(spec, copy.name.removeprefix(registry.KEPT), data)

    def _folder(self, folder: Path | None) -> Path:
        """Return the tasks folder: the named one, else the original one."""
        if folder is not None:
            return folder
        below = Path(self._tasks_file)
        above = Path(self.manifest.tasks["path"]).parents
        if len(above) < len(below.parts):
            raise BadInput(f"{self.files.manifest}: field tasks.path: expected the path of a tasks file")
        return above[len(below.parts) - 1]

    @property
    def _tasks_file(self) -> str:
        subsets = self.benchmark_class.subsets
        if self.files.subset not in subsets:
            raise BadInput(f"{self.files.manifest}: {self.manifest.identity['benchmark']} has no such subset")
        return subsets[self.files.subset]

    def tasks(self, folder: Path | None) -> Path:
        """Return its tasks file, in the named folder if any. Raise `BadInput` if it does not exist."""
        path = self._folder(folder) / self._tasks_file
        if not os.path.exists(path):  # unlike the path's own method it fails for no name, however long
            raise BadInput(f"its tasks file {path} does not exist: name the folder that has it with --tasks-dir")
        return path

    @property
    def is_own(self) -> bool:
        """Return whether this user made the run on this machine."""
        return is_own(self.manifest, os.environ)

    @property
    def has_code(self) -> bool:
        """Return whether playing the run runs code from its folder: a Python file, or what its benchmark declares.

        The benchmark makes its settings of the same identity, so a manifest that lies makes it run nothing else.
        """
        names = [*self._prompt_files, self.manifest.provenance.get("source") or ""]
        is_python = any(Path(name).suffix == ".py" for name in names)
        return is_python or self.benchmark_class.runs_code(self.manifest.identity["settings"])

    @property
    def _prompt_files(self) -> list[str]:
        """The names of the kept files of prompt or agent, the main one first."""
        return [name for name in self.manifest.identity["files"] if not name.startswith(registry.KEPT)]

    def benchmark(self, folder: Path | None, *, allowed: frozenset[str] = frozenset(), play: bool = True) -> Benchmark:
        """The benchmark with the settings of this run; its tasks may be in another folder.

        `allowed` names the files of benchmark, prompt or agent that may be taken as they are now. One that is not to
        `play` only measures saved answers, and runs no code of a prompt or agent; nor is any run that came with the
        folder, without trust.
        """
        cls, identity = self.benchmark_class, self.manifest.identity
        if allowed.intersection(self.changed_benchmark):
            cls = registry.find(self.manifest.provenance["benchmark"])
        self.tasks(folder)
        files = self._named_files(cls, allowed, play=play)
        if play:
            self._check_code()
        copies = [copy.resolve() for copy in self._kept]
        are_copies = bool(files) and all(path.resolve() in copies for path in files.values())
        return cls(
            cls.settings_from(identity["settings"], files),
            asking=_asking(identity["settings"]),
            folder=self._folder(folder),
            recorded=None if play else identity["settings"],
            digests=identity["files"] if are_copies else None,
        )

    def _check_code(self) -> None:
        if self.has_code and not self.is_own:
            check_trust(self.name, self.files.folder, self.manifest.identity["files"], trust=self.trust)

    def measuring(self, folder: Path | None) -> Benchmark:
        """Return the benchmark for saved answers alone; it needs no tasks, unless it measures with other files."""
        cls = self.benchmark_class
        if cls.data_files:
            return self.benchmark(folder, play=False)
        identity = self.manifest.identity["settings"]
        files = self._named_files(cls, frozenset(), play=False)
        return cls(cls.settings_from(identity, files), asking=_asking(identity), recorded=identity)

    def _named_files(self, cls: type[Benchmark], allowed: frozenset[str], *, play: bool) -> dict[str, Path]:
        """The files that settings name, by field. A plug-in has them to measure, too: code among them needs trust."""
        if cls.origin is not None:
            if kept := self._kept_names(cls):
                self._check_code()
            return {field: self._setting_file(field, name, allowed) for field, name in kept.items()}
        source = self.source(allowed) if play else None
        if source is None:
            return {}
        fields = settings.file_fields(cls.Settings)
        return {next((name for name in fields if self._prompt_files[0].startswith(f"{name}_")), fields[0]): source}

    def _kept_names(self, cls: type[Benchmark]) -> dict[str, str]:
        """The fields of a plug-in that name a file, and the name of its copy."""
        named = {**self.manifest.identity["settings"], **self._sources}
        paths = {field: named.get(field) for field in settings.file_fields(cls.Settings)}
        kept = {field: settings.kept_name(field, Path(path)) for field, path in paths.items() if isinstance(path, str)}
        return {field: name for field, name in kept.items() if name in self.manifest.identity["files"]}

    def _setting_file(self, field: str, kept: str, allowed: frozenset[str]) -> Path:
        """The folder's copy, or the original where that is `allowed` or all there is, of this user's own run."""
        copy, original = self.files.folder / kept, self._sources.get(field)
        if self.is_own and original and (f"files.{kept}" in allowed or not copy.is_file()):
            return Path(original)
        if not copy.is_file():
            raise BadInput(f"{self.files.folder} has no copy {kept} of the file that the run was given: add it")
        check_digest(copy, _content(copy), self.manifest.identity["files"])
        return copy

    @property
    def _sources(self) -> dict[str, str]:
        """The files that settings of a plug-in named, by field; none in manifests of before they were recorded."""
        found: dict[str, str] = self.manifest.provenance.get("sources", {})
        return found

    def as_it_was(self, folder: Path | None, *, play: bool) -> Benchmark:
        """Return the benchmark on the run's own data. Raise `BadInput` if the data has changed."""
        made = self.benchmark(folder, play=play)
        found = differences(self.manifest.identity["settings"], made.identity())
        if found:
            changes = "; ".join(f"{name} was {shown(a)}, is now {shown(b)}" for name, (a, b) in found.items())
            raise BadInput(f"the run was made with other data ({changes}): restore it, or name it with --tasks-dir")
        if (of := made.origin) is not None:
            for name, data in made.all_files.items():
                if self.manifest.identity["files"].get(name) != sha256(data).hexdigest():
                    what = of.spec if name == of.kept else name
                    raise BadInput(f"{what} is not what the run was made with: it was changed since")
        return made

    def source(self, allowed: frozenset[str] = frozenset()) -> Path | None:
        """Return the run's prompt or agent: the folder's copy, or the original file.

        The latter is taken for this user's own run alone, where there is no copy, or what changed is `allowed`.
        """
        named = self.manifest.provenance.get("source")
        if not named:
            return None
        copies = [copy for copy in self._kept if _is_copy(copy, Path(named))]
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
        if self._sources:
            kept = {settings.kept_name(field, Path(path)): Path(path) for field, path in self._sources.items()}
            pairs = [(self.files.folder / name, path) for name, path in kept.items() if name in self._prompt_files]
        else:
            pairs = [(copy, _original(copy, Path(named))) for copy in self._kept]
        return [f"files.{copy.name}" for copy, original in pairs if not _same(copy, original)]

    @property
    def changed_benchmark(self) -> list[str]:
        """The benchmark's file, as identity names it, where it is no longer what the run was given; as `changed`."""
        named, copy = self.manifest.provenance.get("benchmark"), self._benchmark_copy
        if not named or ":" in named or copy is None or self.named or not self.is_own or _same(copy, Path(named)):
            return []
        return [f"files.{copy.name}"]

    @property
    def _kept(self) -> list[Path]:
        """The copies of prompt or agent in the run's folder, the main file's first."""
        return [path for path in map(self.files.folder.joinpath, self._prompt_files) if path.is_file()]


def _asking(identity: JSON) -> Asking:
    """How an earlier run asked; runs of before these settings have the defaults."""
    made = {name: settings.checked(identity, name, kind) for name, kind in ASKED.items() if name in identity}
    structured, retries = made.get("structured", "json_object"), made.get("parse_retries", PARSE_RETRIES)
    if not 0 <= retries <= RETRIES_MOST:  # each is paid for
        raise BadInput(
            f"the run's manifest: field identity.settings.parse_retries: expected a number from 0 to {RETRIES_MOST}"
        )
    return Asking(structured == "json_object", retries)


ASKED: dict[str, type] = {"structured": str, "parse_retries": int}


def _is_copy(copy: Path, named: Path) -> bool:
    """Whether a copy is of the file named; copies have the name of their setting in front."""
    return copy.name == named.name or copy.name.endswith(f"_{named.name}")


def _original(copy: Path, named: Path) -> Path:
    """Return the file that a copy was made of, in the folder of the named one."""
    return named if _is_copy(copy, named) else named.with_name(copy.name.partition("_")[2])


def _content(path: Path) -> bytes:
    try:
        return content(path, DOCUMENT_MOST)
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}") from error


def _same(one: Path, other: Path) -> bool:
    try:
        return content(one, DOCUMENT_MOST) == content(other, DOCUMENT_MOST)
    except OSError:  # it is missing or unreadable
        return False


def find(args: Namespace) -> tuple[list[SavedRun], int]:
    """Return the runs that `--name`, `--model` and `--platform` select, all without these, and an exit code.

    A run with an unusable manifest is reported and skipped; the code is that of its error, else 0.
    """
    platforms = {name.lower() for name in args.platform or ()}
    trust, named = getattr(args, "trust", False), getattr(args, "benchmark", None)
    found, code = [], 0
    for files in runs(args.results_dir):
        if (args.name and files.folder.name != args.name) or (platforms and files.subset not in platforms):
            continue
        try:
            check_name(files.folder)
            manifest = load(files.manifest)
        except HarnessError as error:
            tell(str(error))
            code = max(code, error.exit_code)
            continue
        if manifest is not None and (not args.model or args.model in _names(manifest)):
            found.append(SavedRun(files, manifest, trust, named))
    return found, code


def check_name(folder: Path) -> None:
    """Raise `BadInput` if the name of a folder is not text, which reports and manifests could not hold."""
    try:
        folder.name.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{folder}: the name of this folder is not text in UTF-8: give it another") from None


def _names(manifest: Manifest) -> tuple[str, str]:
    """Return the name of a run's model, without and with its provider."""
    model = manifest.identity["model"]
    return model, f"{manifest.provenance.get('provider')}:{model}"


def folder_named(args: Namespace) -> str | None:
    """Return the folder that a command is about, as a `glob` pattern for it alone; None for all."""
    name = args.name or (run_name(None, args.model) if args.model else None)
    return None if name is None else escape(name)


def nothing_found(args: Namespace) -> BadInput:
    named = [f"--name {args.name}"] if args.name else []
    named += [f"--model {args.model}"] if args.model else []
    named += [f"--platform {platform}" for platform in args.platform or ()]
    return BadInput(f"no run under {args.results_dir}{' for ' + ' '.join(named) if named else ''}")


def each(items: Sequence[T], work: Callable[[T], int], name: Callable[[T], str]) -> int:
    """Process one after the other and return the worst exit code.

    An error of one run is reported, and the others go on; what ends a session ends all.
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
