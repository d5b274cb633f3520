"""`view --export`: the pages as files of one folder, with relative links, to be hosted anywhere.

They are those that can be reached from the overview without a form: of each run its report, and as
many users as asked for. Selections, and runs side by side, need the server.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from harness.commands.view.reading import Chosen, Folder
from harness.commands.view.server import ASSETS, asset
from harness.commands.view.site import USERS, NotThere, Site
from harness.errors import BadInput
from harness.store import atomic

PAGE = {"": {"page"}, "run": {"name", "subset", "part"}, "users": {"name", "subset", "page"}}
PAGE["user"] = {"name", "subset", "user", "part"}
"""The views that are written, and what their addresses are made of."""


class _Files:
    """The files that links lead to, in the order in which they were met.

    Of each run the pages of the first `max_users` users are among them.
    """

    def __init__(self, folder: Folder, max_users: int) -> None:
        self._folder = folder
        self._max_users = max_users
        self._known = set[str]()
        self.left = deque[tuple[str, str, dict[str, str]]]()

    def link(self, view: str, **arguments: object) -> str:
        """Return the file of a view, empty for one that is not written."""
        if view in ASSETS:
            return view
        if view not in PAGE:
            return ""
        about = {key: str(value) for key, value in arguments.items() if key in PAGE[view]}
        # A first page or part has one file, whether its number is given or not.
        for key in ("page", "part"):
            if about.get(key) == "1":
                del about[key]
        if not self._is_within(view, about):
            return ""
        content = repr((view, sorted(about.items()))).encode("utf-8", "replace")
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        # A hash, as a name of a run or user may be no name of a file.
        name = f"{view}-{digest}.html" if view or about else "index.html"
        if name not in self._known:
            self._known.add(name)
            self.left.append((name, view, about))
        return name

    def _is_within(self, view: str, about: Mapping[str, str]) -> bool:
        """Return whether a page is about the first users, or about none."""
        if view == "users":
            first_row = (int(about.get("page", "1")) - 1) * USERS
            return first_row < max(1, self._max_users)
        if view == "user":
            run = self._folder.run(about["name"], about["subset"])
            if run is None:
                return False
            numbers = [*run.users.numbers_of(about["user"]), 0]  # 0: a user that only failed
            return numbers[0] < self._max_users
        return True


def write(chosen: Chosen, target: Path, max_users: int, *, force: bool) -> int:
    """Write the pages of a folder; return their number. Raise `BadInput` for a folder that has
    files."""
    if not force and target.is_dir() and any(target.iterdir()):
        raise BadInput(
            f"{target} is not empty: name another folder, or replace files in it with --force"
        )
    atomic.make_folder(target)
    written = 0
    for name, content in pages(chosen, max_users):
        atomic.write(target / name, content)
        written += name.endswith(".html")
    return written


def pages(chosen: Chosen, max_users: int) -> Iterator[tuple[str, bytes]]:
    """Yield files with their content."""
    folder = Folder(chosen)
    to = _Files(folder, max_users)
    site = Site(folder, to.link, is_static=True)
    yield from ((name, asset(name)) for name in ASSETS)
    to.link("")
    while to.left:
        name, view, about = to.left.popleft()
        with suppress(NotThere):
            yield name, site.page(view, {key: [value] for key, value in about.items()})
