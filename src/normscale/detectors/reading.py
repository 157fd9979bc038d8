"""How a detector reads what it is given: arrays, records, mappings and DataFrames, checked for shape."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from normscale import _validate
from normscale._validate import Rows
from normscale.dataframes import read_dataframe
from normscale.detectors.baseline import TrainingBaseline
from normscale.detectors.kept import Kept
from normscale.errors import InvalidInput, NumericalWarning
from normscale.input_checks.tables import class_order, in_class_order
from normscale.outputs import LOGITS, ModelOutputs, as_outputs, is_dataframe

OutputsLike = ModelOutputs | Mapping[str, ArrayLike] | ArrayLike


class OutputsReader(Kept):
    """A detector's checks of its input."""

    def _as_outputs(self, outputs: OutputsLike) -> ModelOutputs:
        """A record; a plain array is the one array that is read."""
        if isinstance(outputs, (ModelOutputs, Mapping)):
            record = as_outputs(outputs)
            named = record.columns.get(LOGITS)
            order = None if named is None else class_order(self.class_names, named, "the DataFrame")
            return record if order is None else in_class_order(record, order)
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
        reads, widths = self.reads, self.widths_ or {}
        if type(outputs) is np.ndarray and len(reads) == 1:  # one row at a time should cost little
            name, shape = reads[0], outputs.shape
            if len(shape) == 2 and shape[1] == widths.get(name) and outputs.dtype.char in "fde":
                if shape[0] > 1 and name == LOGITS:
                    self._warn_of_far_rows(outputs)
                return ModelOutputs._trusted({name: outputs})
        self._require_fitted()
        record = self._as_outputs(outputs)
        for name in self.reads:
            self._require(record, name)
            _validate.as_rows(record.array(name), name, width=widths.get(name), min_width=_validate.min_width(name))
        if LOGITS in self.reads and len(record) > 1:
            self._warn_of_far_rows(record.logits)
        return record.only(*self.reads)

    def _warn_of_far_rows(self, logits: Rows) -> None:
        if self.warns_of_far_rows and self.baseline_ is not None and self.baseline_.far_outside(logits).any():
            warnings.warn(self.baseline_.far_sentence(logits), NumericalWarning, stacklevel=4)

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
            for name in (*self.reads, *self.reads_in_fit):
                self._require(chunk, name)
                width = None if self.widths_ is None else self.widths_.get(name)
                _validate.as_rows(chunk.array(name), name, width=width, min_width=_validate.min_width(name))
            if self.needs_labels and chunk.labels is None:
                raise InvalidInput(f"{self.name} needs labels to fit; pass ModelOutputs(..., labels=...).")
            if self.needs_head and chunk.head is None:
                raise InvalidInput(
                    f"{self.name} needs the network's last layer to fit; pass ModelOutputs(..., head=(weight, bias)). "
                    "normscale.extraction.extract does so by itself."
                )
            if len(chunk):
                self.widths_ = {name: chunk.array(name).shape[1] for name in self.reads}
                has_baseline = has_baseline and (counted or self._take_into_baseline(chunk))
                yield chunk
        if not has_baseline:
            self.baseline_ = None

    def _take_into_baseline(self, chunk: ModelOutputs) -> bool:
        """False where a chunk has no logits that could be compared with the others'."""
        if chunk.get(LOGITS) is None:
            return False
        before = self.baseline_
        if before is not None and chunk.logits.shape[1] != before.predicted.size:
            return False
        try:
            others = tuple(name for name in self.reads if name != LOGITS)
            own = TrainingBaseline.of(chunk, others, keep_rows=self.has_running_statistics)
        except InvalidInput:
            if LOGITS in self.reads:
                raise
            return False
        self.baseline_ = own if before is None else before.merge(own)
        return True
