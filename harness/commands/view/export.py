"""`view --export`: the pages as files of one folder, with relative links, to be hosted anywhere.

They are those that can be reached from the overview without a form: of each run its report, and as many users as asked
for. Selections, and runs side by side, need the server.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.commands.view.reading import Chosen, Folder
from harness.commands.view.server import ASSETS, asset
from harness.commands.view.site import USERS, NotThere, Site
from harness.errors import BadInput
from harness.store import atomic

PAGE = {"": {"page"}, "run": {"name", "subset", "part"}, "users": {"name", "subset", "page"}}
PAGE["user"] = {"name", "subset", "user", "part"}
"""The views that are written, and what their addresses are made of."""
NOWHERE = re.compile(r'<a (?:[^>]*? )?href=""[^>]*>(.*?)</a>', re.DOTALL)
"""A link to what is not written: its text stays."""
View = tuple[str, tuple[tuple[str, str], ...]]


class _Files:
    """The files that links lead to, in the order in which they were met. `most` users of each run are among them."""

    def __init__(self, folder: Folder, most: int) -> None:
        self._folder, self._most = folder, most
        self._names: dict[View, str] = {}
        self.left = deque[View]()

    def link(self, view: str, **arguments: object) -> str:
        """Return the file of a view, empty for one that is not written."""
        if view in ASSETS:
            return view
        given = {key: str(value) for key, value in arguments.items() if key in PAGE.get(view, ())}
        given = {key: value for key, value in given.items() if not (key in ("page", "part") and value == "1")}
        if view not in PAGE or not self._is_within(view, given):
            return ""
        wanted: View = view, tuple(sorted(given.items()))
        if wanted not in self._names:
            digest = hashlib.blake2b(repr(wanted).encode("utf-8", "replace"), digest_size=8).hexdigest()
            self._names[wanted] = f"{view}-{digest}.html" if view or given else "index.html"
            self.left.append(wanted)
        return self._names[wanted]

    def name(self, view: View) -> str:
        return self._names[view]

    def _is_within(self, view: str, given: Mapping[str, str]) -> bool:
        if view == "users":
            return (int(given.get("page", "1")) - 1) * USERS < max(1, self._most)
        if view == "user":
            run = self._folder.run(given["name"], given["subset"])
            numbers: Sequence[int] = run.users.numbers_of(given["user"]) if run else ()
            return bool(run) and (numbers[0] if numbers else 0) < self._most
        return True


def write(chosen: Chosen, target: Path, most: int, *, force: bool) -> int:
    """Write the pages of a folder; return their number. Raise `BadInput` for a folder that has files."""
    if not force and target.is_dir() and any(target.iterdir()):
        raise BadInput(f"{target} is not empty: name another folder, or replace files in it with --force")
    atomic.make_folder(target)
    written = 0
    for name, content in pages(chosen, most):
        atomic.write(target / name, content)
        written += name.endswith(".html")
    return written


def pages(chosen: Chosen, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield files with their content."""
    folder = Folder(chosen)
    to = _Files(folder, most)
    site = Site(folder, to.link, is_static=True)
    yield from ((name, asset(name)) for name in ASSETS)
    to.link("")
    while to.left:
        wanted = to.left.popleft()
        view, given = wanted
        try:
            page = site.page(view, {key: [value] for key, value in given})
        except NotThere:
            continue
        yield to.name(wanted), NOWHERE.sub(r"\1", page.decode()).encode()
