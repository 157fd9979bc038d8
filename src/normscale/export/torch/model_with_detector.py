"""A torch classifier that carries its detector: logits, score and verdict from one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscale.detectors.base import Detector
from normscale.detectors.formula import arrays_of, formula_of, limits_of, logit_limits_of, moment_formula_of
from normscale.errors import InvalidInput
from normscale.export.scoring import flags
from normscale.export.torch.scorers import DoubleBuffers, FormulaScorer, MomentScorer
from normscale.outputs import FEATURES, LOGITS

Place = str | int | Callable[[Any], Tensor]
"""Which part of a model's output an array is: a key or attribute, a place, or a function of the output."""


class ScoredOutput(NamedTuple):
    """What a model with a detector says about n inputs."""

    logits: Tensor
    """(n, C), as the model gives them."""
    ood_score: Tensor
    """(n,), float64; higher = more out-of-distribution."""
    is_ood: Tensor | None
    """(n,), bool; None when the detector has no threshold."""


class ModelWithDetector(DoubleBuffers):
    """A classifier with a fitted detector behind it: a module that can be compiled, exported and stored.

    ``forward`` takes what the model takes and returns a :class:`ScoredOutput`. ``train()`` and ``eval()`` act on the
    model and change nothing in the detector. A row with NaN or infinity scores NaN, is flagged and moves no statistics.

    Parameters
    ----------
    model : nn.Module
        It stays what it is: shared, not copied.
    detector : Detector
        Any that offers a formula of logits and features, as the default detector does.
    logits : str, int or function, optional
        Where the logits are in the model's output, if it is no tensor: a key or attribute, a place, or a function.
    features : str, int or function, optional
        Where the features are in it, for a detector that reads them.
    stateful : bool
        Take each row into the statistics, then score it; for a detector whose statistics are moments of the logits,
        such as norm-scaling. By default they are frozen.

    Attributes
    ----------
    scorer : nn.Module
        Where statistics move, ``scorer.moments`` are those of now, in numpy.
    limits : buffer (1,) or (C,), or None
        Scores above are flagged; one for each predicted class where the detector has them.

    Examples
    --------
    >>> from normscale import MSP, Threshold
    >>> msp = MSP()
    >>> msp.threshold_ = Threshold(-1.0)
    >>> with_detector = ModelWithDetector(nn.Identity(), msp)
    >>> logits, score, is_ood = with_detector(torch.tensor([[2.0, 0.0], [0.5, 0.0]]))
    >>> score.tolist(), is_ood.tolist()
    ([-2.0, -0.5], [False, True])
    """

    limits: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        detector: Detector,
        *,
        logits: Place | None = None,
        features: Place | None = None,
        stateful: bool = False,
    ) -> None:
        """Take the detector's numbers over."""
        super().__init__()
        self.model = model
        self.stateful, self.logits, self.features = stateful, logits, features
        logit_limits = logit_limits_of(detector)
        self.scorer: nn.Module = (
            MomentScorer(moment_formula_of(detector), logit_limits)
            if stateful
            else FormulaScorer(formula_of(detector), logit_limits)
        )
        self.reads_features = not stateful and FEATURES in arrays_of(formula_of(detector))
        if self.reads_features and features is None:
            raise InvalidInput(
                f"{detector.name} reads features; pass features=KEY, PLACE or a function of the model's output, which "
                "must hold them."
            )
        limits = limits_of(detector)
        per_class = None if limits is None or limits.size == 1 else limits.size
        widths = detector._widths or {}
        one = widths.get(detector.reads[0]) if len(detector.reads) == 1 and features is None else None
        self.n_classes = widths.get(LOGITS) or one or per_class
        self.n_features = widths.get(FEATURES)
        self.register_buffer("limits", None if limits is None else torch.from_numpy(limits))
        self.training = model.training

    def forward(self, *inputs: Any, **named: Any) -> ScoredOutput:
        """The model's logits, their scores, and whether each row is out-of-distribution."""
        if self.stateful and _on_the_way_to_onnx():  # which would drop what the buffers become, without a word
            raise InvalidInput(
                "an ONNX graph has no memory, so moving statistics cannot be exported from torch. Export "
                "ModelWithDetector(model, detector) with frozen ones, or the bare model and then: "
                "normscale export --stateful."
            )
        output = self.model(*inputs, **named)
        logits = _pick(output, self.logits, LOGITS, self.n_classes)
        features = (_pick(output, self.features, FEATURES, self.n_features),) if self.reads_features else ()
        scores = self.scorer(logits, *features)
        if self.limits is None:
            return ScoredOutput(logits, scores, None)
        return ScoredOutput(logits, scores, flags(scores, self.limits, logits.double()))

    def extra_repr(self) -> str:
        return f"stateful={self.stateful}, threshold={'none' if self.limits is None else 'set'}"


def _pick(output: Any, where: Place | None, name: str, width: int | None) -> Tensor:
    """An array in what the model returned."""
    found = output
    try:
        if callable(where):
            found = where(output)
        elif isinstance(where, str):
            found = output[where] if isinstance(output, dict) else getattr(output, where)
        elif where is not None:
            found = output[where]
    except (KeyError, AttributeError, IndexError) as error:
        raise InvalidInput(f"the model's output, a {type(output).__name__}, has no {where!r} ({error}).") from error
    if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[1] != (width or found.shape[1]):
        what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        columns = "n_classes" if name == LOGITS else "n_features"
        raise InvalidInput(
            f"the {name} must be a tensor of shape (n, {width or columns}); the model gave {what}. "
            f"Pass {name}=KEY, PLACE or a function of the model's output."
        )
    return found


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _on_the_way_to_onnx() -> bool:
    """Whether torch.onnx.export is at work; asked for outside the trace, in which torch answers no."""
    return torch.onnx.is_in_onnx_export()
