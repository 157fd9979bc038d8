"""The runs of a report: their cells, what was published beside them, and what they lack."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from normscale.bench.experiments.measurement import Measurement, ScoredPair
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.run_folder import RunFolder, read_results
from normscale.bench.report.paired import Resampled, resample
from normscale.bench.report.published import Additions, PublishedValue, Reference
from normscale.bench.report.scoreboard import Average, Scoreboard
from normscale.errors import InvalidInput

Folder = str | os.PathLike[str]


class ReportedRun(NamedTuple):
    """What a report needs of a run: one folder, or several that hold networks of one kind."""

    title: str
    run: RunFolder
    networks: Mapping[int, tuple[RunFolder, int]]
    """By seed in this report: the folder, and the seed there."""
    board: Scoreboard
    reference: Reference
    """What was published; empty if it shares no OoD set with the run."""
    accuracies: Mapping[int, float]
    resampled: Resampled | None = None
    why_not_resampled: str = ""

    @property
    def shared(self) -> tuple[str, ...]:
        """The OoD sets that are compared with the reference: those that it has too, or all if there is none."""
        known = {ood_set for ood_set, _, _ in self.reference.values}
        return tuple(name for name in self.board.block.ood_sets if not known or name in known)

    def average(self, metric: str, method: str) -> Average:
        """Of a method over the shared OoD sets."""
        return self.board.average(metric, method, self.shared)

    def published(self, metric: str, method: str) -> PublishedValue | None:
        """The reference's mean over the shared OoD sets, of its means and of its ±; None if it lacks one of them."""
        printed = [self.reference.values.get((name, method, metric)) for name in self.shared]
        known = [value for value in printed if value is not None]
        if not known or len(known) < len(printed):
            return None
        return PublishedValue(fmean(value.mean for value in known), fmean(value.std for value in known))

    def scores(self, seed: int, ood_set: str, method: str) -> ScoredPair:
        """The scores behind a cell."""
        run, own = self.networks[seed]
        return run.load_cell(own, ood_set, method)[1]


def read_runs(
    folders: Sequence[Folder],
    additions: Additions = Additions(),  # noqa: B008 - a tuple
    *,
    as_seeds: bool = False,
    resamples: int = 1000,
) -> list[ReportedRun]:
    """Read runs, finished or not; of each, ``settings.json`` and the files of results are enough.

    ``as_seeds`` takes runs with the same in-distribution set as networks of one run. Rows are resampled where the
    scores are on disk and ``comparisons.json`` is not of these cells.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise InvalidInput("a run was named twice; name every folder once.")
    experiments: dict[object, list[RunFolder]] = {}
    for run in map(RunFolder.open, folders):
        experiments.setdefault(run.plan.in_set if as_seeds else run.path, []).append(run)
    first = [experiment[0] for experiment in experiments.values()]
    titles = distinct_titles(
        [additions.groups.set_titles.get(run.plan.in_set, run.plan.in_set) for run in first],
        [run.plan.name for run in first],
        [run.path.resolve().name for run in first],
        [os.fspath(run.path) for run in first],
    )
    reported = []
    for experiment, title in zip(experiments.values(), titles, strict=True):
        read, has_scores = _read(experiment, title, additions)
        reported.append(_with_resampled(read, len(experiment) == 1, has_scores, resamples))
    return reported


def _read(runs: Sequence[RunFolder], title: str, additions: Additions) -> tuple[ReportedRun, bool]:
    """A run, and whether the scores behind its cells are there."""
    first, has_scores = runs[0], True
    cells: list[Measurement] = []
    networks: dict[int, tuple[RunFolder, int]] = {}
    accuracies: dict[int, float] = {}
    for run in runs:
        own_cells, own_accuracies, with_scores = _cells_of(run)
        has_scores = has_scores and with_scores
        for seed in dict.fromkeys([*(cell.seed or 0 for cell in own_cells), *own_accuracies]):
            new = seed if len(runs) == 1 else len(networks)
            networks[new] = run, seed
            cells += [cell._replace(seed=new) for cell in own_cells if (cell.seed or 0) == seed]
            accuracies |= {new: own_accuracies[seed]} if seed in own_accuracies else {}
    if len(runs) > 1:
        _require_same_rows(cells, title)
    board = Scoreboard(cells, first.plan.subject, trained=bool(first.plan.network))
    reference = additions.reference(first) or Reference()
    if not {ood_set for ood_set, _, _ in reference.values} & set(board.ood_sets):
        reference = Reference()
    return ReportedRun(title, first, networks, board, reference, accuracies), has_scores


def _with_resampled(read: ReportedRun, alone: bool, has_scores: bool, resamples: int) -> ReportedRun:
    """The run with the comparisons that were kept, if they are of its cells, or with new ones."""
    kept = Resampled.load(read.run) if alone else None
    if kept is not None and kept.fits(read.board) and (kept.intervals or not has_scores):
        return read._replace(resampled=kept)
    if not has_scores or not resamples:
        why = "no comparison of them was recorded" if kept is None else "the comparisons kept are of other cells"
        return read._replace(why_not_resampled=f"its scores are not there, and {why}")
    made = resample(read.board, read.scores, resamples=resamples)
    if alone:
        made.save(read.run)
    return read._replace(resampled=made)


def _cells_of(run: RunFolder) -> tuple[list[Measurement], dict[int, float], bool]:
    """The cells of a run, accuracies by seed, and whether the scores are there."""
    cells = run.cells()
    if cells:
        return cells, accuracies_of(run), True
    cells, accuracies = read_results(run.results)
    if not cells:
        raise InvalidInput(
            f"{os.fspath(run.path)!r} has neither finished cells nor results, so there is nothing to report of it. Run "
            f"`normscale bench -o {os.fspath(run.path)}` again; it goes on where it stopped. Or leave it out."
        )
    return cells, accuracies, False


def _require_same_rows(cells: Sequence[Measurement], title: str) -> None:
    """Refuse networks that were measured on other rows."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for cell in cells:
        sizes.setdefault(cell.ood_set, set()).add((cell.n_id, cell.n_ood))
    for name, pairs in sizes.items():
        if len(pairs) > 1:
            texts = " and ".join(f"{n_id} + {n_ood}" for n_id, n_ood in sorted(pairs))
            raise InvalidInput(
                f"the networks of {title} were measured on other rows of {name} ({texts}), so they are not seeds of "
                "one experiment. Report them without --as-seeds."
            )


def accuracies_of(run: RunFolder) -> dict[int, float]:
    """Test accuracy by seed: as training found it or, without a record of that, of the outputs on the test set."""
    accuracies = {}
    for seed in run.plan.seeds:
        value = run.training(seed).get("test_accuracy")
        if value is None and run.has_outputs(seed, "test", ["logits"]):
            outputs = run.outputs(seed, "test")
            value = outputs.accuracy if outputs.labels is not None and (outputs.labels >= 0).any() else None
        if value is not None:
            accuracies[seed] = float(value)
    return accuracies


def distinct_titles(titles: Sequence[str], *further: Sequence[str]) -> list[str]:
    """Titles, those that occur more than once with the first of further names that makes them distinct."""
    distinct = list(titles)
    for names in further:
        often = Counter(distinct)
        both = zip(distinct, titles, names, strict=True)
        distinct = [one if often[one] == 1 else f"{title} ({name})" for one, title, name in both]
    return distinct


def n_unfinished(one: ReportedRun, ood_sets: Sequence[str]) -> int:
    """How many cells on these OoD sets are not there yet; a method that failed is not waited for."""
    plan = one.run.plan
    if not plan.network:  # outputs of somebody's own were all measured when they were written
        return 0
    failed = {(method, seed) for seed in plan.seeds for method in one.run.failures(seed)}
    planned = [(method, seed) for method in plan.methods for seed in plan.seeds if (method, seed) not in failed]
    return sum((method, name, seed) not in one.board.cells for method, seed in planned for name in ood_sets)


def not_measured(one: ReportedRun, ood_set: str) -> list[str]:
    """Methods of the plan that lack a cell on an OoD set."""
    return [name for name in one.run.plan.methods if one.board.seeds_of(name, ood_set) != one.board.seeds]


def gaps(one: ReportedRun) -> list[str]:
    """What a run lacks, and why."""
    missing, board, plan = one.run.missing(), one.board, one.run.plan
    why = {name: text for seed in plan.seeds for name, text in one.run.failures(seed).items()}
    sentences = [f"Missing: {name} ({reason})." for name, reason in missing.items() if name not in board.ood_sets]
    available = [name for name in plan.ood if name in board.ood_sets or name not in missing]
    if to_come := n_unfinished(one, available):
        n_done = sum(key[0] in plan.methods for key in board.cells)
        sentences.append(f"Not finished: {n_done} of {n_done + to_come} cells are there.")
    lost = dict.fromkeys(method for name in available for method in not_measured(one, name) if method in why)
    sentences += [f"Without {title_of(method)}: {why[method]}" for method in lost]
    if one.why_not_resampled:
        sentences.append(f"No comparison row by row: {one.why_not_resampled}.")
    if len(board.seeds) == 1 and board.trained:
        sentences.append("One network: nothing says how much another training would change the numbers.")
    return sentences
