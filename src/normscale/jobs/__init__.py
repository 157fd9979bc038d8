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

from normscale.jobs.evaluating import Evaluated, evaluate
from normscale.jobs.fitting import FitResult, fit
from normscale.jobs.running import ENGINES, PIECE_ROWS, EngineFailed, JobOptions, Progress, open_engine
from normscale.jobs.scoring import ScoreResult, score
from normscale.jobs.sources import SAMPLE, RowSource, Skipped, describe, read

__all__ = ["ENGINES", "PIECE_ROWS", "SAMPLE", "EngineFailed", "Evaluated", "FitResult", "JobOptions"]
__all__ += ["Progress", "RowSource", "ScoreResult", "Skipped", "describe", "evaluate", "fit", "open_engine"]
__all__ += ["read", "score"]
