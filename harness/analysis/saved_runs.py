"""One saved run of one subset: its files, and its benchmark with the settings that the run was made
with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

from harness.analysis.trust import check_trust
from harness.benchmark import Benchmark, kept_files
from harness.benchmarks import registry, settings
from harness.benchmarks.files import DOCUMENT_MOST, content
from harness.benchmarks.tasks import how_to_get
from harness.benchmarks.template import check_digest
from harness.chat import Asking, Structured
from harness.defaults import PARSE_RETRIES, RETRIES_MOST
from harness.errors import BadInput, reading
from harness.model import JSON
from harness.options import trusted
from harness.store.manifest import Manifest, changes, differences, share
from harness.store.run import RunFiles, value_text

ASKING_DEFAULTS: dict[str, Any] = {"structured": "json_object", "parse_retries": PARSE_RETRIES}
"""Defaults of runs from before these settings were recorded."""
ASKING_KINDS = {"structured": get_args(Structured), "parse_retries": int}

Rows = Literal["steps", "users", "responses"]
"""What a flat row of a run is of."""


@dataclass(frozen=True, slots=True)
class SavedRun:
    """`manifest` is as read when the runs were found; to change a run, read it again under its
    lock.

    `trust` allows code of the run's folder to run. `named` is the benchmark that the command named.
    """

    files: RunFiles
    manifest: Manifest
    trust: bool = False
    named: str | None = None

    @property
    def name(self) -> str:
        return self.files.folder.name

    @property
    def label(self) -> str:
        """Return the name of the run and its subset, for messages."""
        return f"{self.name}, {self.files.subset}"

    @property
    def expected_users(self) -> int:
        """Return how many users the run selected; before it has counted them, what its share comes
        to."""
        manifest = self.manifest
        return manifest.counts.get("users") or round(self.share * manifest.tasks["users"])

    @property
    def share(self) -> float:
        return share(self.manifest.selection, self.manifest.tasks["users"])

    @property
    def is_known(self) -> bool:
        """Return whether this user has run its code, or used its prompt, on this machine before."""
        return trusted.remembers(trusted.code_of(self.manifest), os.environ)

    @property
    def has_code(self) -> bool:
        """Return whether playing the run runs code from its folder: a Python file, or what its
        benchmark declares.

        The benchmark makes its settings of the same identity, so a manifest that lies makes it run
        nothing else.
        """
        names = [*self._prompt_files, self.manifest.provenance.get("source") or ""]
        if any(Path(name).suffix == ".py" for name in names):
            return True
        return self.benchmark_class.imports.runs_code(self.manifest.identity["settings"])

    def _check_trust(self) -> None:
        if not self.is_known:
            check_trust(self.name, self.files.folder, self._digests, trust=self.trust)

    # Files

    @property
    def _digests(self) -> dict[str, str]:
        """SHA-256 by name of the kept files of benchmark, prompt or agent."""
        return self.manifest.identity["files"]

    @property
    def _prompt_files(self) -> list[str]:
        """Return the names of the kept files of prompt or agent, the main one first."""
        return [name for name in self._digests if not name.startswith(registry.KEPT)]

    @property
    def _copies(self) -> list[Path]:
        """Return the copies of prompt or agent in the run's folder, the main file's first."""
        paths = map(self.files.folder.joinpath, self._prompt_files)
        return [path for path in paths if path.is_file()]

    @property
    def _benchmark_copy(self) -> Path | None:
        """Return the folder's copy of the benchmark's file, None for a shipped one."""
        for name in self._digests:
            if name.startswith(registry.KEPT):
                return self.files.folder / name
        return None

    @property
    def _sources(self) -> dict[str, str]:
        """Return the files that settings of a plug-in named, by field; none if the manifest is
        older than this."""
        return self.manifest.provenance.get("sources", {})

    def _checked(self, copy: Path) -> bytes:
        """Return the content of a copy. Raise `BadInput` if it has changed."""
        with reading(copy):
            data = content(copy, DOCUMENT_MOST)
        check_digest(copy, data, self._digests)
        return data

    def source(self, allowed: frozenset[str] = frozenset()) -> Path | None:
        """Return the run's prompt or agent: the folder's copy, or the original file.

        The latter is taken of a known run alone, if there is no copy, or what changed is `allowed`.
        """
        source = self.manifest.provenance.get("source")
        if not source:
            return None
        copies = [copy for copy in self._copies if _is_copy(copy, Path(source))]
        # The manifest of a run that is not known may name any file of this machine.
        if self.is_known and (not copies or allowed.issuperset(self.changed)):
            return Path(source)
        if not copies:
            raise BadInput(
                f"{self.files.folder} has no copy of the run's prompt or agent {Path(source).name}:"
                " add it"
            )
        for copy in self._copies:
            self._checked(copy)
        return copies[0]

    @property
    def changed(self) -> list[str]:
        """Return the files of prompt or agent, as identity names them, that have changed since the
        run was made.

        None of a run that is not known, whose manifest may name any file.
        """
        main = self.manifest.provenance.get("source")
        if not main or not self.is_known:
            return []
        changed = []
        for copy, original in self._originals(Path(main)).items():
            if not _same(copy, original):
                changed.append(f"files.{copy.name}")
        return changed

    def _originals(self, main: Path) -> dict[Path, Path]:
        """Return the original of each copy of prompt or agent, by the copy; `main` is that of the
        main file."""
        originals = dict[Path, Path]()
        for field, source in self._sources.items():
            name = settings.kept_name(field, Path(source))
            if name in self._prompt_files:
                originals[self.files.folder / name] = Path(source)
        if self._sources:
            return originals
        # A manifest of before sources were recorded has the main file's alone.
        for copy in self._copies:
            originals[copy] = main
            if not _is_copy(copy, main):
                # Other files of an agent are next to it; their copies are named FIELD_NAME.
                originals[copy] = main.with_name(copy.name.partition("_")[2])
        return originals

    @property
    def changed_benchmark(self) -> list[str]:
        """Return the benchmark's file, as identity names it, if it has changed since the run was
        made."""
        source = self.manifest.provenance.get("benchmark")
        copy = self._benchmark_copy
        if not source or ":" in source or copy is None:  # a module's or a shipped one
            return []
        # The manifest of a run that is not known may name any file.
        if self.named or not self.is_known or _same(copy, Path(source)):
            return []
        return [f"files.{copy.name}"]

    # Tasks

    @property
    def _tasks_file(self) -> str:
        subsets = self.benchmark_class.subsets
        if self.files.subset not in subsets:
            raise BadInput(
                f"{self.files.manifest}: {self.manifest.identity['benchmark']} has no such subset"
            )
        return subsets[self.files.subset]

    def _folder(self, folder: Path | None) -> Path:
        """Return the tasks folder: the named one, else the original one."""
        if folder is not None:
            return folder
        path = Path(self.manifest.tasks["path"])
        name = self._tasks_file
        depth = len(Path(name).parts)
        above = path.parents[:depth]
        if len(above) < depth:
            raise BadInput(
                f"{self.files.manifest}: field tasks.path: expected the path of a tasks file"
            )
        file_in = self.benchmark_class.task_files.file_in
        for candidate in above:
            if file_in(candidate, name) == path:
                return candidate
        return above[-1]

    def tasks(self, folder: Path | None) -> Path:
        """Return its tasks file, in the named folder if any. Raise `BadInput` if it does not
        exist."""
        path = self.benchmark_class.task_files.file_in(self._folder(folder), self._tasks_file)
        # Unlike the path's own method this fails for no name, however long.
        if not os.path.exists(path):
            raise BadInput(
                f"its tasks file {path} does not exist: name the folder that has it with"
                f" --tasks-dir; or {how_to_get(self.benchmark_class)}"
            )
        return path

    # Benchmark

    @property
    def benchmark_class(self) -> type[Benchmark]:
        """Return the class that the run was made with: a shipped one, the one that the command
        named, or the folder's copy, which runs only if it is known or trusted. Raise `BadInput`."""
        name = self.manifest.identity["benchmark"]
        copy = self._benchmark_copy
        if self.named is not None:
            cls = registry.find(self.named)
            source = self.named
        elif registry.is_shipped(name):
            return registry.find(name)
        elif copy is None:
            raise BadInput(
                f"{self.files.manifest}: field identity.benchmark: unknown benchmark"
                f" {value_text(name)}"
            )
        else:
            cls = self._copied_class(copy)
            source = f"its copy {copy.name}"
        if cls.name != name:
            raise BadInput(f"{self.name} is a run of {name}, and {source} is {cls.name}")
        return cls

    def _copied_class(self, copy: Path) -> type[Benchmark]:
        """Return the class of the folder's copy, or of a known run that of its module."""
        self._check_trust()
        spec = self.manifest.provenance.get("benchmark") or copy.name
        if ":" in spec and self.is_known:
            return registry.find(spec)
        name = copy.name.removeprefix(registry.KEPT)
        return registry.of_file(spec, name, self._checked(copy))

    def benchmark(
        self, folder: Path | None, *, allowed: frozenset[str] = frozenset(), play: bool = True
    ) -> Benchmark:
        """Return the benchmark with the settings of this run; its tasks may be in another folder.

        `allowed` names the files of benchmark, prompt or agent that may be taken as they are now.
        Without `play` it only measures saved answers, and runs no code of a prompt or agent. With
        it, code that is not known needs trust.
        """
        cls = self.benchmark_class
        identity = self.manifest.identity["settings"]
        if allowed.intersection(self.changed_benchmark):
            cls = registry.find(self.manifest.provenance["benchmark"])
        self.tasks(folder)
        files = self._named_files(cls, allowed, play=play)
        if play and self.has_code:
            self._check_trust()
        copies = {copy.resolve() for copy in self._copies}
        are_copies = bool(files) and copies.issuperset(path.resolve() for path in files.values())
        return cls(
            settings.of_run(cls, identity, files),
            asking=_asking(identity, self.manifest),
            folder=self._folder(folder),
            recorded=None if play else identity,
            digests=self._digests if are_copies else None,
        )

    def measuring(self, folder: Path | None) -> Benchmark:
        """Return the benchmark for saved answers alone; it needs no tasks, unless it measures with
        other files."""
        cls = self.benchmark_class
        if cls.task_files.data_files:
            return self.benchmark(folder, play=False)
        identity = self.manifest.identity["settings"]
        files = self._named_files(cls, frozenset(), play=False)
        return cls(
            settings.of_run(cls, identity, files),
            asking=_asking(identity, self.manifest),
            recorded=identity,
        )

    def as_it_was(self, folder: Path | None, *, play: bool) -> Benchmark:
        """Return the benchmark on the run's own data. Raise `BadInput` if the data has changed."""
        benchmark = self.benchmark(folder, play=play)
        changed = differences(self.manifest.identity["settings"], benchmark.configuration.identity)
        if changed:
            raise BadInput(
                f"the run was made with other data ({'; '.join(changes(changed))}): restore it, or"
                " name it with --tasks-dir"
            )
        origin = benchmark.origin
        if origin is None:
            return benchmark
        # A plug-in's own code decides the values, as its data does.
        for name, data in kept_files(benchmark).items():
            if self._digests.get(name) != sha256(data).hexdigest():
                source = origin.spec if name == origin.kept else name
                raise BadInput(f"{source} has changed since the run was made")
        return benchmark

    def _named_files(
        self, cls: type[Benchmark], allowed: frozenset[str], *, play: bool
    ) -> dict[str, Path]:
        """Return the files that settings name, by field. A plug-in needs them to measure, too:
        their code needs trust."""
        fields = settings.file_fields(cls.Settings)
        if cls.origin is not None:
            return self._plugin_files(fields, allowed)
        source = self.source(allowed) if play else None
        if source is None:
            return {}
        main = self._prompt_files[0]
        matching = [name for name in fields if main.startswith(f"{name}_")]
        return {[*matching, *fields][0]: source}

    def _plugin_files(self, fields: Iterable[str], allowed: frozenset[str]) -> dict[str, Path]:
        """Return the files that these fields of a plug-in's settings name, of those that were
        kept."""
        paths = {**self.manifest.identity["settings"], **self._sources}
        files = dict[str, Path]()
        for field in fields:
            path = paths.get(field)
            if not isinstance(path, str):
                continue
            name = settings.kept_name(field, Path(path))
            if name not in self._digests:
                continue
            if self.has_code:
                self._check_trust()
            files[field] = self._setting_file(field, name, allowed)
        return files

    def _setting_file(self, field: str, name: str, allowed: frozenset[str]) -> Path:
        """Return the folder's copy, or the original of a known run if that is `allowed` or there is
        no copy."""
        copy = self.files.folder / name
        original = self._sources.get(field)
        if self.is_known and original and (f"files.{name}" in allowed or not copy.is_file()):
            return Path(original)
        if not copy.is_file():
            raise BadInput(
                f"{self.files.folder} has no copy {name} of the file that the run was given: add it"
            )
        self._checked(copy)
        return copy


def _asking(identity: JSON, manifest: Manifest) -> Asking:
    """Return how an earlier run sent its requests. Raise `BadInput`."""
    values = dict(ASKING_DEFAULTS)
    for name, kind in ASKING_KINDS.items():
        if name in identity:
            values[name] = settings.checked(identity, name, kind)
    if not 0 <= values["parse_retries"] <= RETRIES_MOST:  # each is paid for
        raise BadInput(
            "the run's manifest: field identity.settings.parse_retries: expected a number from 0"
            f" to {RETRIES_MOST}"
        )
    roles = frozenset(manifest.identity.get("roles", ()))
    return Asking(values["structured"], values["parse_retries"], roles)


def _is_copy(copy: Path, named: Path) -> bool:
    """Return whether a copy is of the file named; copies have the name of their setting in
    front."""
    return copy.name == named.name or copy.name.endswith(f"_{named.name}")


def _same(copy: Path, original: Path) -> bool:
    try:
        return content(copy, DOCUMENT_MOST) == content(original, DOCUMENT_MOST)
    except OSError:  # it is missing or unreadable
        return False
