"""Ranking metrics, calibration and thresholds: pure functions; a higher score is more OoD."""

from normscale.metrics.calibration import Reliability, expected_calibration_error, reliability
from normscale.metrics.intervals import Interval, Intervals, bootstrap_intervals, delong_interval
from normscale.metrics.metric import METRICS, Metric, register_metric
from normscale.metrics.paired import PairedComparison, paired_bootstrap
from normscale.metrics.ranking import (
    PerClassResult,
    PrecisionRecallCurve,
    RankingResult,
    RocCurve,
    auroc,
    evaluate,
    evaluate_per_class,
    fpr_at_tpr,
    precision_recall_curve,
    roc_curve,
)
from normscale.metrics.temperature import EceCurve, ece_curve, fit_temperature, nll
from normscale.metrics.thresholds import threshold_at, thresholds_per_class

__all__ = [
    "METRICS",
    "EceCurve",
    "Interval",
    "Intervals",
    "Metric",
    "PairedComparison",
    "PerClassResult",
    "PrecisionRecallCurve",
    "RankingResult",
    "Reliability",
    "RocCurve",
    "auroc",
    "bootstrap_intervals",
    "delong_interval",
    "ece_curve",
    "evaluate",
    "evaluate_per_class",
    "expected_calibration_error",
    "fit_temperature",
    "fpr_at_tpr",
    "nll",
    "paired_bootstrap",
    "precision_recall_curve",
    "register_metric",
    "reliability",
    "roc_curve",
    "threshold_at",
    "thresholds_per_class",
]
