"""Every data set by name: where it officially lies, how large it is, its checksum and terms. The only such table.

Addresses and MD5 sums are those that torchvision pins (a test compares them); SHA-256 and sizes are as TensorFlow
Datasets records them. TinyImageNet has no published checksum; its MD5 and size are those that public loaders agree on.
Channel means and standard deviations are of the training pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from normscale.errors import InvalidInput


@dataclass(frozen=True)
class RemoteFile:
    """A published file: its address, its size, its checksum, and where below the set's folder it is kept."""

    path: str
    url: str
    size: int
    digest: str
    """MD5 (32 digits) or SHA-256 (64 digits)."""
    splits: tuple[str, ...] = ("train", "test")
    """Which splits need it."""

    def describe(self) -> str:
        """Size and checksum, for a person who fetches it by hand."""
        return f"{self.size} bytes, {'MD5' if len(self.digest) == 32 else 'SHA-256'} {self.digest}"


@dataclass(frozen=True)
class Source:
    """What is known of a data set before it is loaded."""

    name: str
    title: str
    images: dict[str, int]
    """Number of pictures of each split; empty for noise, which is as large as the set it is drawn for."""
    shape: tuple[int, int, int] | None
    """Height, width, channels; None where every photograph has its own size, or noise takes another set's."""
    licence: str
    homepage: str
    files: tuple[RemoteFile, ...] = ()
    """Empty for what is embedded or drawn."""
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    flip: bool = True
    """Whether a picture in the mirror is still of its class."""

    @property
    def kind(self) -> str:
        """``embedded``, ``noise`` or ``download``."""
        return "download" if self.files else "embedded" if self.images else "noise"

    @property
    def where(self) -> str:
        """A few words for a table."""
        return {"embedded": "in the package", "noise": "drawn"}.get(self.kind) or self.homepage

    def files_of(self, split: str) -> list[RemoteFile]:
        """The published files that a split needs."""
        return [file for file in self.files if split in file.splits]

    def checked_split(self, split: str | None) -> str:
        """The split, by default train where there is one, otherwise the only one; an error where it does not exist."""
        if split is None:
            return "train" if "train" in self.images or not self.images else next(iter(self.images))
        if split not in self.images:
            raise InvalidInput(f"{self.name} has no split {split!r}; it has {', '.join(map(repr, self.images))}.")
        return split


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_PLACES = "http://data.csail.mit.edu/places/places365/"
_DTD = "https://www.robots.ox.ac.uk/~vgg/data/dtd/"
_GREEK = (
    "Gamma Delta Lambda Xi Pi Sigma Upsilon Phi Chi Psi Omega Eta Kappa Mu Nu "
    "alpha gamma eta kappa lambda mu nu xi pi tau upsilon phi chi psi omega"
)
_CLOTHES = "T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
LSUN_SCENES = {  # size and SHA-256 of the validation pictures
    "bedroom": (4670661, "5d022e781b241c25ec2e1f1f769afcdb8091d7fd58362667aec03137b8114b12"),
    "bridge": (6176834, "83216a2974d6068c2e1d18086006e7380ff58540216f955ce87fe049b460cb0d"),
    "church_outdoor": (5957308, "34635b7547a3e51a15f942a4a4082dd6bc9cca381a953515cb2275c0eed50584"),
    "classroom": (5880261, "5e0e9a375d94091dfe1fa3be87d4a92f41c03f1c0b8e376acc7e05651de512d7"),
    "conference_room": (5316084, "927c94df52e10b9b374748c2b83b28b5860e946b3186dfd587985e274834650f"),
    "dining_room": (5301030, "bd604d4b91bb5a9611d4e0b85475efd20758390d1a4eb57b53973fcbb5aa8ab6"),
    "kitchen": (4867891, "329165f35ec61c4cf49f809246de300b8baad3ffcbda1ac30c27bdd32c84369a"),
    "living_room": (5167755, "30a23d9a3db5414e9c97865f60ffb2ee973bfa658a23dbca7188ea514c97c9fc"),
    "restaurant": (6232385, "efaa7bcb898ad6cb73b07b89fec3a9c670f4622912eea22fab3986c2cf9a1c20"),
    "tower": (5223709, "7f5257847bc01f4e40d4a1b3e24dd8fcd37063f12ca8cf31e726c2ee0b1ae104"),
}
_SMALL = (8, 8, 1)

_ALL = (
    Source(  # the 1 797 digits that scikit-learn ships; 50 of each are the test set
        "digits",
        "Handwritten digits (UCI)",
        {"train": 1297, "test": 500},
        _SMALL,
        licence="CC BY 4.0",
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        class_names=tuple("0123456789"),
        flip=False,
    ),
    Source(
        "fashion",
        "Clothes (Fashion-MNIST), 8 x 8",
        {"test": 1000},
        _SMALL,
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        class_names=tuple(_CLOTHES.split(", ")),
    ),
    Source(
        "letters",
        "Greek letters in twelve faces, 8 x 8",
        {"test": 720},
        _SMALL,
        licence="Bitstream Vera",
        homepage="https://dejavu-fonts.github.io/",
        class_names=tuple(_GREEK.split()),
        flip=False,
    ),
    Source(
        "photos",
        "Patches of two photographs, 8 x 8",
        {"test": 500},
        _SMALL,
        licence="CC BY 2.0",
        homepage="https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
        class_names=("china", "flower"),
    ),
    Source(
        "surfaces",
        "Brick, grass and gravel, 8 x 8",
        {"test": 768},
        _SMALL,
        licence="CC0 1.0",
        homepage="https://scikit-image.org/docs/stable/api/skimage.data.html",
        class_names=("brick", "grass", "gravel"),
    ),
    Source("gaussian", "Gaussian noise, N(0, 1) in normalised space", {}, None, "none needed", ""),
    Source("uniform", "Uniform noise, U(0, 1) in normalised space", {}, None, "none needed", ""),
    Source(
        "cifar10",
        "CIFAR-10",
        {"train": 50_000, "test": 10_000},
        (32, 32, 3),
        licence="none stated; cite the report",
        homepage=_TORONTO + "cifar.html",
        files=(
            RemoteFile(
                "cifar-10-python.tar.gz",
                _TORONTO + "cifar-10-python.tar.gz",
                170_498_071,
                "c58f30108f718f92721af3b95e74349a",
            ),
        ),
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
    ),
    Source(
        "cifar100",
        "CIFAR-100",
        {"train": 50_000, "test": 10_000},
        (32, 32, 3),
        licence="none stated; cite the report",
        homepage=_TORONTO + "cifar.html",
        files=(
            RemoteFile(
                "cifar-100-python.tar.gz",
                _TORONTO + "cifar-100-python.tar.gz",
                169_001_437,
                "eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
    ),
    Source(
        "svhn",
        "Street View House Numbers, cropped digits",
        {"train": 73_257, "test": 26_032},
        (32, 32, 3),
        licence="non-commercial use",
        homepage=_SVHN,
        files=tuple(
            RemoteFile(f"{split}_32x32.mat", f"{_SVHN}{split}_32x32.mat", size, md5, (split,))
            for split, size, md5 in (
                ("train", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
                ("test", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
            )
        ),
        class_names=tuple("0123456789"),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        flip=False,
    ),
    Source(  # the test set is the published validation set; the published test set has no labels
        "tinyimagenet",
        "Tiny ImageNet (200 classes)",
        {"train": 100_000, "test": 10_000},
        (64, 64, 3),
        licence="ImageNet terms, research only",
        homepage="https://www.kaggle.com/c/tiny-imagenet",
        files=(
            RemoteFile(
                "tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                248_100_043,
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2764, 0.2689, 0.2816),
    ),
    Source(  # 300 validation pictures of each scene
        "lsun",
        "LSUN, ten scenes",
        {"test": 3_000},
        None,
        licence="none stated; research",
        homepage="https://www.yf.io/p/lsun",
        files=tuple(
            RemoteFile(
                f"{scene}_val_lmdb.zip", f"http://dl.yf.io/lsun/scenes/{scene}_val_lmdb.zip", size, sha256, ("test",)
            )
            for scene, (size, sha256) in LSUN_SCENES.items()
        ),
    ),
    Source(
        "places365",
        "Places365-Standard, validation",
        {"test": 36_500},
        None,
        licence="non-commercial research",
        homepage="http://places2.csail.mit.edu/",
        files=tuple(
            RemoteFile(name, _PLACES + name, size, md5, ("test",))
            for name, size, md5 in (
                ("val_256.tar", 525_158_400, "e27b17d8d44f4af9a78502beb927f808"),
                ("filelist_places365-standard.tar", 67_498_496, "35a0585fee1fa656440f3ab298f8479c"),
            )
        ),
    ),
    Source(  # all pictures of its three parts
        "textures",
        "Describable Textures (DTD)",
        {"test": 5_640},
        None,
        licence="research only",
        homepage=_DTD,
        files=(
            RemoteFile(
                "dtd/dtd-r1.0.1.tar.gz",
                _DTD + "download/dtd-r1.0.1.tar.gz",
                625_239_812,
                "fff73e5086ae6bdbea199a49dfb8a4c1",
                ("test",),
            ),
        ),
    ),
)
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def list_sets() -> tuple[Source, ...]:
    """Every data set known by name.

    Examples
    --------
    >>> [source.name for source in list_sets() if source.kind == "embedded"]
    ['digits', 'fashion', 'letters', 'photos', 'surfaces']
    """
    return tuple(SOURCES.values())


def find_source(name: str) -> Source:
    """The record of a data set; a name that is not known is an error with the nearest one."""
    try:
        return SOURCES[name]
    except (KeyError, TypeError):
        near = get_close_matches(str(name), SOURCES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise InvalidInput(
            f"unknown data set {name!r}; known: {', '.join(SOURCES)}, npz:PATH, folder:PATH.{hint}"
        ) from None


def short_name(source: str) -> str:
    """What a data set is called in files and tables.

    Examples
    --------
    >>> short_name("npz:packs/svhn_test.npz"), short_name("svhn")
    ('svhn_test', 'svhn')
    """
    _, colon, path = source.partition(":")
    return Path(path).stem if colon else source
