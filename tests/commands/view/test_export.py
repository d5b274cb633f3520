"""`view --export`: files that lead to one another and to nothing else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.support.commands import execute

pytestmark = pytest.mark.slow


def exported(results: Path, target: Path, *more: str) -> dict[str, str]:
    execute(results, "view", "--export", str(target), *more)
    return {path.name: path.read_text(encoding="utf-8") for path in target.glob("*")}


def test_every_link_leads_to_a_file_of_the_folder(results, tmp_path):
    """There is no form, no token and no path of this machine's server."""
    files = exported(results, tmp_path / "site")
    pages = {name: text for name, text in files.items() if name.endswith(".html")}
    met = set[str]()
    for text in pages.values():
        found = re.findall(r'(?:href|src)="([^"]*)"', text)
        met |= {one for one in found if one != "data:,"}
        assert "<form" not in text and "data-live" not in text and "token=" not in text
    assert met == files.keys()
    assert "index.html" in pages and len(pages) > 2 * 40 + 5


def test_no_more_users_are_written_than_asked_for(results, tmp_path):
    """Their rows stay in the list, without a link."""
    files = exported(results, tmp_path / "site", "--users", "3")
    assert sum(name.startswith("user-") for name in files) == 4 * 3
    [page] = [
        text
        for name, text in files.items()
        if name.startswith("users-") and "users: random" in text
    ]
    assert page.count('<th scope="row"') == 40 and page.count('href="user-') == 3


def test_folder_with_files_is_refused_unless_forced(results, tmp_path):
    (tmp_path / "mine").write_text("kept")
    execute(results, "view", "--export", str(tmp_path), code=2)
    assert not (tmp_path / "index.html").exists()
    execute(results, "view", "--export", str(tmp_path), "--force", "--users", "0")
    assert (tmp_path / "mine").read_text() == "kept" and (tmp_path / "index.html").exists()


def test_nothing_is_written_through_what_has_a_files_name(results, tmp_path):
    """A link and a pipe are replaced; the file that the link leads to stays, and nobody waits for
    the pipe's reader."""
    site, theirs = tmp_path / "site", tmp_path / "theirs"
    site.mkdir()
    theirs.write_text("kept")
    (site / "index.html").symlink_to(theirs)
    (site / "index.html.new").symlink_to(theirs)
    os.mkfifo(site / "view.js")
    assert "Runs" in exported(results, site, "--force", "--users", "0")["index.html"]
    assert theirs.read_text() == "kept"
    assert not (site / "index.html").is_symlink() and (site / "view.js").is_file()


@pytest.mark.parametrize("posts", [False, True])
def test_posts_are_written_only_on_request(results, tmp_path, posts):
    files = exported(results, tmp_path / "site", *(["--with-posts"] if posts else []))
    assert any("Request 1 of" in text for text in files.values()) is posts
