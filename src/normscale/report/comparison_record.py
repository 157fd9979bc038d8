"""The paired bootstrap of a run on disk: it needs every score, and a reader of ``results.jsonl`` has none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from normscale.errors import FileFormatError
from normscale.experiments.run_folder import RunFolder, read_document, write_document
from normscale.report.better_than import Comparison, comparable
from normscale.report.scoreboard import Scoreboard

_SAME = 1e-9
"""Two AUROC that differ by more are of other cells."""


class ComparisonRecord(NamedTuple):
    """Comparisons of the board's subject with its rivals, and how they were made."""

    subject: str
    resamples: int
    level: float
    comparisons: Sequence[Comparison]

    def save(self, run: RunFolder) -> None:
        """Keep it beside the run's results."""
        document = {**self._asdict(), "comparisons": [one._asdict() for one in self.comparisons]}
        write_document(run.comparisons, document)

    @classmethod
    def load(cls, run: RunFolder) -> ComparisonRecord | None:
        """What was kept; None if nothing was."""
        document = read_document(run.comparisons)
        if not document:
            return None
        try:
            rows = [Comparison(**one) for one in document["comparisons"]]
            return cls(**{**document, "comparisons": rows})
        except (KeyError, TypeError) as error:
            raise FileFormatError(
                f"{run.comparisons} is not what this version writes ({error}); delete it and run `normscale report` "
                "on the run."
            ) from error

    def fits(self, board: Scoreboard) -> bool:
        """Whether these are the comparisons of a board's cells, all of them."""
        wanted = comparable(board)
        return (
            self.subject == board.subject
            and [(one.ood_set, one.rival) for one in self.comparisons] == list(wanted)
            and all(
                one.n_networks == len(pair.networks)
                and math.isclose(one.auroc, fmean(pair.ours), abs_tol=_SAME)
                and math.isclose(one.rival_auroc, fmean(pair.theirs), abs_tol=_SAME)
                for one, pair in zip(self.comparisons, wanted.values(), strict=True)
            )
        )
