"""Write how well detectors can be chosen without OoD rows, on one network's outputs, into docs/results/choice.json.

    python tools/record.py choice docs/results/choice.json NAME --train T --id I --ood O [--ood O ...] [--classes 0,3,5]

Every candidate's mean AUROC over the OoD sets, as fitted and made stream-aware (streams of a tenth and half OoD),
beside what in-distribution rows alone say of it: whether it ranks mistakes on the test set above right answers
(``mistakes``), whether it finds rows of classes that were left out in turn, with their columns (``classes``), and rows
whose features are half of one row's and half of another's (``halves``). ``--classes``: training and test rows of these
alone. At most 8 000 training, 3 000 test and 2 000 OoD rows, drawn with seed 0. The file gets an entry under NAME.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

import normscale as ns
from normscale.detectors.choosing import default_detector
from normscale.jobs import read, read_named
from recorders.provenance import commit, rounded, short

CANDIDATES = (
    *("msp", "energy", "max_logit", "centred", "present_classes", "gen", "norm_scaling"),
    *("knn", "fdbd", "vim", "relative_mahalanobis", "react", "scale", "ensemble"),
)
FOLDS = 4


def fewer(rows: ns.ModelOutputs, most: int, seed: int = 0) -> ns.ModelOutputs:
    """At most so many rows, in their order."""
    return rows[np.sort(np.random.default_rng(seed).permutation(len(rows))[:most])]


def auroc(inside: Any, outside: Any) -> float:
    return ns.evaluate(inside, outside).auroc


def without_classes(train: ns.ModelOutputs, out: Any) -> tuple[ns.ModelOutputs, ns.ModelOutputs]:
    """Rows of the other classes, and of those that are left out; both without the columns of the latter."""
    kept = np.setdiff1d(np.arange(train.n_classes), out)
    number = np.full(train.n_classes, -1)
    number[kept] = np.arange(kept.size)
    weight, bias = train.head

    def cut(rows: Any, labels: Any) -> ns.ModelOutputs:
        logits, features = np.ascontiguousarray(train.logits[rows][:, kept]), train.features[rows]
        return ns.ModelOutputs(logits, features, labels=labels, head=(weight[kept], bias[kept]))

    left = np.isin(train.labels, out)
    return cut(~left, number[train.labels[~left]]), cut(left, None)


def classes_left_out(name: str, train: ns.ModelOutputs) -> float:
    """Mean AUROC on the rows of left-out classes; the others' rows are in part held out."""
    order = np.random.default_rng(0).permutation(np.unique(train.labels))
    found = []
    for fold in range(FOLDS):
        rest, left = without_classes(train, order[fold::FOLDS])
        held_out = np.arange(len(rest)) % 4 == 0
        detector = ns.make_detector(name).fit(rest[~held_out])
        found.append(auroc(detector.score(rest[held_out]), detector.score(left)))
    return fmean(found)


def halves(train: ns.ModelOutputs, n: int = 2000) -> ns.ModelOutputs:
    """Made-up rows: every feature is one row's or another's of another predicted class; logits by the head."""
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, len(train), (2, n))
    differ = train.predicted[one] != train.predicted[other]
    one, other = one[differ], other[differ]
    features = np.where(
        rng.random((one.size, train.features.shape[1])) < 0.5, train.features[one], train.features[other]
    )
    weight, bias = train.head
    return ns.ModelOutputs((features @ np.asarray(weight).T + bias).astype(np.float32), features.astype(np.float32))


def streamed(detector: ns.Detector, test: ns.ModelOutputs, ood: dict[str, ns.ModelOutputs], share: float) -> float:
    found = []
    for rows in ood.values():
        some = fewer(rows, round(len(test) * share / (1.0 - share)), 3)
        both = ns.ModelOutputs.concatenate([test, some])
        order = np.random.default_rng(5).permutation(len(both))
        scores = np.empty(len(both))
        scores[order] = copy.copy(detector).stream(both[order])
        found.append(auroc(scores[: len(test)], scores[len(test) :]))
    return fmean(found)


def numbers(detector: ns.Detector, test: ns.ModelOutputs, ood: dict[str, ns.ModelOutputs]) -> dict[str, float]:
    """Of a detector that is stream-aware: as fitted, and in streams."""
    inside = detector.score(test)
    return {
        "frozen": fmean(auroc(inside, detector.score(rows)) for rows in ood.values()),
        "stream_10": streamed(detector, test, ood, 0.1),
        "stream_50": streamed(detector, test, ood, 0.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("name")
    parser.add_argument("--train", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--ood", action="append", required=True)
    parser.add_argument("--head", help="An .npz with weight and bias, where the training table has none.")
    parser.add_argument("--classes", help="Training and test rows of these classes alone.")
    options = parser.parse_args()
    arrays = ["logits", "features"]
    train, test = read(options.train, arrays), read(options.id, arrays)
    if options.head:
        head = np.load(options.head)
        train = ns.ModelOutputs(train.logits, train.features, train.labels, head=(head["weight"], head["bias"]))
    if options.classes:
        kept = [int(one) for one in options.classes.split(",")]
        train, test = train[np.isin(train.labels, kept)], test[np.isin(test.labels, kept)]
    train, test = fewer(train, 8000), fewer(test, 3000)
    wrong = test.predicted != test.labels
    test = test.only(*arrays)
    plain = ns.ModelOutputs(test.logits, test.features)
    ood = {
        name: ns.ModelOutputs(rows.logits, rows.features)
        for name, rows in ((name, fewer(rows, 2000)) for name, rows in read_named(options.ood).items())
    }
    made_up = halves(train)
    candidates: dict[str, dict[str, float]] = {}
    for name in CANDIDATES:
        known = ns.make_detector(name)
        held_out = known._fit_held_out(train)
        inside = known.score(plain)
        candidates[name] = numbers(ns.StreamAware(name).fit(train), plain, ood) | {
            "frozen": fmean(auroc(inside, known.score(rows)) for rows in ood.values()),
            "mistakes": auroc(inside[~wrong], inside[wrong]),
            "classes": classes_left_out(name, train),
            "halves": auroc(held_out, known.score(made_up)),
        }
        print(options.name, name, candidates[name], file=sys.stderr, flush=True)
    choice = default_detector(train.names, head=train.head is not None)
    alone = ns.ModelOutputs(train.logits, labels=train.labels)
    entry = {
        "command": "python tools/record.py choice " + " ".join(map(short, sys.argv[1:])),
        "commit": commit(),
        "date": date.today().isoformat(),
        "wrong_on_test": rounded(float(wrong.mean())),
        "auto": {"why": choice.reason, **numbers(choice.detector.fit(train), plain, ood)},
        "auto_logits_alone": numbers(default_detector(alone.names, head=False).detector.fit(alone), plain, ood),
        "candidates": candidates,
    }
    record = json.loads(options.target.read_text()) if options.target.exists() else {}
    options.target.write_text(json.dumps(record | {options.name: entry}, indent=1) + "\n")
