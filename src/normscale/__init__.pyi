"""The public names: what the type checker sees, and where ``__init__.py`` looks them up."""

from normscale._version import __version__ as __version__
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
from normscale.metrics.thresholds import Threshold as Threshold
from normscale.metrics.thresholds import threshold_at as threshold_at
from normscale.metrics.thresholds import thresholds_per_class as thresholds_per_class
from normscale.moments import RunningMoments as RunningMoments
from normscale.outputs import Head as Head
from normscale.outputs import ModelOutputs as ModelOutputs
from normscale.rows import open_table as open_table
from normscale.rows import read_table as read_table
from normscale.rows import write_table as write_table
from normscale.sample import Sample as Sample
from normscale.sample import export_sample as export_sample
from normscale.sample import load_sample as load_sample
from normscale.scaling import norm_scale as norm_scale
from normscale.scores import confidence as confidence
from normscale.scores import energy_score as energy_score
from normscale.scores import entropy_score as entropy_score
from normscale.scores import gen_score as gen_score
from normscale.scores import max_logit_score as max_logit_score
from normscale.scores import msp_score as msp_score

__all__: list[str]
_HOME_OF: dict[str, str]
