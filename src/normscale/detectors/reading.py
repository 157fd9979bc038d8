"""How a detector reads what it is given: arrays, records, mappings and DataFrames, checked for shape."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numpy.typing import ArrayLike, NDArray

from normscale import _kernels, _validate
from normscale.dataframes import read_dataframe
from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.kept import Kept
from normscale.errors import InvalidInput, NumericalWarning
from normscale.outputs import LOGITS, ModelOutputs, as_outputs, is_dataframe

OutputsLike = ModelOutputs | Mapping[str, ArrayLike] | ArrayLike


class OutputsReader(Kept):
    """A detector's checks of its input."""

    def _as_outputs(self, outputs: OutputsLike) -> ModelOutputs:
        """A record; a plain array is the one array that is read."""
        if isinstance(outputs, (ModelOutputs, Mapping)):
            return as_outputs(outputs)
        if is_dataframe(outputs):
            return read_dataframe(outputs, self.reads[0], self.class_names)[0]
        if len(self.reads) > 1:
            raise InvalidInput(
                f"{self.name} reads {' and '.join(self.reads)}; got one array. "
                f"Pass ModelOutputs({', '.join(f'{name}=...' for name in self.reads)})."
            )
        return as_outputs(outputs, self.reads[0])

    def _read(self, outputs: OutputsLike) -> ModelOutputs:
        """The arrays scores come from, checked for shape."""
        self._require_fitted()
        record, widths = self._as_outputs(outputs), self._widths or {}
        for name in self.reads:
            self._require(record, name)
            _validate.as_rows(record.array(name), name, width=widths.get(name), min_width=_validate.min_width(name))
        if self._warns_of_far_rows and len(record) > 1 and self._logit_limits != Kept._logit_limits:
            self._warn_of_far_rows(record.logits)
        return record.only(*self.reads)

    def _warn_of_far_rows(self, logits: NDArray[Any]) -> None:
        """Warn of rows whose logits lie far outside of what training showed."""
        baseline = self._baseline
        if baseline is None or not _kernels.outside(logits, *self._logit_limits):
            return
        if baseline.far_outside(logits).any():
            warnings.warn(baseline.far_sentence(logits), NumericalWarning, stacklevel=5)

    def _require(self, record: ModelOutputs, name: str) -> None:
        if record.get(name) is None:
            raise InvalidInput(
                f"{self.name} reads {name}; got outputs with {' and '.join(record.names)}. "
                f"Pass ModelOutputs({name}=...)."
            )

    def _checked(self, chunks: Iterable[ModelOutputs], *, counted: bool = False) -> Iterator[ModelOutputs]:
        """Pass non-empty chunks on, checked for what this detector reads and, unless they were, counted in."""
        has_baseline = True
        for chunk in chunks:
            for name in self._arrays_in_fit:
                self._require(chunk, name)
                width = None if self._widths is None else self._widths.get(name)
                _validate.as_rows(chunk.array(name), name, width=width, min_width=_validate.min_width(name))
            if self._needs_labels and chunk.labels is None:
                raise InvalidInput(f"{self.name} needs labels to fit; pass ModelOutputs(..., labels=...).")
            if self._needs_head and chunk.head is None:
                raise InvalidInput(
                    f"{self.name} needs the network's last layer to fit; pass ModelOutputs(..., head=(weight, bias)). "
                    "normscale.extraction.extract does so by itself."
                )
            if len(chunk):
                self._widths = {name: chunk.array(name).shape[1] for name in self.reads}
                has_baseline = has_baseline and (counted or self._take_into_baseline(chunk))
                yield chunk
        if not has_baseline:
            self._baseline = None

    def _take_into_baseline(self, chunk: ModelOutputs) -> bool:
        """False where a chunk has no logits that could be compared with the others'."""
        if chunk.get(LOGITS) is None:
            return False
        before = self._baseline
        if before is not None and chunk.logits.shape[1] != before.predicted.size:
            return False
        try:
            others = tuple(name for name in self.reads if name != LOGITS)
            own = TrainingBaseline.of(chunk, others, keep_rows=self._runs)
        except InvalidInput:
            if LOGITS in self.reads:
                raise
            return False
        self._baseline = own if before is None else before.merge(own)
        return True
