"""Many files, on this machine's processes or a Ray cluster: the same fit, score and evaluation.

>>> import numpy, tempfile
>>> folder = tempfile.mkdtemp()
>>> for part in range(3):
...     numpy.savez(f"{folder}/{part}.npz", logits=numpy.random.default_rng(part).normal(size=(100, 4)))
>>> fit(folder, "norm_scaling", workers=1).n_rows
300
"""

from __future__ import annotations

from normscale.engines.evaluation import ScoresEvaluation, evaluate
from normscale.engines.fitting import FitResult, fit
from normscale.engines.invalid_rows import Skipped
from normscale.engines.pictures import score_pictures
from normscale.engines.pieces import plan_pieces
from normscale.engines.scoring import ScoreResult, score
from normscale.engines.spreading import ENGINES, EngineFailed, open_engine
from normscale.engines.watching import Progress

__all__ = [
    "ENGINES",
    "EngineFailed",
    "FitResult",
    "Progress",
    "ScoreResult",
    "ScoresEvaluation",
    "Skipped",
    "evaluate",
    "fit",
    "open_engine",
    "plan_pieces",
    "score",
    "score_pictures",
]
