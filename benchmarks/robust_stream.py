"""What a stream-aware detector does beyond the wrapped score, on a block of logits, against `NormScaling.stream`.

Three rows in ten are noise without a raised logit, so that the OoD group has something to learn.
"""

from __future__ import annotations

import os

import harness
import numpy as np
from stream import make_logits

CHECKED = 300


def check(aware, logits) -> None:
    """The compiled stream equals the plain numpy one on its first rows."""
    from normscale import ModelOutputs
    from normscale._kernels import mixture_reference
    from normscale._kernels.mixture import Mixture

    rows = logits[:CHECKED]
    expected = np.empty(len(rows))
    state = Mixture.empty(len(aware.fitted_.profiles.mean))
    scored = aware._scored(ModelOutputs(rows), 1)
    mixture_reference.stream(scored, aware.fitted_.profiles, aware._mixture_settings, state, expected)
    np.testing.assert_allclose(aware.reset().stream(rows), expected, rtol=1e-8, atol=1e-8)


def main() -> None:
    options = harness.arguments(__doc__, rows=1_000_000, classes=10, kernels="numba", margin=6.0)
    os.environ["NORMSCALE_KERNELS"] = options.kernels
    import normscale as ns

    rows = options.rows // 10 if options.quick else options.rows
    logits = make_logits(rows, options.classes, options.margin)
    noise = np.arange(rows) % 10 < 3
    train = logits[: max(5000, rows // 50)][~noise[: max(5000, rows // 50)]]
    logits[noise] = make_logits(int(noise.sum()), options.classes, 0.0)
    from normscale._kernels.mixture import stream_mixture
    from normscale.state import copied

    aware, running = ns.StreamAware().fit(train), ns.NormScaling().fit(train)
    check(aware, logits)
    scored, out = aware._scored(ns.ModelOutputs(logits), 1), np.empty(len(logits))
    start = aware.reset().state_
    result = harness.in_turns(
        lambda: stream_mixture(scored, aware.fitted_.profiles, aware._mixture_settings, copied(start), out),
        lambda: running.reset().stream(logits),
        quick=options.quick,
    )
    harness.report(result, "numpy", "numba")


if __name__ == "__main__":
    main()
