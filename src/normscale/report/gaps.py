"""What a run lacks: cells that are still to come, and methods that could not take part."""

from __future__ import annotations

from collections.abc import Sequence

from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.report.scoreboard import Scoreboard


def n_to_come(run: RunFolder, board: Scoreboard, ood_sets: Sequence[str]) -> int:
    """How many cells on these OoD sets are not there yet.

    A method that failed is not waited for, and outputs of somebody's own were all measured when they were written.
    """
    plan = run.plan
    if not plan.network:
        return 0
    failed = {(method, seed) for seed in plan.seeds for method in run.failures(seed)}
    wanted = [(method, seed) for method in plan.methods for seed in plan.seeds if (method, seed) not in failed]
    return sum((method, name, seed) not in board.cells for method, seed in wanted for name in ood_sets)


def not_measured(run: RunFolder, board: Scoreboard, ood_set: str) -> list[str]:
    """Methods of the plan that lack a cell on an OoD set."""
    plan = run.plan
    return [one for one in plan.methods if any((one, ood_set, seed) not in board.cells for seed in plan.seeds)]


def failure_notes(run: RunFolder, board: Scoreboard, ood_sets: Sequence[str]) -> list[str]:
    """Which methods have no numbers on some of these OoD sets because they failed, and why."""
    why = run.every_failure()
    lost = dict.fromkeys(method for name in ood_sets for method in not_measured(run, board, name) if method in why)
    everywhere = {method: " everywhere" if method in board.methods else "" for method in lost}
    return [f"{title_of(one)} could not take part{everywhere[one]}: {sentence(why[one])}" for one in lost]


def sentence(text: str) -> str:
    """A text with its full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."
