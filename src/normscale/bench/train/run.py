"""From a data set's name to a trained network: load, split, train, test, and read its outputs.

A run is a folder, see :mod:`normscale.bench.network_folder`. Started again, it goes on where it stopped, and writes its
outputs anew. ``network.safetensors`` and ``result.json`` from elsewhere count as the whole training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from normscale._provenance import environment
from normscale._version import __version__
from normscale.bench.data import ImageSet, find_source, load, short_name
from normscale.bench.data.batches import Batches
from normscale.bench.network_folder import OWN_SETS, NetworkFolder, read_document, write_document
from normscale.bench.train.network_file import NetworkInfo, load_network, round_weights, save_network
from normscale.bench.train.resnet import ResidualNetwork
from normscale.bench.train.training import EpochLog, accuracy, find_recipe, other_settings, train
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput, NormscaleError
from normscale.extraction.extracting import extract
from normscale.extraction.layers import Layers
from normscale.rows import write_table

VALIDATION_SHARE = 0.1
SAFE_CHANNELS = 8
"""With fewer channels, the weight gradient of a strided 1 x 1 convolution in channels-last layout writes beyond its
memory in torch 2.13 on a CPU (seen: heap corruption, aborts). Narrower networks keep the usual layout."""


class Splits(NamedTuple):
    """The parts of a data set: nine tenths of the training pictures, the others, and the test pictures."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    resized: bool
    """Whether the pictures were made another size."""


class RunResult(NamedTuple):
    """What a run came to."""

    folder: str
    network: ResidualNetwork
    info: NetworkInfo
    log: list[EpochLog]
    missing: dict[str, str]
    """OoD sets that could not be had, and why."""
    splits: Splits


def load_splits(
    data: str, seed: int, image_size: tuple[int, int] | None = None, root: str | os.PathLike[str] | None = None
) -> Splits:
    """Load a data set, in its own size or another, and draw the validation part by the seed; the paper's 90/10."""
    published = load(data, "train", root=root)
    images = published if image_size is None else published.in_size(*image_size)
    test = load(data, "test", root=root, like=images)
    _require_same_classes(images, test, data)
    order = np.random.default_rng(seed).permutation(len(images))
    n_validation = round(VALIDATION_SHARE * len(images))
    rows = np.sort(order[n_validation:]), np.sort(order[:n_validation])
    return Splits(images[rows[0]], images[rows[1]], test, images is not published)


def train_network(
    folder: str | os.PathLike[str],
    data: str = "digits",
    *,
    network: str = "resnet18",
    width: int = 64,
    recipe: str = "paper",
    epochs: int | None = None,
    seed: int = 0,
    image_size: tuple[int, int] | None = None,
    ood: Sequence[str] = (),
    layers: Layers = None,
    outputs: bool = True,
    root: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Train a network on a data set, or go on with it, and write everything a comparison needs to ``folder``.

    Parameters
    ----------
    data : str
        A name of :func:`normscale.bench.data.list_sets`, ``npz:PATH`` or ``folder:PATH``.
    network, width, recipe : str, int, str
        ``resnet18`` or ``resnet20``; channels of its first stage; ``paper`` or ``fast``.
    image_size : (height, width), optional
        Make all pictures this size.
    ood, layers : names
        OoD sets and layers whose outputs are written too. A set that cannot be had is reported, not fatal.
    outputs : bool
        False writes no outputs at all, for a caller that reads out more than logits and features.
    say : callable
        Called with a sentence on what is done.
    """
    steps = find_recipe(recipe, epochs)
    splits = load_splits(data, seed, image_size, root)
    sets = _by_short_name(ood)
    training, validation, test, resized = splits
    if training.mean is None or training.std is None:
        raise InvalidInput(f"{data} has no mean and std to normalise by; is it a training set?")
    height, breadth, channels = training.shape
    info = NetworkInfo(
        network, training.n_classes, width, channels, (height, breadth), training.mean, training.std,
        training.class_names, data, seed,
    )  # fmt: skip
    channels_last = width >= SAFE_CHANNELS
    sizes = f"{len(training)} images to train on, {len(validation)} to validate, {len(test)} to test"
    say(f"{sizes}; {network}, width {width}")
    settings = {"data": data, "network": network, "width": width, "seed": seed, "n_train": len(training)}
    settings |= {"image_size": [height, breadth]} if resized else {}
    described = {**settings, "n_test": len(test), "recipe": steps._asdict()}
    files = NetworkFolder(folder)
    done = _finished(files, info, described)
    if done is None:
        torch.manual_seed(seed)
        model = _laid_out(info.build(), channels_last)
        batches = Batches(
            training,
            steps.batch_size,
            flip=may_be_mirrored(data),
            padding=max(1, height // 8),
            seed=seed,
            channels_last=channels_last,
            drop_last=len(training) > steps.batch_size,
        )
        checked = plain_batches(validation, info)
        log = train(model, batches, steps, folder=folder, validation=checked, settings=settings)
        round_weights(model)  # what is measured is the network that is kept
        info = info._replace(test_accuracy=accuracy(model, plain_batches(test, info)))
        result: dict[str, Any] = {
            **described,
            "test_accuracy": info.test_accuracy,
            "log": [line._asdict() for line in log],
            "version": __version__,
            "environment": environment(),
            "threads": torch.get_num_threads(),
        }
        save_network(files.network, model, info)
    else:
        model, info, result = _laid_out(done[0], channels_last), done[1], read_document(files.result)
        log = [EpochLog(**line) for line in result["log"]]
    say(f"test accuracy {info.test_accuracy:.2%}")
    run = RunResult(os.fspath(folder), model, info, log, {}, splits)
    if outputs:
        files.make()

        def write(name: str, read: Callable[[], ImageSet]) -> None:
            extracted = extract(model, plain_batches(read(), info), layers=layers, ood=name not in OWN_SETS)
            write_table(files.outputs(name), extracted)

        run = run._replace(missing=with_each_set(run, sets, root, write))
    for name, why in run.missing.items():
        say(f"{name} could not be had: {why}")
    write_document(files.result, {**result, "missing": run.missing})
    return run


def with_each_set(
    run: RunResult,
    ood: Mapping[str, str],
    root: str | os.PathLike[str] | None,
    write: Callable[[str, Callable[[], ImageSet]], None],
) -> dict[str, str]:
    """Call ``write`` with the name of every set and what reads it; returns OoD sets that could not be had, and why."""
    splits, seed, missing = run.splits, run.info.seed or 0, {}
    for name, images in zip(OWN_SETS, splits[:3], strict=True):
        write(name, lambda images=images: images)  # type: ignore[misc]
    for name, source in ood.items():
        try:
            write(name, partial(load, source, "test", root=root, like=splits.test, seed=seed))
        except NormscaleError as error:
            missing[name] = str(error)
    return missing


def _laid_out(model: ResidualNetwork, channels_last: bool) -> ResidualNetwork:
    return model.to(memory_format=torch.channels_last) if channels_last else model  # type: ignore[call-overload]


def may_be_mirrored(data: str) -> bool:
    """Whether a picture in the mirror is still of its class; a pack named after a known set is taken for that set."""
    try:
        return find_source(short_name(data)).flip
    except InvalidInput:
        if ":" not in data:
            raise
        return True


def _require_same_classes(train: ImageSet, test: ImageSet, data: str) -> None:
    if train.class_names is None or test.class_names is None or train.class_names == test.class_names:
        return
    strange = [name for name in test.class_names if name not in train.class_names]
    what = (
        f"has classes that training has not: {', '.join(strange[:5])}" if strange else "numbers its classes otherwise"
    )
    raise InvalidInput(
        f"the test set of {data} {what}. Both must have the same class_names, in the same order; "
        "what training does not know belongs into an OoD set."
    )


def _by_short_name(sources: Sequence[str]) -> dict[str, str]:
    sources_by_name: dict[str, str] = {}
    for source in sources:
        name = short_name(source)
        if name in OWN_SETS or sources_by_name.setdefault(name, source) != source:
            taken = "the network's own set" if name in OWN_SETS else sources_by_name[name]
            raise InvalidInput(
                f"the outputs of {source} would be called {name}, as those of {taken} are. Rename the file."
            )
    return sources_by_name


def plain_batches(images: ImageSet, info: NetworkInfo) -> Batches:
    """Pictures as the network takes them: normalised, not augmented, in their order."""
    return Batches(images, 500, augment=False, mean=info.mean, std=info.std, channels_last=True)


def _finished(
    files: NetworkFolder, info: NetworkInfo, described: dict[str, Any]
) -> tuple[ResidualNetwork, NetworkInfo] | None:
    """The network that is there, if it is finished; one that was trained otherwise is refused."""
    if not (files.network.exists() and files.result.exists()):
        return None
    network, trained = load_network(files.network)
    result, expected = read_document(files.result), read_json(write_json(described))
    changed = sorted(key for key in expected if result.get(key) != expected[key])
    if not changed:
        asked = info._replace(test_accuracy=trained.test_accuracy)._asdict()
        changed = [name for name, value in asked.items() if not _alike(getattr(trained, name), value)]
    if changed:
        raise other_settings(files.path, changed)
    return network, trained


def _alike(a: Any, b: Any) -> bool:
    """Equal, but for the last digits of means: another processor adds pictures up in another order."""
    if isinstance(b, tuple) and b and isinstance(b[0], float):
        return bool(a is not None and len(a) == len(b) and np.allclose(a, b, rtol=1e-9, atol=0.0))
    return bool(a == b)
