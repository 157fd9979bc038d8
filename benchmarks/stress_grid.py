"""Processor time of `normscale stress` on a stranger's classifier: 1 700 rows of 214 classes, eight OoD sets.

The peer is a minute: people wait that long for advice. Processor time, so that a busy machine does not count; the first
compilation is not counted.
"""

from __future__ import annotations

import time

import harness
import numpy as np

MINUTE = 60.0


def main() -> None:
    options = harness.arguments(__doc__, rows=1700, classes=214, shown=27, sets=8)
    import normscale as ns
    from normscale.bench.experiments.streams import all_kinds
    from normscale.bench.experiments.stress import stress
    from normscale.bench.paper.presets import own_methods

    rng = np.random.default_rng(0)

    def outputs(sureness: float, shown: int) -> ns.ModelOutputs:
        labels = rng.integers(0, shown, options.rows)
        sure = sureness * rng.gamma(6.0, 1.2, options.rows)[:, None] * np.eye(options.classes)[labels]
        logits = rng.normal(size=(options.rows, options.classes)) + sure
        return ns.ModelOutputs(logits.astype(np.float32), labels=labels)

    train, test = outputs(1.0, options.shown), outputs(1.0, options.shown)
    n_sets = 1 if options.quick else options.sets
    ood = {f"set {i}": outputs(0.4, options.classes).only("logits") for i in range(n_sets)}
    once = all_kinds((0.5,), ("shuffled",), ("balanced",))
    stress(test, {"set 0": ood["set 0"]}, own_methods(train), kinds=once, changed={})
    started = time.process_time()
    stress(test, ood, own_methods(train), changed={})
    mine = time.process_time() - started
    minute = MINUTE * len(ood) / options.sets
    harness.report({"ours": mine, "peer": minute, "ratio": mine / minute}, "numpy")


if __name__ == "__main__":
    main()
