"""A current folder that comes from somebody else: its files start no code, and get no key, in any
command.

By the console script, as a user starts it, with a server that keeps its own log of requests.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import ROOT, SHIPPED
from tests.support.planted import PROGRAM, ran, write_modules

KEY = "0123456789abcdef0123456789abcdef01234567"
RUN = ("run", "--model", "baseline/recency", *SHIPPED, "--platform", "weibo", "--limit", "2")


@dataclass
class Server:
    """Refuses every request; `log` has method, path and authorization of each."""

    url: str
    log: list[tuple[str, str, str]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            found.log.append((self.command, self.path, self.headers.get("Authorization", "")))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        found = Server(f"http://127.0.0.1:{http.server_port}")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield found
        http.shutdown()


@dataclass
class Here:
    """The current folder, and the user's home, which is elsewhere."""

    folder: Path
    home: Path

    def __call__(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), **variables}
        return subprocess.run(
            [*PROGRAM, *words],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def here(tmp_path: Path) -> Here:
    made = Here(tmp_path / "here", tmp_path / "home")
    made.folder.mkdir()
    made.home.mkdir()
    return made


def needs(library: str) -> None:
    if subprocess.run(
        [sys.executable, "-c", f"import {library}"], capture_output=True, check=False
    ).returncode:
        pytest.skip(f"no {library}: make .venv/trackers.made")


@pytest.mark.slow
def test_commands_execute_no_module_of_the_current_folder(here, server):
    """Nor do they send what a `.netrc` in it has."""
    write_modules(here.folder)
    (here.folder / ".netrc").write_text(f"machine 127.0.0.1\nlogin planted\npassword {KEY}\n")
    assert here(*RUN).returncode == 0
    for words in (
        ("report", "--name", "recency"),
        ("status",),
        ("verify",),
        ("export", "--format", "csv"),
    ):
        assert here(*words).returncode == 0, words
    assert here("fetch", "streamprofile", HF_ENDPOINT=server.url).returncode == 3
    asked = [word.replace("baseline/recency", "m") for word in RUN]
    assert here(*asked, "--api-url", f"{server.url}/v1").returncode == 3
    assert len(server.log) > 1 and {authorization for *_, authorization in server.log} == {""}
    assert ran(here.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("place", ["wandb/settings", ".wandb/settings"])
def test_settings_of_wandb_in_the_current_folder_get_no_key(place, here, server):
    """They are refused before anything is sent; those of the user's home count."""
    needs("wandb")
    settings, variables = f"[default]\nbase_url = {server.url}\n", {"WANDB_API_KEY": KEY}
    assert here(*RUN, "--no-html").returncode == 0
    planted = here.folder / place
    planted.parent.mkdir()
    planted.write_text(settings)
    refused = here("export", "--format", "wandb", **variables)
    assert (
        refused.returncode == 2 and place in refused.stderr and "WANDB_BASE_URL" in refused.stderr
    )
    assert server.log == []
    planted.unlink()
    planted.parent.rmdir()
    own = here.home / ".config" / "wandb" / "settings"
    own.parent.mkdir(parents=True)
    own.write_text(settings)
    assert here("export", "--format", "wandb", **variables).returncode == 3
    assert [authorization for *_, authorization in server.log if authorization]


@pytest.mark.slow
def test_database_of_mlflow_in_the_current_folder_gets_no_key(here, server):
    """It names a server for the files of runs; the user's own variable, with the same database,
    may."""
    needs("mlflow")
    variables = {"MLFLOW_TRACKING_TOKEN": KEY, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    assert here(*RUN, "--no-html").returncode == 0
    assert here("export", "--format", "mlflow").returncode == 0
    with closing(sqlite3.connect(here.folder / "mlflow.db")) as database:
        database.execute("UPDATE experiments SET artifact_location = ?", [f"{server.url}/0"])
        database.execute("UPDATE runs SET artifact_uri = ?", [f"{server.url}/0/1/artifacts"])
        database.commit()
    refused = here("export", "--format", "mlflow", **variables)
    assert refused.returncode == 2 and "MLFLOW_TRACKING_URI" in refused.stderr
    assert server.log == []
    variables["MLFLOW_TRACKING_URI"] = f"sqlite:///{here.folder}/mlflow.db"
    assert here("export", "--format", "mlflow", **variables).returncode == 3
    assert [authorization for *_, authorization in server.log if authorization]


def test_editable_installation_adds_no_relative_entry_to_the_import_path():
    """setuptools adds the name of its finder as an entry if a package has none of its own files of
    Python."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"][
        "find"
    ]
    assert found["namespaces"] is False
