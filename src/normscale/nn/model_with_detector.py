"""A torch classifier that carries its guard: logits, score and verdict from one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normscale.detectors.base import Detector
from normscale.detectors.formula import LogitFormula, formula_of, limits_of
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import InvalidInput
from normscale.nn._double import DoubleBuffers
from normscale.nn.formula_head import FormulaHead
from normscale.nn.head import NormScalingHead

Logits = str | int | Callable[[Any], Tensor]
"""Which part of a model's output the logits are: a key or attribute, a place, or a function of the output."""


class GuardedOutput(NamedTuple):
    """What a guarded model says about n inputs."""

    logits: Tensor
    """(n, C), as the model gives them."""
    ood_score: Tensor
    """(n,), float64; higher = more out-of-distribution."""
    is_ood: Tensor | None
    """(n,), bool; None when the detector has no threshold."""


def guard(
    model: nn.Module, detector: Detector, *, logits: Logits | None = None, stateful: bool = False
) -> GuardedModule:
    """Put a fitted detector behind a classifier; the result is a module that can be compiled, exported and stored.

    Parameters
    ----------
    model : nn.Module
        It stays what it is: shared, not copied.
    detector : Detector
        Any that comes with normscale and reads logits.
    logits : str, int or function, optional
        Where the logits are in the model's output, if it is no tensor: a key or attribute, a place, or a function.
    stateful : bool
        Norm-scaling only: take each row into the statistics, then score it. By default they are frozen.

    Examples
    --------
    >>> from normscale import MSP, Threshold
    >>> msp = MSP()
    >>> msp.threshold_ = Threshold(-1.0)
    >>> guarded = guard(nn.Identity(), msp)
    >>> logits, score, is_ood = guarded(torch.tensor([[2.0, 0.0], [0.5, 0.0]]))
    >>> score.tolist(), is_ood.tolist()
    ([-2.0, -0.5], [False, True])
    """
    return GuardedModule(model, detector, logits=logits, stateful=stateful)


class GuardedModule(DoubleBuffers):
    """A classifier and its guard; :func:`guard` makes one.

    ``forward`` takes what the model takes and returns a :class:`GuardedOutput`. ``train()`` and ``eval()`` act on the
    model and change nothing in the guard. A row with NaN or infinity scores NaN and is flagged; when statistics move,
    the whole batch then scores NaN and none of it is taken in.

    Attributes
    ----------
    model : nn.Module
    head : nn.Module
        Logits in, scores out: a :class:`NormScalingHead` for norm-scaling. ``head.to_detector()`` gives its statistics
        back to numpy.
    limits : buffer (1,) or (C,), or None
        Scores above are flagged; one for each predicted class where the detector has them.
    """

    limits: Tensor | None

    def __init__(
        self, model: nn.Module, detector: Detector, *, logits: Logits | None = None, stateful: bool = False
    ) -> None:
        """Take the detector's numbers over."""
        super().__init__()
        if stateful and type(detector) is not NormScaling:
            raise InvalidInput(
                f"stateful works for norm_scaling; got {detector.name}. Guard without it, or stream in numpy."
            )
        formula = formula_of(detector)
        if not isinstance(formula, LogitFormula):
            raise InvalidInput(
                f"nn.guard takes a detector of logits; {detector.name} reads {detector.reads}. Score the features that "
                "normscale.nn.extract gives, or use normscale export --features NAME."
            )
        self.model = model
        self.head: nn.Module = FormulaHead(formula)
        if isinstance(detector, NormScaling):
            self.head = NormScalingHead.from_detector(detector, check=False)
        self.stateful = stateful
        self.logits = logits
        limits = limits_of(detector)
        per_class = None if limits is None or limits.size == 1 else limits.size
        self.n_classes = detector.width_ or per_class
        self.register_buffer("limits", None if limits is None else torch.from_numpy(limits))
        self.training = model.training

    def forward(self, *inputs: Any, **named: Any) -> GuardedOutput:
        """The model's logits, their scores, and whether each row is out-of-distribution."""
        if self.stateful and _on_the_way_to_onnx():  # which would drop what the buffers become, without a word
            raise InvalidInput(
                "an ONNX graph has no memory, so moving statistics cannot be exported from torch. Export guard(model, "
                "detector) with frozen ones, or the bare model and then: normscale export --stateful."
            )
        logits = self._pick(self.model(*inputs, **named))
        scores = self.head(logits, update=True) if self.stateful else self.head(logits)
        if self.limits is None:
            return GuardedOutput(logits, scores, None)
        limits = self.limits if len(self.limits) == 1 else self.limits[logits.argmax(dim=1)]
        return GuardedOutput(logits, scores, ~(scores <= limits))

    def _pick(self, output: Any) -> Tensor:
        """The logits in what the model returned."""
        where = self.logits
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
        if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[1] != (self.n_classes or found.shape[1]):
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise InvalidInput(
                f"the logits must be a tensor of shape (n, {self.n_classes or 'n_classes'}); the model gave {what}. "
                "Pass logits=KEY, PLACE or a function of the model's output."
            )
        return found

    def extra_repr(self) -> str:
        """Show what the guard does with its statistics."""
        return f"stateful={self.stateful}, threshold={'none' if self.limits is None else 'set'}"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _on_the_way_to_onnx() -> bool:
    """Whether torch.onnx.export is at work; asked for outside the trace, in which torch answers no."""
    return torch.onnx.is_in_onnx_export()
