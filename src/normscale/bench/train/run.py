"""From a data set's name to a trained network: load, split, train, test, and read its outputs.

A run is a folder. ``checkpoint.safetensors`` and ``log.jsonl`` grow while it trains; at the end come
``network.safetensors``, ``result.json``, and the network's outputs on its own training, validation and test set and on
any OoD set asked for, as tables that ``normscale fit`` and ``normscale eval`` read. Started again, a run goes on where
it stopped; tables that lack a layer asked for are written anew. ``network.safetensors`` and ``result.json`` are enough
for that: put into a run's folder from elsewhere, they stand for the whole training.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from normscale._atomic import atomic_path
from normscale._provenance import environment
from normscale._version import __version__
from normscale.bench.data import Batches, ImageSet, find_source, load, short_name
from normscale.bench.network_folder import OWN_SETS, NetworkFolder
from normscale.bench.train.network_file import NetworkInfo, load_network, save_network
from normscale.bench.train.recipes import find_recipe
from normscale.bench.train.resnet import ResidualNetwork
from normscale.bench.train.training import EpochLog, accuracy, other_settings, train
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput, NormscaleError
from normscale.extraction.extracting import extract
from normscale.extraction.layers import Layers
from normscale.rows import read_table, write_table

VALIDATION_SHARE = 0.1
SAFE_CHANNELS = 8
"""With fewer channels, the weight gradient of a strided 1 x 1 convolution in channels-last layout writes beyond its
memory in torch 2.13 on a CPU (seen: heap corruption, aborts). Narrower networks keep the usual layout."""


class RunResult(NamedTuple):
    """What a run came to."""

    folder: str
    network: ResidualNetwork
    info: NetworkInfo
    log: list[EpochLog]
    missing: dict[str, str]
    """OoD sets that could not be had, and why."""


def split_validation(images: ImageSet, seed: int, share: float = VALIDATION_SHARE) -> tuple[ImageSet, ImageSet]:
    """A training and a validation part, drawn by the seed; the paper's 90/10.

    Examples
    --------
    >>> train, validation = split_validation(load("digits"), seed=0)
    >>> len(train), len(validation)
    (1167, 130)
    """
    order = np.random.default_rng(seed).permutation(len(images))
    n_validation = round(share * len(images))
    return images[np.sort(order[n_validation:])], images[np.sort(order[:n_validation])]


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
    tick: Callable[[float], None] = lambda _: None,
) -> RunResult:
    """Train a network on a data set, or go on with it, and write everything a comparison needs to ``folder``.

    Parameters
    ----------
    folder : path
        Where the run lives.
    data : str
        A name of :func:`normscale.bench.data.list_sets`, ``npz:PATH`` or ``folder:PATH``.
    network, width : str, int
        ``resnet18``, ``resnet20`` or ``wide_resnet40_2``, and the width of its first stage.
    recipe, epochs : str, int
        ``paper`` or ``fast``; the epochs, if not the recipe's own.
    seed : int
        Of the weights, the split, the order and the augmentation.
    image_size : (height, width), optional
        Make all pictures this size.
    ood : names of sets
        The network's outputs on these are written too. One that cannot be had is reported, not fatal.
    layers : None, "all", or names of modules
        Further layers in the outputs, as in :func:`normscale.extraction.extract`.
    outputs : bool
        False writes no outputs at all, for a caller that reads out more than logits and features.
    root : path, optional
        Where data sets are kept.
    say : callable
        Told in a sentence what is done.
    tick : callable
        Told after every step which share of an epoch it was.
    """
    steps = find_recipe(recipe).with_epochs(epochs)
    published = load(data, "train", root=root)
    everything = published if image_size is None else published.in_size(*image_size)
    test = load(data, "test", root=root, like=everything)
    _require_same_classes(everything, test, data)
    sets = _by_short_name(ood)
    if everything.mean is None or everything.std is None:
        raise InvalidInput(f"{data} has no mean and std to normalise by; is it a training set?")
    training, validation = split_validation(everything, seed)
    height, breadth, channels = everything.shape
    info = NetworkInfo(
        network, everything.n_classes, width, channels, (height, breadth), everything.mean, everything.std,
        everything.class_names, data, seed,
    )  # fmt: skip
    channels_last = width >= SAFE_CHANNELS
    sizes = f"{len(training)} images to train on, {len(validation)} to validate, {len(test)} to test"
    say(f"{sizes}; {network}, width {width}")
    batches = Batches(
        training,
        steps.batch_size,
        flip=may_be_mirrored(data),
        padding=max(1, height // 8),
        seed=seed,
        channels_last=channels_last,
        drop_last=len(training) > steps.batch_size,
    )
    plain = {
        "train": plain_batches(training, info),
        "validation": plain_batches(validation, info),
        "test": plain_batches(test, info),
    }
    made = {} if everything is published else {"image_size": list(everything.shape[:2])}
    settings = {"data": data, "network": network, "width": width, "seed": seed, "n_train": len(training), **made}
    described = {**settings, "n_test": len(test), "recipe": steps._asdict()}
    files = NetworkFolder(folder)
    done = _finished(files, info, described)
    if done is None:
        torch.manual_seed(seed)
        model = _laid_out(info.build(), channels_last)
        log = train(model, batches, steps, folder=folder, validation=plain["validation"], settings=settings, tick=tick)
        info = info._replace(test_accuracy=accuracy(model, plain["test"]))
        done = _Finished(model, info, log, {**described, **_came_to(info, log)})
        save_network(files.network, model, info)
    else:
        model, info = _laid_out(done.network, channels_last), done.info
        tick(steps.epochs)
    say(f"test accuracy {info.test_accuracy:.2%}")
    missing: dict[str, str] = {}
    if outputs:
        files.make()
        for name, batches in plain.items():
            _write_outputs(files.outputs(name), model, batches, layers)
        missing = extract_sets(folder, model, info, sets, test, layers=layers, root=root, say=say)
    _write_result(files, {**done.result, "missing": missing})
    return RunResult(os.fspath(folder), model, info, done.log, missing)


def _laid_out(model: ResidualNetwork, channels_last: bool) -> ResidualNetwork:
    return model.to(memory_format=torch.channels_last) if channels_last else model  # type: ignore[call-overload]


def may_be_mirrored(data: str) -> bool:
    """Whether a picture in the mirror is still of its class; a pack named after a known set is treated like that set.

    Examples
    --------
    >>> [may_be_mirrored(data) for data in ("cifar10", "svhn", "npz:packs/svhn", "npz:my_animals.npz")]
    [True, False, False, True]
    """
    try:
        return find_source(short_name(data)).flip
    except InvalidInput:
        if ":" not in data:
            raise
        return True


def extract_sets(
    folder: str | os.PathLike[str],
    model: nn.Module,
    info: NetworkInfo,
    sets: Mapping[str, str],
    like: ImageSet,
    *,
    layers: Layers = None,
    root: str | os.PathLike[str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Write a network's outputs on OoD sets to its run's folder; returns those that could not be had, and why.

    Parameters
    ----------
    sets : mapping of name to source
        Under which name the outputs are written, and where the set comes from.
    like : ImageSet
        The network's own test set: pictures are made of its size, and noise is drawn of its size and length.
    layers : None, "all", or names of modules
        Further layers in the outputs, as in :func:`normscale.extraction.extract`.
    """
    missing: dict[str, str] = {}
    for name, source in sets.items():
        try:
            images = load(source, "test", root=root, like=like, seed=info.seed or 0)
        except NormscaleError as error:
            missing[name] = str(error)
            say(f"{name} could not be had: {error}")
            continue
        _write_outputs(NetworkFolder(folder).outputs(name), model, plain_batches(images, info), layers, ood=True)
    return missing


def _require_same_classes(train: ImageSet, test: ImageSet, data: str) -> None:
    """Refuse a test set whose classes are not those of training, name by name."""
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
    """OoD sets by the names that their outputs get."""
    found: dict[str, str] = {}
    for source in sources:
        name = short_name(source)
        if name in OWN_SETS or found.setdefault(name, source) != source:
            taken = "the network's own set" if name in OWN_SETS else found[name]
            raise InvalidInput(
                f"the outputs of {source} would be called {name}, as those of {taken} are. Rename the file."
            )
    return found


def plain_batches(images: ImageSet, info: NetworkInfo) -> Batches:
    """Pictures as the network takes them: normalised, not augmented, in their order."""
    return Batches(images, 500, augment=False, mean=info.mean, std=info.std, channels_last=True)


def _write_outputs(path: Path, model: nn.Module, batches: Batches, layers: Layers, *, ood: bool = False) -> None:
    """Write a network's outputs on a set, unless a table with these layers, of this network and these images, is there.

    Whether it is can be seen on its first batch, which is run again.
    """
    first = extract(model, [next(iter(batches))], layers=layers, ood=ood, progress=False)
    try:
        there = read_table(path)[: len(first)] if len(read_table(path)) == batches.n_images else None
    except (NormscaleError, OSError):
        there = None
    if (
        there is None
        or there.head is None
        or not all(
            name in there.names and np.allclose(there.array(name), first.array(name), rtol=1e-3, atol=1e-4)
            for name in first.names
        )
    ):
        write_table(path, extract(model, batches, layers=layers, ood=ood))


class _Finished(NamedTuple):
    """A network whose training has ended, here or elsewhere."""

    network: ResidualNetwork
    info: NetworkInfo
    log: list[EpochLog]
    result: dict[str, Any]


def _finished(files: NetworkFolder, info: NetworkInfo, described: dict[str, Any]) -> _Finished | None:
    """The network that is there, if it is finished; one that was trained otherwise is refused."""
    if not (files.network.exists() and files.result.exists()):
        return None
    network, found = load_network(files.network)
    result = read_json(files.result.read_text())
    wanted = read_json(write_json(described))
    changed = sorted(key for key in wanted if result.get(key) != wanted[key])
    if not changed:
        asked = info._replace(test_accuracy=found.test_accuracy)._asdict()
        changed = [name for name, value in asked.items() if not _alike(getattr(found, name), value)]
    if changed:
        raise other_settings(files.path, changed)
    log = [EpochLog(**line) for line in result["log"]]
    return _Finished(network, found, log, result)


def _alike(a: Any, b: Any) -> bool:
    """Equal, but for the last digits of means: another processor adds pictures up in another order."""
    if isinstance(b, tuple) and b and isinstance(b[0], float):
        return bool(a is not None and len(a) == len(b) and np.allclose(a, b, rtol=1e-9, atol=0.0))
    return bool(a == b)


def _came_to(info: NetworkInfo, log: list[EpochLog]) -> dict[str, Any]:
    """What a training came to, and what it ran on."""
    return {
        "test_accuracy": info.test_accuracy,
        "log": [line._asdict() for line in log],
        "version": __version__,
        "environment": environment(),
        "threads": torch.get_num_threads(),
    }


def _write_result(files: NetworkFolder, result: dict[str, Any]) -> None:
    with atomic_path(files.result) as temporary:
        Path(temporary).write_text(write_json(result, indent=1) + "\n")
