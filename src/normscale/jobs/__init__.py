"""Jobs over the rows of tables: fit, score and evaluate, in this process, on processes, or on a Ray cluster.

One table is a job of one piece. The same rows give the same results in one file or in many, on every engine.

>>> import numpy, tempfile
>>> folder = tempfile.mkdtemp()
>>> for part in range(3):
...     numpy.savez(f"{folder}/{part}.npz", logits=numpy.random.default_rng(part).normal(size=(100, 4)))
>>> fit(folder, "norm_scaling").n_rows
300
"""

from __future__ import annotations

from normscale.jobs.evaluating import Evaluated, ScoresEvaluation, describe_evaluate, evaluate, rank_scores
from normscale.jobs.fitting import FitResult, describe_fit, fit
from normscale.jobs.gathering import read, read_named
from normscale.jobs.options import PIECE_ROWS, JobOptions, Progress
from normscale.jobs.pieces import Skipped
from normscale.jobs.scoring import ScoreResult, describe_score, score
from normscale.jobs.sources import RowSource, input_named
from normscale.jobs.spreading import ENGINES, EngineFailed, open_engine

__all__ = [
    "ENGINES",
    "PIECE_ROWS",
    "EngineFailed",
    "Evaluated",
    "FitResult",
    "JobOptions",
    "Progress",
    "RowSource",
    "ScoreResult",
    "ScoresEvaluation",
    "Skipped",
    "describe_evaluate",
    "describe_fit",
    "describe_score",
    "evaluate",
    "fit",
    "input_named",
    "open_engine",
    "rank_scores",
    "read",
    "read_named",
    "score",
]
