"""Noise in normalised input space: N(0, 1) and U(0, 1), as many pictures and as large as another set's.

It is drawn where the network reads, after normalisation, and goes through no further transform; so the paper's author
does in the published code.
"""

from __future__ import annotations

import numpy as np

from normscale.bench.data.image_set import ImageSet

_STREAMS = {"gaussian": 1, "uniform": 2}  # of random numbers, so that one seed serves both


def draw_noise(name: str, like: ImageSet, seed: int = 0) -> ImageSet:
    """Draw noise of the shape of ``like``; the same for the same seed.

    Examples
    --------
    >>> digits = ImageSet("digits", np.zeros((500, 8, 8, 1), np.uint8), np.zeros(500))
    >>> noise = draw_noise("gaussian", digits)
    >>> noise, abs(float(noise.images.mean())) < 0.02
    (ImageSet('gaussian', n=500, 8x8x1, no labels, normalised), True)
    """
    rng = np.random.default_rng([seed, _STREAMS[name]])
    draw = rng.standard_normal if name == "gaussian" else rng.random
    images = draw(like.images.shape, dtype=np.float32)
    return ImageSet(name, images, np.full(len(like), -1), normalised=True)
