"""Write pages: those of the runs that `report` is called for, and of new reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from harness import defaults
from harness.analysis import selection
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark
from harness.benchmarks import registry
from harness.commands.report import label, made, read, show
from harness.engine.files import Reported, index_file
from harness.errors import BadInput, HarnessError
from harness.feature import foreign_of
from harness.features.pages import ALL, SAMPLE, Pages, is_without
from harness.reporting import pages
from harness.reporting.outputs import check_free
from harness.store.files import RunFiles
from harness.store.manifest import Manifest, load
from harness.store.tasks import TaskIndex
from harness.ui.streams import tell


def reported(args: Pages, run: Reported, say: Callable[[str], None]) -> None:
    """Write the page of a new report, but of a run that was begun without."""
    manifest = load(run.files.manifest)
    if not args.html or (manifest and is_without(manifest)):
        return
    name = f"{run.files.folder.name}, {run.files.subset}"
    if pages.attempt(partial(pages.write_page, run, pages.PageOptions()), name):
        say(f"page: {run.files.report('html')}")


def execute(args: Any) -> int:
    """Write the pages of the runs that `report` is called for."""
    if args.out:
        check_free(args.out, force=args.force)
    found, code = made(args)
    if args.out and len(found) > 1:
        raise BadInput(f"--out is for one page, and these are {len(found)}: name one and its --subset")
    return max(code, selection.each(found, lambda files: _write(files, args), label)[1])


def _write(files: RunFiles, args: Any) -> None:
    report, manifest = read(files), load(files.manifest)
    if manifest is None and (of := foreign_of(files)) and not of.is_current:
        raise BadInput(of.remedy)
    all_users = args.out and args.out.with_name(files.all_users.name)
    if all_users and args.users == ALL:
        check_free(all_users, force=args.force)
    seed = manifest.selection["sample_seed"] if manifest else defaults.SAMPLE_SEED
    chosen = pages.PageOptions(SAMPLE if args.users in (None, ALL) else args.users, args.with_posts, patient=True)
    with ExitStack() as held:
        try:
            benchmark, index = _opened(files, manifest, args)
            held.callback(index.close)
            source = Reported(files, report, seed, benchmark, index)
        except HarnessError as error:
            tell(f"{label(files)}: without its tasks ({error})")
            source = Reported(files, report, seed)
        made = [pages.write_page(source, chosen, args.out)]
        if args.users == ALL:
            made.append(pages.write_all(source, chosen, all_users))
    for path in made:
        show(path)


def _opened(files: RunFiles, manifest: Manifest | None, args: Any) -> tuple[Benchmark, TaskIndex]:
    """Return a run's benchmark and tasks. Raise `BadInput` if they are missing or have changed."""
    if manifest is not None:
        run = SavedRun(files, manifest, args.trust, args.benchmark)
        benchmark = run.as_it_was(args.tasks_dir, play=False)
        tasks = run.tasks(args.tasks_dir)
        return benchmark, index_file(benchmark, files.subset, tasks, args.results_dir, manifest.selection)
    cls, _ = registry.importing(files.subset)
    made = cls()
    tasks = made.task_files.file_in(args.tasks_dir or defaults.TASKS_FOLDER, made.subsets[files.subset])
    return made, index_file(made, files.subset, tasks, args.results_dir)
