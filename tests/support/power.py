"""What a disk may hold after a loss of power: a model over the journal of a `RecordingDisk`.

Of a file: what was synced, and of what came later any part: the first so many operations, the last
of them by half, or any of its blocks, the others as they were or, where nothing was, zeros; under
the new length, the old one, or one between. Of a folder: the names that were synced, and of the
changes since any selection, each whole or not at all, as POSIX leaves it (a file system with an
ordered journal gives a few of these). Content and names are independent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from tests.support.disks import (
    FOLDER,
    Acknowledged,
    Cut,
    Entry,
    FolderSynced,
    Named,
    RecordingDisk,
    Synced,
    Written,
)

BLOCK = 64
"""Bytes that the disk writes at once; small, so that a line is torn in many ways."""

Held = Mapping[Path, bytes | None]
"""A state of the disk: each file's content, None for a folder; paths from the root."""


@dataclass(slots=True)
class _File:
    synced: bytes = b""
    folded: int = 0
    since: list[Written | Cut] = field(default_factory=list)


@dataclass(slots=True)
class _Folder:
    synced: dict[str, int] = field(default_factory=dict)
    since: list[Mapping[str, int | None]] = field(default_factory=list)


def applied(content: bytes, changes: Iterable[Written | Cut]) -> bytes:
    held = bytearray(content)
    for change in changes:
        if isinstance(change, Cut):
            held = held[: change.size].ljust(change.size, b"\0")
        else:
            held = held.ljust(change.offset, b"\0")
            held[change.offset : change.offset + len(change.content)] = change.content
    return bytes(held)


def halved(change: Written | Cut) -> Written | Cut:
    if isinstance(change, Cut):
        return change
    return Written(change.inode, change.offset, change.content[: len(change.content) // 2])


def by_blocks(old: bytes, new: bytes, chosen: Callable[[int], bool], size: int) -> bytes:
    """The new content where `chosen` says so by the block's number, elsewhere the old or zeros;
    `size` bytes of it."""
    older, held = old.ljust(len(new), b"\0"), b""
    for number, at in enumerate(range(0, max(len(new), len(old)), BLOCK)):
        held += (new if chosen(number) else older)[at : at + BLOCK]
    return held[:size].ljust(size, b"\0")


class Power:
    """The journal taken up so far: what is on the disk for certain, and what may be."""

    def __init__(self, disk: RecordingDisk) -> None:
        self._root = disk.root
        self._files: dict[int, _File] = {}
        self._folders: dict[Path, _Folder] = {disk.root: _Folder()}
        self.acknowledged: list[str] = []
        for folder in disk.folders:
            self._folders[folder] = _Folder()
            self._folders[folder.parent].synced[folder.name] = FOLDER
        for inode, (path, content) in enumerate(disk.before.items(), 1):
            self._files[inode] = _File(content)
            self._folders[path.parent].synced[path.name] = inode

    def take(self, entry: Entry) -> None:
        match entry:
            case Written(inode=inode) | Cut(inode=inode):
                self._files.setdefault(inode, _File()).since.append(entry)
            case Synced(inode=inode, changes=changes):
                file = self._files.setdefault(inode, _File())
                count = max(0, changes - file.folded)
                file.synced, file.since = (
                    applied(file.synced, file.since[:count]),
                    file.since[count:],
                )
                file.folded += count
            case Named(folder=folder, names=names):
                self._folders.setdefault(folder, _Folder()).since.append(names)
            case FolderSynced(folder=folder):
                held = self._folders.setdefault(folder, _Folder())
                held.synced, held.since = self._names(held, [True] * len(held.since)), []
            case Acknowledged(what=what):
                self.acknowledged.append(what)

    def unsynced(self) -> tuple[list[Path], list[int]]:
        """Folders and files of which the disk may hold one thing or another."""
        return [path for path, held in self._folders.items() if held.since], [
            inode for inode, file in self._files.items() if file.since
        ]

    def changes(self, folder: Path) -> int:
        return len(self._folders[folder].since)

    def contents(self, inode: int, few: bool = False) -> list[bytes]:
        """Some of what a file may hold: so many of its changes, the last whole or by half, and some
        of its blocks."""
        file = self._files[inode]
        new = applied(file.synced, file.since)
        if few:
            return [
                file.synced,
                applied(file.synced, [*file.since[:-1], halved(file.since[-1])]),
                new,
            ]
        found = [applied(file.synced, file.since[:count]) for count in range(len(file.since) + 1)]
        found += [
            applied(file.synced, [*file.since[:count], halved(file.since[count])])
            for count in range(len(file.since))
        ]
        choices: list[Callable[[int], bool]] = [
            lambda n: False,
            lambda n: n % 2 == 0,
            lambda n: n % 2 == 1,
        ]
        found += [by_blocks(file.synced, new, chosen, len(new)) for chosen in choices]
        return list(dict.fromkeys(found))

    def scattered(self, inode: int, rng: random.Random) -> bytes:
        """What a file may hold of any of its blocks, under its old or new length or one between."""
        file = self._files[inode]
        new = applied(file.synced, file.since)
        size = round(
            len(file.synced) + rng.choice((0.0, rng.random(), 1.0)) * (len(new) - len(file.synced))
        )
        return by_blocks(file.synced, new, lambda _: rng.random() < 0.5, size)

    def state(self, names: Mapping[Path, Sequence[bool]], contents: Mapping[int, bytes]) -> Held:
        """What the disk holds if of each folder the changes chosen are there, and files hold what
        is given."""
        return dict(self._below(self._root, names, contents))

    def states(self, few: bool) -> Iterator[Held]:
        """Every selection of names with every one of `contents`, or of a `few` of them: none, all,
        and a torn end."""
        folders, inodes = self.unsynced()
        for names in product(
            *[product((False, True), repeat=self.changes(folder)) for folder in folders]
        ):
            for contents in product(*[self.contents(inode, few) for inode in inodes]):
                yield self.state(
                    dict(zip(folders, names, strict=True)), dict(zip(inodes, contents, strict=True))
                )

    def _below(
        self, folder: Path, names: Mapping[Path, Sequence[bool]], contents: Mapping[int, bytes]
    ) -> Iterator[tuple[Path, bytes | None]]:
        held = self._folders.get(folder, _Folder())
        chosen = names.get(folder, [True] * len(held.since))
        for name, inode in self._names(held, chosen).items():
            path = folder / name
            if inode == FOLDER:
                yield path.relative_to(self._root), None
                yield from self._below(path, names, contents)
            else:
                file = self._files.get(inode, _File())
                content = contents.get(inode, applied(file.synced, file.since))
                yield path.relative_to(self._root), content

    @staticmethod
    def _names(held: _Folder, chosen: Sequence[bool]) -> dict[str, int]:
        names: dict[str, int | None] = dict(held.synced)
        for change, taken in zip(held.since, chosen, strict=True):
            if taken:
                names |= change
        return {name: inode for name, inode in names.items() if inode is not None}


def laid_out(held: Held, root: Path) -> None:
    """Makes a folder hold a state."""
    for path, content in held.items():
        if content is None:
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
