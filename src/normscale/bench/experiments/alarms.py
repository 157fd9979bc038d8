"""False alarms: how much of a stream without OoD inputs is flagged, frozen and streamed.

The inputs are those of the test set in several orders and class balances, and inputs that have changed: corrupted
pictures where the network is at hand, scaled and noised outputs elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normscale._validate import IntArray
from normscale.bench.experiments.streams import BALANCES, ClassBalance, stream_classes
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

UNCHANGED = ("balanced", "class-sorted", BALANCES[1], BALANCES[3])
"""Streams of the test set as it is."""
KEEP = 0.95
"""Thresholds are set to keep this share of in-distribution inputs."""
SETTLED = 300
"""Rows of a stream that do not count: a change is noticed after some hundred rows."""
MOST = 1000
"""Pictures, or rows, that are changed."""
SCALES, NOISES = (0.6, 0.8, 1.25), (0.25, 0.5, 1.0)
"""Factors of outputs; standard deviations of noise, in those of each column."""


class Alarms(NamedTuple):
    """Shares flagged of one in-distribution stream."""

    method: str
    stream: str
    """``balanced``, ``class-sorted``, a class balance, or how the inputs were changed, such as ``blur 2``."""
    frozen: float
    streamed: float
    n_rows: int
    """Rows that count."""
    accuracy: float | None
    """Of the classifier on these rows, where labels are known."""


def changed_outputs(test: ModelOutputs, seed: int = 0) -> Iterator[tuple[str, ModelOutputs]]:
    """Outputs as they may look after a change of the inputs: every array scaled, or with noise added."""
    rows, rng = test[: MOST + SETTLED], np.random.default_rng(seed)
    for scale in SCALES:
        yield f"scaled {scale:g}", rows.replace(**{name: scale * rows.array(name) for name in rows.names})
    for noise in NOISES:
        arrays = {name: rows.array(name).astype(np.float64) for name in rows.names}
        noised = {name: one + noise * one.std(axis=0) * rng.standard_normal(one.shape) for name, one in arrays.items()}
        yield f"noised {noise:g}", rows.replace(**noised)


def changed_pictures(network: Path, pictures: str = "", root: str | None = None) -> Iterator[tuple[str, ModelOutputs]]:
    """Outputs of a network on corrupted test pictures, of the set it was trained on or of another source."""
    from normscale.bench.data import load
    from normscale.bench.data.corruptions import corrupted
    from normscale.bench.network_folder import NetworkFolder
    from normscale.bench.train.network_file import load_network
    from normscale.bench.train.run import plain_batches
    from normscale.extraction import extract

    model, info = load_network(NetworkFolder(network).network)
    source = pictures or info.trained_on
    if source is None:
        raise InvalidInput(f"{network} does not say what it was trained on; name the test pictures.")
    test = load(source, "test", root=root).resized(*info.image_size, info.in_channels)
    for name, images in corrupted(test[: MOST + SETTLED]):
        yield name, extract(model, plain_batches(images, info))


def false_alarms(
    detectors: Mapping[str, Detector],
    test: ModelOutputs,
    changed: Mapping[str, ModelOutputs],
    *,
    seed: int = 0,
) -> list[Alarms]:
    """Flag in-distribution streams by detectors whose statistics run; none of them is changed.

    Thresholds are set on one half of the test set, streams are drawn from the other. The first ``SETTLED`` rows of a
    stream do not count, where it has twice as many. ``changed`` are outputs on inputs that have changed.
    """
    held, own = _id_streams(test, seed)
    rng = np.random.default_rng(seed)
    streams = {name: test[rows] for name, rows in own.items() if len(rows)}
    streams |= {name: rows[rng.permutation(len(rows))] for name, rows in changed.items()}
    alarms = []
    for method, fitted in detectors.items():
        detector = copy.copy(fitted).reset()
        detector._marks_far_rows = False
        known = test[held].only(*detector.reads)
        still = detector.set_threshold(known, KEEP).threshold_
        if not detector._holds_threshold_in_stream:
            detector.set_threshold(known, KEEP, stream=True)
        for name, rows in streams.items():
            read = rows.only(*detector.reads)
            counted = slice(SETTLED if len(read) >= 2 * SETTLED else 0, None)
            frozen = detector.reset().predict(read, threshold=still)[counted]
            streamed = detector.predict(read, scores=detector.stream(read))[counted]
            labelled = rows.labels is not None and (rows.labels >= 0).all()
            shares = float(frozen.mean()), float(streamed.mean())
            alarms.append(Alarms(method, name, *shares, len(frozen), rows.accuracy if labelled else None))
    return alarms


def _id_streams(test: ModelOutputs, seed: int) -> tuple[IntArray, dict[str, IntArray]]:
    """Rows to set thresholds on, and rows of streams from the other half."""
    rng = np.random.default_rng(seed)
    held, rest = np.array_split(rng.permutation(len(test)), 2)
    classes = stream_classes(test)[rest]
    streams = {"balanced": rest, "class-sorted": rest[np.argsort(classes, kind="stable")]}
    for balance in UNCHANGED[2:]:
        drawn = ClassBalance(classes, balance, seed)
        streams[balance] = rest[drawn.draw(drawn.capacity, rng)]
    return held, streams
