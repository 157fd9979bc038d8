"""What each method was fitted and tuned on, in words: its detector says so, and the cells have its parameters."""

from __future__ import annotations

from collections.abc import Sequence

from normscale.bench.experiments.methods import find_method
from normscale.bench.report.scoreboard import Scoreboard
from normscale.detectors.base import Setting
from normscale.errors import InvalidInput, UnknownDetector
from normscale.outputs import ATTACKED, PERTURBED_LOGITS

NOTHING_FITTED = "nothing"
NOT_ON_OOD = (
    "No parameter was chosen here by how a method does on OoD inputs; defaults are those of the methods' authors."
)


def fitted_on(method: str) -> str:
    """What a method learns from before and while it scores; empty for a method that no detector has.

    Examples
    --------
    >>> fitted_on("mahalanobis")
    'labelled training outputs'
    >>> fitted_on("norm_scaling")
    'training outputs, then the rows of the test stream as they come, without labels'
    """
    try:
        found = find_method(method)
    except (UnknownDetector, InvalidInput):
        return ""
    detector, words = found.detector, NOTHING_FITTED
    if detector.needs_fit:
        part = "validation" if detector.fitted_on == "validation" else "training"
        words = f"{'labelled ' if detector.needs_labels else ''}{part} outputs"
        attacked = any(name.startswith(ATTACKED) for name in detector.reads_in_fit)
        words += " and attacks on the training inputs" if attacked else ""
    if PERTURBED_LOGITS in detector.reads:
        words = "" if words == NOTHING_FITTED else f"{words}, "
        words += "the step epsilon on in-distribution validation pictures"
    if found.setting == Setting.STREAM:
        words += ", then the rows of the test stream as they come, without labels"
    return words


def parameters_of(boards: Sequence[Scoreboard], method: str) -> str:
    """A method's parameters in all of its cells; ``none`` if it has none."""
    settings = [cell.parameters for board in boards for cell in board.cells.values() if cell.method == method]
    names = dict.fromkeys(name for one in settings for name in one)
    return ", ".join(f"{name} {_choices([one[name] for one in settings if name in one])}" for name in names) or "none"


def _choices(values: list[object]) -> str:
    texts = [_shown(value) for value in values]
    return " or ".join(dict.fromkeys(texts))


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " + ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
