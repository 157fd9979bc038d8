"""Augmented CIFAR-sized batches from memory, against a torch DataLoader with Pillow transforms and two workers.

Both sides give normalised float32 batches of 128 with a random crop (4 pixels of padding) and a random flip. Ours uses
one thread; the peer has two processes beside its own. Its transforms are those of torchvision written out: Pillow
pads, crops and mirrors, then the pixels become a tensor, are scaled and normalised.
"""

from __future__ import annotations

import random

import harness
import numpy as np

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def ours(batches):
    total = 0.0
    for images, _ in batches.epoch(0):
        total += float(images[0, 0, 0, 0])
    return total


def peer(loader):
    total = 0.0
    for images, _ in loader:
        total += float(images[0, 0, 0, 0])
    return total


def make_loader(images, labels, batch_size, workers):
    import torch
    from PIL import Image, ImageOps

    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))

    class Pictures(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            picture = ImageOps.expand(Image.fromarray(images[index]), border=4)
            left, top = random.randrange(9), random.randrange(9)
            picture = picture.crop((left, top, left + 32, top + 32))
            if random.random() < 0.5:
                picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous().float().div_(255)
            return tensor.sub_(mean).div_(std), int(labels[index])

    return torch.utils.data.DataLoader(
        Pictures(), batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )


def check(batches, images, loader):
    """Every crop of ours is a window of its padded picture, and both sides have the same channel means."""
    import torch

    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    order = batches._draw(0)[0].numpy()
    first, _ = next(batches.epoch(0))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    pixels = ((first * std + mean) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    for crop, row in zip(pixels[:16], order[:16], strict=True):
        windows = np.lib.stride_tricks.sliding_window_view(padded[row], (32, 32, 3))[:, :, 0]
        assert any((window == c).all() for c in (crop, crop[:, ::-1]) for window in windows.reshape(-1, 32, 32, 3))
    both = [torch.stack([x.mean((0, 2, 3)) for x, _ in side]).mean(0) for side in (batches.epoch(0), loader)]
    torch.testing.assert_close(both[0], both[1], atol=0.05, rtol=0)


def main() -> None:
    options = harness.arguments(__doc__, images=20_000, batch=128, workers=2)
    import torch

    from normscale.bench.data import ImageSet
    from normscale.bench.data.batches import Batches

    torch.set_num_threads(1)
    n = options.images // 4 if options.quick else options.images
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (n, 4, 4, 3), dtype=np.uint8)
    images = coarse.repeat(8, axis=1).repeat(8, axis=2) ^ rng.integers(0, 32, (n, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, 10, n)
    batches = Batches(ImageSet("cifar", images, labels, None, MEAN, STD), options.batch, channels_last=True)
    loader = make_loader(images, labels, options.batch, options.workers)
    check(batches, images, loader)
    result = harness.in_turns(lambda: ours(batches), lambda: peer(loader), quick=options.quick, peer_repeats=5)
    result |= {side + "_images_per_second": round(n / result[side]) for side in ("ours", "peer")}
    result["times_faster"] = round(result["peer"] / result["ours"], 1)
    harness.report(result, "numpy", "torch", "Pillow")


if __name__ == "__main__":
    main()
