"""Get a benchmark's files from the data set that it declares, by `huggingface_hub`.

Guarantee: a file gets its name only once its bytes have the checksum that the hub lists: the
library checks lengths alone. A file that differs from the data set is never replaced, unless a
`fetch` made it. What an interrupted download had of a file is lost.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import HfApi, RepoFile
from huggingface_hub.utils.sha import git_hash

from harness.benchmark import Benchmark, files_needed
from harness.benchmarks.files import sha256_of
from harness.errors import BadInput, EndpointStopped
from harness.store.atomic import make_folder, write
from harness.store.fetched import Source, load
from harness.ui.streams import show


def fetch(cls: type[Benchmark], subsets: Sequence[str], folder: Path, revision: str | None) -> None:
    """Get the files of some subsets into a tasks folder.

    Without a `revision` it is the commit that the folder has files of, or else the data set's main
    branch. Raise `BadInput` before any download if the data set does not have a file, or if one
    differs that no `fetch` made; errors of the library as they are.
    """
    data_set = cls.task_files.data_set
    record = load(folder)
    latest = record.last(data_set)
    api = HfApi(os.environ.get("HF_ENDPOINT") or None)
    if revision is None:
        revision = "main"
        if latest:
            revision = latest.commit
    commit = str(api.dataset_info(data_set, revision=revision).sha)
    listing = [*api.list_repo_tree(data_set, recursive=True, revision=commit, repo_type="dataset")]
    files = {
        cls.task_files.file_in(folder, name): _file_for(name, listing)
        for subset in subsets
        for name in files_needed(cls, subset)
    }
    for path, file in files.items():
        if path.is_file() and not _has_checksum(path, file) and not record.last(sha256_of(path)):
            raise BadInput(
                f"{path}: not as in {data_set} at commit {commit}, and not made by `fetch`: move it"
                " away, or name another folder with --tasks-dir"
            )
    with TemporaryDirectory() as downloads:
        for path, file in files.items():
            if not _has_checksum(path, file):
                download = api.hf_hub_download(
                    data_set,
                    file.path,
                    revision=commit,
                    repo_type="dataset",
                    local_dir=downloads,
                )
                received = Path(download)
                if not _has_checksum(received, file):
                    raise EndpointStopped(
                        f"{file.path} of {data_set} came with bytes that do not have the checksum"
                        " of its listing: try again later, or another address (HF_ENDPOINT)"
                    )
                make_folder(path.parent)
                write(path, received.read_bytes(), shared=True)
            name = path.relative_to(folder).as_posix()
            record.files.pop(name, None)  # the last one that was fetched is at the end
            record.files[name] = Source(data_set, commit, sha256_of(path))
            record.save(folder)
            show(f"{path}: {file.size:,} bytes")
    show(f"data set {data_set}, commit {commit}")


def _file_for(name: str, listing: Sequence[object]) -> RepoFile:
    """Return the file of a data set that is meant by a name below the tasks folder: the one whose
    path ends most like it, and of several the one in the fewest folders. Raise `BadInput` for none,
    and for two."""
    best = (1, -99)  # the name, in any folder, is the least
    matching = list[RepoFile]()
    for file in listing:
        if not isinstance(file, RepoFile) or ".." in file.path:
            continue
        reversed_names = [f"/{name}"[::-1], f"/{file.path}"[::-1]]
        same_steps = os.path.commonprefix(reversed_names).count("/")  # noqa: RUF071
        rank = same_steps, -file.path.count("/")
        if rank > best:
            best = rank
            matching.clear()
        if rank == best:
            matching.append(file)
    if len(matching) != 1:
        raise BadInput(
            f"the data set has not one {name} but {[file.path for file in matching]}: name another"
            " --revision"
        )
    return matching[0]


def _has_checksum(path: Path, file: RepoFile) -> bool:
    """Return whether a file is there with the bytes of the data set. Only files in LFS are
    large."""
    if not path.is_file():
        return False
    if file.lfs:
        return sha256_of(path) == file.lfs.sha256
    return git_hash(path.read_bytes()) == file.blob_id
