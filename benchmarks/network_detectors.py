"""ODIN, or Mahalanobis over all blocks, against a plain forward pass of the same network; one thread.

Both sides take the same images in the same batches: ResNet-18 of width 16, 32 x 32 images, channels last. The plain
pass is in inference mode and does nothing with the logits.
"""

from __future__ import annotations

import harness
import numpy as np

CLASSES, WIDTH, IMAGES = 10, 16, 256


def plain(model, images, batch_size):
    import torch

    with torch.inference_mode():
        return [model(batch.to(memory_format=torch.channels_last)) for batch in images.split(batch_size)]


def main() -> None:
    options = harness.arguments(__doc__, what="odin", batch=128, images=IMAGES)
    import torch

    from normscale.nn import resnet18
    from normscale.nn.mahalanobis import MahalanobisLayers
    from normscale.nn.odin import odin_logits

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet18(CLASSES, width=WIDTH).eval()
    images = torch.randn(options.images // 2 if options.quick else options.images, 3, 32, 32)
    reference = np.concatenate([logits.numpy() for logits in plain(model, images, options.batch)])
    if options.what == "odin":

        def ours():
            return odin_logits(model, images, epsilon=0.0014, std=(0.25, 0.25, 0.25), batch_size=options.batch)

        moved = ours()
        assert moved.shape == reference.shape
        assert 0.0 < np.abs(moved - reference).max() < np.abs(reference).max()
    elif options.what == "mahalanobis":
        training = (images.repeat(4, 1, 1, 1) + torch.randn(4 * len(images), 3, 32, 32),)
        training = (*training, torch.arange(4 * len(images)) % CLASSES)
        layers = MahalanobisLayers.fit(model, training, layers="all", shrinkage="oas", progress=False)
        assert len(layers.names) == 5

        def ours():
            return layers.score(model, images, batch_size=options.batch)

        assert np.isfinite(ours()).all()
    else:
        raise SystemExit(f"--what must be odin or mahalanobis; got {options.what}")
    result = harness.in_turns(ours, lambda: plain(model, images, options.batch), quick=options.quick)
    harness.report(result, "torch", "numpy")


if __name__ == "__main__":
    main()
