"""normscale tells, for every answer of a classifier, whether the input was one it was trained for.

>>> import normscale as ns
>>> sample = ns.load_sample()
>>> detector = ns.NormScaling().fit(sample.train).set_threshold(sample.validation, keep=0.95)
>>> scores = detector.score(sample.test)          # higher = more out-of-distribution
>>> is_ood = detector.predict(sample.test)        # True = not what the classifier was trained for

The names below are loaded when first used (PEP 562), so that ``import normscale`` costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

from normscale import detectors as _detectors
from normscale._version import __version__

if TYPE_CHECKING:
    from normscale.bench.experiments.comparison import compare as compare
    from normscale.bench.report.writing import report as report
    from normscale.dataframes import to_dataframe as to_dataframe
    from normscale.detectors import *  # noqa: F403
    from normscale.detectors.choosing import fit as fit
    from normscale.errors import FileFormatError as FileFormatError
    from normscale.errors import FolderInUse as FolderInUse
    from normscale.errors import InvalidInput as InvalidInput
    from normscale.errors import MissingExtra as MissingExtra
    from normscale.errors import MissingOutput as MissingOutput
    from normscale.errors import NormscaleError as NormscaleError
    from normscale.errors import NotFitted as NotFitted
    from normscale.errors import NumericalWarning as NumericalWarning
    from normscale.errors import TrainingDiverged as TrainingDiverged
    from normscale.errors import UnknownDetector as UnknownDetector
    from normscale.extraction import extract as extract
    from normscale.guard import open_guard as open_guard
    from normscale.metrics.calibration import expected_calibration_error as expected_calibration_error
    from normscale.metrics.calibration import reliability as reliability
    from normscale.metrics.intervals import bootstrap_intervals as bootstrap_intervals
    from normscale.metrics.intervals import delong_interval as delong_interval
    from normscale.metrics.metric import register_metric as register_metric
    from normscale.metrics.paired import paired_bootstrap as paired_bootstrap
    from normscale.metrics.ranking import auroc as auroc
    from normscale.metrics.ranking import evaluate as evaluate
    from normscale.metrics.ranking import evaluate_per_class as evaluate_per_class
    from normscale.metrics.ranking import fpr_at_tpr as fpr_at_tpr
    from normscale.metrics.ranking import precision_recall_curve as precision_recall_curve
    from normscale.metrics.ranking import roc_curve as roc_curve
    from normscale.metrics.temperature import ece_curve as ece_curve
    from normscale.metrics.temperature import fit_temperature as fit_temperature
    from normscale.metrics.temperature import nll as nll
    from normscale.metrics.thresholds import threshold_at as threshold_at
    from normscale.metrics.thresholds import thresholds_per_class as thresholds_per_class
    from normscale.moments import RunningMoments as RunningMoments
    from normscale.outputs import Head as Head
    from normscale.outputs import ModelOutputs as ModelOutputs
    from normscale.rows import open_table as open_table
    from normscale.rows import read_table as read_table
    from normscale.rows import write_table as write_table
    from normscale.sample import export_sample as export_sample
    from normscale.sample import load_sample as load_sample
    from normscale.scaling import norm_scale as norm_scale
    from normscale.scores import confidence as confidence
    from normscale.scores import energy_score as energy_score
    from normscale.scores import entropy_score as entropy_score
    from normscale.scores import gen_score as gen_score
    from normscale.scores import max_logit_score as max_logit_score
    from normscale.scores import msp_score as msp_score

_HOMES = {  # module -> the public names it holds; a test compares this with the imports above
    "dataframes": "to_dataframe",
    "detectors.choosing": "fit",
    "errors": (
        "FileFormatError FolderInUse InvalidInput MissingExtra MissingOutput NormscaleError NotFitted NumericalWarning "
        "TrainingDiverged UnknownDetector"
    ),
    "bench.experiments.comparison": "compare",
    "extraction": "extract",
    "guard": "open_guard",
    "bench.report.writing": "report",
    "metrics.calibration": "expected_calibration_error reliability",
    "metrics.intervals": "bootstrap_intervals delong_interval",
    "metrics.paired": "paired_bootstrap",
    "metrics.metric": "register_metric",
    "metrics.ranking": "auroc evaluate evaluate_per_class fpr_at_tpr precision_recall_curve roc_curve",
    "metrics.temperature": "ece_curve fit_temperature nll",
    "metrics.thresholds": "threshold_at thresholds_per_class",
    "moments": "RunningMoments",
    "outputs": "Head ModelOutputs",
    "sample": "export_sample load_sample",
    "scaling": "norm_scale",
    "scores": "confidence energy_score entropy_score gen_score max_logit_score msp_score",
    "rows": "open_table read_table write_table",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_HOME_OF |= dict.fromkeys(_detectors._HOME_OF, "detectors")

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'normscale' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"normscale.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not, and what every module has."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
