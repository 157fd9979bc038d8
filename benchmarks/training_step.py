"""One training step of a ResNet-18 at width 16 and batch 128, against its forward and backward pass alone.

`--what step`: the step as `normscale train` takes it (augmented batch, loss, gradients, SGD, the running sums of the
log) against forward and backward: at least 90 % of it should be those. `--what layout`: channels-last against the usual
layout. `--what threads`: two threads against one; below 0.5 two threads would beat two processes. `--what bfloat16`:
forward and backward with bfloat16 where torch takes it for safe, against float32, at width 32.
"""

from __future__ import annotations

import harness
import numpy as np


def make(channels_last, torch, width=16):
    from normscale.bench.data import ImageSet
    from normscale.bench.data.batches import Batches
    from normscale.bench.train import RECIPES, resnet18
    from normscale.bench.train.training import _Training

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (1280, 32, 32, 3), dtype=np.uint8)
    images = ImageSet("noise", pixels, np.arange(1280) % 10, None, (0.5,) * 3, (0.25,) * 3)
    torch.manual_seed(0)
    model = resnet18(10, width)
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
    batches = Batches(images, 128, channels_last=channels_last)
    training = _Training(model, batches, RECIPES["fast"])
    model.train()
    return model, batches, training


def main() -> None:
    options = harness.arguments(__doc__, what="step")
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)

    def whole(channels_last, threads=1):
        _, batches, training = make(channels_last, torch)
        stream = iter(())

        def step():
            nonlocal stream
            torch.set_num_threads(threads)
            item = next(stream, None)
            if item is None:
                stream = iter(batches.epoch(0))
                item = next(stream)
            training.step(*item)

        return step

    def passes(width=16, half=False):
        model, batches, _ = make(True, torch, width)
        images, labels = next(iter(batches.epoch(0)))

        def both():
            torch.set_num_threads(1)
            model.zero_grad(set_to_none=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits = model(images)
            functional.cross_entropy(logits.float(), labels).backward()

        return both

    sides = {
        "step": (whole(True), passes()),
        "layout": (whole(True), whole(False)),
        "threads": (whole(True, 2), whole(True, 1)),
        "bfloat16": (passes(32, half=True), passes(32)),
    }[options.what]
    harness.report(harness.in_turns(*sides, quick=options.quick), "torch")


if __name__ == "__main__":
    main()
