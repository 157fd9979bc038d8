"""A small real sample inside the package, so that the first steps need no download.

A network that knows the digits 0 to 7 looks at handwritten digits, at the digits 8 and 9 that it never saw, at
patches of photographs, and at noise. ``README.md`` beside this file says where all of it comes from;
``tools/make_sample.py`` makes it again.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from normscale.outputs import ModelOutputs
from normscale.rows import write_table

_FILE = os.path.join(os.path.dirname(__file__), "digits.npz")
_OOD = ("unseen_digits", "photo_patches", "uniform_noise", "gaussian_noise")


class Sample(NamedTuple):
    """Outputs of one network, with its head; features are its last hidden layer of 32 units."""

    train: ModelOutputs
    """865 digits from 0 to 7 that the network was trained on, with labels."""
    validation: ModelOutputs
    """216 more that it was not, with labels."""
    test: ModelOutputs
    """362 more, with labels."""
    ood: dict[str, ModelOutputs]
    """What the network was not made for: ``unseen_digits`` (near), ``photo_patches``, ``uniform_noise``,
    ``gaussian_noise`` (far)."""
    class_names: tuple[str, ...]

    @property
    def sets(self) -> dict[str, ModelOutputs]:
        """All sets by name."""
        return {"train": self.train, "validation": self.validation, "test": self.test, **self.ood}


def load_sample() -> Sample:
    """Load the embedded sample.

    Examples
    --------
    >>> sample = load_sample()
    >>> sample.test
    ModelOutputs(n=362, logits=8, features=32, labels, head)
    >>> round(sample.test.accuracy, 3)
    0.981
    >>> {name: len(outputs) for name, outputs in sample.ood.items()}
    {'unseen_digits': 354, 'photo_patches': 400, 'uniform_noise': 400, 'gaussian_noise': 400}
    """
    with np.load(_FILE, allow_pickle=False) as file:
        head = file["head_weight"], file["head_bias"]

        def outputs(name: str) -> ModelOutputs:
            labels = file.get(f"{name}_labels")
            # the features are stored in half precision to keep the package small
            return ModelOutputs(file[f"{name}_logits"], file[f"{name}_features"].astype(np.float32), labels, head)

        return Sample(
            train=outputs("train"),
            validation=outputs("validation"),
            test=outputs("test"),
            ood={name: outputs(name) for name in _OOD},
            class_names=tuple("01234567"),
        )


def export_sample(folder: str | os.PathLike[str]) -> list[str]:
    """Write the sample as .npz tables, for the commands to read: train, validation, test and the four others.

    Returns the paths written. The folder is made if it does not exist; files of the same names are replaced.

    Examples
    --------
    >>> import tempfile
    >>> [os.path.basename(path) for path in export_sample(tempfile.mkdtemp())][:4]
    ['train.npz', 'validation.npz', 'test.npz', 'unseen_digits.npz']
    """
    sample = load_sample()
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, outputs in sample.sets.items():
        path = os.path.join(os.fspath(folder), f"{name}.npz")
        write_table(path, outputs, class_names=sample.class_names)
        paths.append(path)
    return paths
