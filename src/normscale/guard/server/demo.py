"""A stream to watch: digits as the sample's network was trained for, then what it was not, then one class only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from normscale.errors import StoreUnavailable
from normscale.guard import Request, Verdict
from normscale.guard.server.group_commit import GroupCommit
from normscale.outputs import ModelOutputs
from normscale.sample import load_sample

_PAUSE = 0.05
_SCENES = (("digits", 1200), ("digits and others", 600), ("digits", 900), ("one class", 1300), ("digits", 3500))


def scenes(seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Rows (n, C), a few at a time, for ever."""
    sample = load_sample()
    random = np.random.default_rng(seed)
    digits = np.concatenate([sample.test.logits, sample.validation.logits])
    others = np.concatenate([sample.ood["unseen_digits"].logits, sample.ood["photo_patches"].logits])
    ones = digits[digits.argmax(axis=1) == 1]
    while True:
        for scene, rows in _SCENES:
            for _ in range(rows // 4):
                pick = ones if scene == "one class" else digits
                block = pick[random.integers(0, len(pick), random.integers(1, 8))]
                if scene == "digits and others":
                    strange = random.random(len(block)) < 0.35
                    block[strange] = others[random.integers(0, len(others), int(strange.sum()))]
                yield block.astype(np.float32)


async def play(commit: GroupCommit, count: Callable[[Verdict, float], None]) -> None:
    """Send the scenes to the guard, some sixty rows a second, and have the answers counted."""
    for rows in scenes():
        began = time.perf_counter()
        with suppress(StoreUnavailable):  # a disk that is full may have room again
            verdict = await commit.run(Request(ModelOutputs(rows), client="demo"))
            count(verdict, time.perf_counter() - began)
        await asyncio.sleep(_PAUSE)
