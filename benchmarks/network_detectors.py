"""ODIN, Mahalanobis over all blocks, or extraction alone, against a plain forward pass of the same network; one thread.

Both sides take the same images in the same batches: ResNet-18 of width 16, 32 x 32 images, channels last. The plain
pass is in inference mode and does nothing with the logits. Time is that of the processor: a pass takes long enough to
be interrupted by other programs, and of one thread on a quiet machine it is the time on the clock. Costs grow with the
number of batches, so one batch stands for 10 000 images.
"""

from __future__ import annotations

import time

import harness
import numpy as np

CLASSES, WIDTH, BATCH = 10, 16, 128
REPEATS, QUICK_REPEATS = 30, 8


def plain(model, images, batch_size):
    import torch

    with torch.inference_mode():
        return [model(batch.to(memory_format=torch.channels_last)) for batch in images.split(batch_size)]


def processor_seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(ours, peer, repeats):
    """Smallest time of each side over repetitions ours, peer, ours, peer, ...; the first is not counted."""
    times = [(processor_seconds(ours), processor_seconds(peer)) for _ in range(repeats + 1)][1:]
    smallest = [min(side) for side in zip(*times, strict=True)]
    result = {"ours": smallest[0], "peer": smallest[1], "ratio": smallest[0] / smallest[1]}
    return result | {"repeats": repeats, "peer_repeats": repeats}


def onnx_pass(model, images, batch_size):
    """Forward passes of the network in onnxruntime, one thread, and the file that extraction reads."""
    import os
    import tempfile
    import warnings

    import onnxruntime
    import torch

    path = os.path.join(tempfile.mkdtemp(), "net.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter about itself
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        torch.onnx.export(model, (images[:2],), path, dynamo=True, verbose=False, dynamic_shapes=shapes)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: [session.run(None, {name: part.numpy()}) for part in images.split(batch_size)], path


def main() -> None:
    options = harness.arguments(__doc__, what="odin", batch=BATCH, images=BATCH)
    import torch

    from normscale import Mahalanobis
    from normscale.bench.train import resnet18
    from normscale.extraction import extract
    from normscale.extraction.perturbing import perturbed_logits

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = resnet18(CLASSES, width=WIDTH).eval()
    images = torch.randn(options.images, 3, 32, 32)

    def bare():
        return plain(model, images, options.batch)

    peer = bare
    reference = np.concatenate([logits.numpy() for logits in plain(model, images, options.batch)])
    if options.what == "odin":

        def ours():
            return perturbed_logits(model, images, epsilon=0.0014, std=(0.25, 0.25, 0.25), batch_size=options.batch)

        moved = ours()
        assert moved.shape == reference.shape
        assert 0.0 < np.abs(moved - reference).max() < np.abs(reference).max()
    elif options.what == "mahalanobis":
        training = (torch.randn(1024, 3, 32, 32), torch.arange(1024) % CLASSES)
        train = extract(model, training, layers="all", progress=False)
        detector = Mahalanobis(layers=model.stage_names, shrinkage="oas").fit(train)
        assert len(detector.layers) == 5

        def ours():
            outputs = extract(model, images, layers="all", features=False, batch_size=options.batch)
            return detector.score(outputs)

        assert np.isfinite(ours()).all()
    elif options.what in ("extract", "extract-onnx"):
        peer, given = (bare, model) if options.what == "extract" else onnx_pass(model, images, options.batch)

        def ours():
            return extract(given, images, batch_size=options.batch, progress=False, say=lambda _: None)

        np.testing.assert_allclose(ours().logits, reference, rtol=1e-3, atol=1e-4)
    else:
        raise SystemExit(f"--what must be odin, mahalanobis, extract or extract-onnx; got {options.what}")
    repeats = QUICK_REPEATS if options.quick else REPEATS
    result = in_turns(ours, peer, repeats)
    harness.report(result, "torch", "numpy")


if __name__ == "__main__":
    main()
