"""The record that every comparison makes: one method on one OoD set, in one kind of stream."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from normscale._version import __version__
from normscale.bench.experiments.methods import Method
from normscale.metrics import METRICS
from normscale.metrics.record import number_of


class StreamKind(NamedTuple):
    """A kind of stream, see :mod:`normscale.bench.experiments.streams`."""

    share: float
    """Of OoD rows in the stream."""
    order: str
    balance: str


class Measurement(NamedTuple):
    """One method on one OoD set with one network: what came out, and of what."""

    ood_set: str
    method: str
    """Its name in this comparison; unique there."""
    detector: str
    """The name under which the detector can be made again."""
    title: str
    """The method's name for people."""
    setting: str
    """``frozen``, ``stream`` or ``per class``."""
    parameters: dict[str, Any]
    metrics: dict[str, float]
    """The numbers by metric, each an attribute too; means over the draws; NaN if the stream could not be made."""
    n_id: int
    n_ood: int
    seed: int | None
    """Of the network, or of the order of the stream."""
    seconds: float = 0.0
    in_set: str = ""
    version: str = ""
    commit: str | None = None
    stream: StreamKind | None = None
    """None: all rows of both sets, shuffled where the setting needs an order."""
    classes: tuple[int, ...] = ()
    """The dominant or the missing classes of the stream."""
    draws: int = 1
    """How often the stream was drawn."""
    skipped: str = ""
    """Why there are no numbers; empty when there are."""

    def __getattr__(self, name: str) -> float:
        return float(number_of(self.metrics, name, type(self).__name__))

    @classmethod
    def of(cls, method: Method, ood_set: str, metrics: Mapping[str, float] | None = None, **more: Any) -> Measurement:
        """A record of a method on an OoD set; without metrics every one is NaN."""
        return cls(
            ood_set=ood_set,
            method=method.name,
            detector=method.detector.name,
            title=method.title,
            setting=method.setting,
            parameters=method.detector.get_params(),
            metrics=dict.fromkeys(METRICS, math.nan) if metrics is None else dict(metrics),
            **{"seed": None, "version": __version__, **more},
        )

    def per_metric(self) -> Iterator[dict[str, Any]]:
        """One record per metric, as in ``results.jsonl``."""
        for metric, value in self.metrics.items():
            shared = ("seed", "in_set", "ood_set", "method", "setting", "parameters", "n_id", "n_ood", "seconds")
            record = {name: getattr(self, name) for name in (*shared, "version", "commit")}
            yield {**record, "metric": metric, "value": value}

    @classmethod
    def from_metrics(cls, rows: Sequence[dict[str, Any]]) -> Measurement:
        """Put together what :meth:`per_metric` took apart; such rows have neither the detector's name nor a title."""
        shared = {name: value for name, value in rows[0].items() if name not in ("metric", "value")}
        metrics = {row["metric"]: row["value"] for row in rows}
        return cls.from_json({"detector": "", "title": "", **shared, "metrics": metrics})

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measurement:
        """Read back what :meth:`_asdict` gave, after it was JSON; a TypeError or ValueError for anything else."""
        found = cls(**values)
        return found._replace(
            parameters=dict(found.parameters),
            metrics={str(name): float(value) for name, value in dict(found.metrics).items()},
            stream=None if found.stream is None else StreamKind(*found.stream),
            classes=tuple(found.classes),
        )
