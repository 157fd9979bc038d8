"""Make the embedded sample: what a small network says about digits, unseen digits, photographs and noise.

Claim: a 64-64-32-8 network trained for 30 epochs on the digits 0 to 7 reaches more than 97 % test accuracy, and
tells the digits 8 and 9, which it never saw, from those with an AUROC of about 0.94 (log-odds of the softmax).
One core, a few seconds.

    python tools/make_sample.py            # writes src/normscale/sample/{digits.npz, origin.json}
    python tools/make_sample.py --check    # makes it again and compares

Needs scikit-learn, which ships the digits and the photographs, and Pillow, which opens the latter. The bytes are
the same for the versions in origin.json; others may round the last digit of a logit differently.
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import sklearn
from sklearn.datasets import load_digits, load_sample_images
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

FOLDER = Path(__file__).resolve().parent.parent / "src" / "normscale" / "sample"
SEED = 0
N_CLASSES = 8  # digits 0 to 7 are known to the network
N_OOD = 400


# --- inputs: 64 grey values from 0 (paper) to 16 (ink) --------------------------------------------------------


def digits() -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """60 % train, 15 % validation, 25 % test of the known digits; all of the unseen ones."""
    images, digit = load_digits(return_X_y=True)
    known = digit < N_CLASSES
    train, rest, train_y, rest_y = train_test_split(
        images[known], digit[known], train_size=0.6, stratify=digit[known], random_state=SEED
    )
    validation, test, validation_y, test_y = train_test_split(
        rest, rest_y, train_size=0.375, stratify=rest_y, random_state=SEED
    )
    return {
        "train": (train, train_y),
        "validation": (validation, validation_y),
        "test": (test, test_y),
        "unseen_digits": (images[~known], None),
    }


def photo_patches(rng: np.random.Generator) -> np.ndarray:
    """Squares of 32 x 32 pixels averaged to 8 x 8, the way the digits were made from 32 x 32 bitmaps."""
    patches = []
    for image in load_sample_images().images:
        grey = image.astype(np.float64) @ [0.299, 0.587, 0.114]
        rows, columns = grey.shape[0] // 32, grey.shape[1] // 32
        small = grey[: rows * 32, : columns * 32].reshape(rows * 8, 4, columns * 8, 4).mean(axis=(1, 3))
        squares = small.reshape(rows, 8, columns, 8).swapaxes(1, 2).reshape(-1, 64)
        chosen = rng.choice(len(squares), N_OOD // 2, replace=False)
        patches.append(squares[np.sort(chosen)] / 255 * 16)
    return np.concatenate(patches)


def inputs() -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    rng = np.random.default_rng(SEED)
    return {
        **digits(),
        "photo_patches": (photo_patches(rng), None),
        "uniform_noise": (rng.uniform(0, 16, (N_OOD, 64)), None),
        "gaussian_noise": (np.clip(rng.normal(8, 4, (N_OOD, 64)), 0, 16), None),
    }


# --- network --------------------------------------------------------------------------------------------------


def trained(images: np.ndarray, digit: np.ndarray) -> MLPClassifier:
    network = MLPClassifier((64, 32), learning_rate_init=0.003, max_iter=30, random_state=SEED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it stops after 30 epochs on purpose
        return network.fit(images / 16, digit)


def outputs(network: MLPClassifier, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits (before the softmax) and features (the last hidden layer)."""
    layer = images / 16
    for weights, bias in zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True):
        layer = np.maximum(layer @ weights + bias, 0)
    return layer @ network.coefs_[-1] + network.intercepts_[-1], layer


# --- measures -------------------------------------------------------------------------------------------------


def log_odds(logits: np.ndarray) -> np.ndarray:
    """log((1 - p) / p) of the largest softmax probability p."""
    ordered = np.sort(logits.astype(np.float64), axis=1)
    return np.logaddexp.reduce(ordered[:, :-1], axis=1) - ordered[:, -1]


def energy(logits: np.ndarray) -> np.ndarray:
    return -np.logaddexp.reduce(logits.astype(np.float64), axis=1)


def auroc(score, known: np.ndarray, other: np.ndarray) -> float:
    truth = np.r_[np.zeros(len(known)), np.ones(len(other))]
    return round(float(roc_auc_score(truth, np.r_[score(known), score(other)])), 4)


# --- files ----------------------------------------------------------------------------------------------------


def make() -> tuple[bytes, dict[str, object]]:
    tables = inputs()
    network = trained(*tables["train"])
    arrays: dict[str, np.ndarray] = {
        "head_weight": network.coefs_[-1].T.astype(np.float32),
        "head_bias": network.intercepts_[-1].astype(np.float32),
    }
    for name, (images, digit) in tables.items():
        logits, features = outputs(network, images)
        arrays[f"{name}_logits"] = logits.astype(np.float32)
        arrays[f"{name}_features"] = features.astype(np.float16)
        if digit is not None:
            arrays[f"{name}_labels"] = digit.astype(np.int8)
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    test = arrays["test_logits"]
    origin: dict[str, object] = {
        "made_by": "tools/make_sample.py",
        "sha256": hashlib.sha256(file.getvalue()).hexdigest(),
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "rows": {name: len(images) for name, (images, _) in tables.items()},
        "test_accuracy": round(float((test.argmax(axis=1) == arrays["test_labels"]).mean()), 4),
        "auroc": {
            name: {f.__name__: auroc(f, test, arrays[f"{name}_logits"]) for f in (log_odds, energy)}
            for name in ("unseen_digits", "photo_patches", "uniform_noise", "gaussian_noise")
        },
    }
    return file.getvalue(), origin


def main() -> None:
    with threadpool_limits(1):  # the order of additions, and so the last bits, depend on the threads
        data, origin = make()
    print(json.dumps(origin, indent=2))
    if "--check" in sys.argv:
        same = (FOLDER / "digits.npz").read_bytes() == data
        sys.exit(0 if same else "digits.npz differs from what this tool writes")
    (FOLDER / "digits.npz").write_bytes(data)
    (FOLDER / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")


if __name__ == "__main__":
    main()
