"""OpenOOD's benchmarks as folders: what is there, what is missing, and a comparison on a part of one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from PIL import Image

import normscale as ns
from needed_extras import need
from normscale.bench.data.benchmarks import FoundSet, find_benchmark, find_sets, list_benchmarks
from normscale.extraction import extract
from program import normscale_here
from small_network import NET

need("pyarrow")


def listed(root: Path, listing: str, images: str, name: str, n: int, *, labels: bool, dark: int = 1) -> Path:
    """Pictures below a folder and the list that names them, as OpenOOD has them."""
    rng = np.random.default_rng(n)
    lines = []
    for i in range(n):
        path = root / images / name / f"class {i % 3}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((rng.integers(0, 256, (14, 14, 3)) // dark).astype(np.uint8)).save(path)
        lines.append(f"{path.relative_to(root / images)} {i % 4 if labels else -1}")
    file = root / "benchmark_imglist" / listing
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\r\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of ImageNet-1k: lists with pictures, one set in an .npz file; the rest is missing."""
    folder = tmp_path_factory.mktemp("data")
    large = "images_largescale"
    listed(folder, "imagenet/test_imagenet.txt", large, "imagenet_1k", 40, labels=True)
    listed(folder, "imagenet/test_ninco.txt", large, "ninco", 20, labels=False, dark=4)
    listed(folder, "imagenet/test_imagenet_r.txt", large, "imagenet_r", 15, labels=True, dark=2)
    listed(folder, "imagenet/test_textures.txt", "images_classic", "texture", 12, labels=False, dark=8)
    (folder / "images_classic" / "texture" / "class 1" / "4.png").unlink()
    images = np.random.default_rng(0).integers(0, 64, (25, 14, 14, 3), dtype=np.uint8)
    np.savez(folder / "ssb_hard.npz", images=images)
    (folder / "net.py").write_text(NET)
    return folder


def test_the_table_is_complete_where_it_speaks() -> None:
    for benchmark in list_benchmarks():
        roles = [one.role for one in benchmark.sets]
        assert roles[:3] == ["train", "validation", "test"]
        assert len({one.name for one in benchmark.sets}) == len({one.list for one in benchmark.sets}) == len(roles)
        shifted = 3 if benchmark.name.startswith("imagenet") else 0
        assert (roles.count("near"), roles.count("shifted")) == (2, shifted)
        for one in benchmark.sets:
            assert (one.images is None) == (one.digest == "")
            assert one.digest == "" or len(bytes.fromhex(one.digest)) == 32
            assert one.home.startswith("http")
    with pytest.raises(ns.InvalidInput, match=r"unknown benchmark 'imagenet-1k'; known: .* Did you mean 'imagenet1k'"):
        find_benchmark("imagenet-1k")


def test_what_is_there_and_what_is_missing(root: Path) -> None:
    benchmark = find_benchmark("imagenet1k")
    found = {one.set.name: one for one in find_sets(benchmark, str(root))}
    assert [name for name, one in found.items() if one.data] == ["test", "ssb_hard", "ninco", "textures", "imagenet_r"]
    assert found["inaturalist"] == FoundSet(found["inaturalist"].set)
    assert (found["textures"].n, found["textures"].missing) == (11, 1)
    assert found["textures"].state == "1 of 12 pictures are missing, its list is not the published one"
    assert found["ssb_hard"].state == "no list: all 25 pictures of ssb_hard.npz, the published one has 49000"
    lines = (root / "benchmark_imglist/imagenet/test_ninco.txt").read_text().splitlines()
    published = found["ninco"].set._replace(digest=hashlib.sha256("\n".join(lines).encode()).hexdigest())
    (whole,) = find_sets(benchmark._replace(sets=(published,)), str(root))
    assert (whole.state, whole.n) == ("whole", 20)
    shown = normscale_here("data", "benchmarks", "imagenet1k", "--root", root).stdout
    assert "https://github.com/j-cb/NINCO" in shown
    row = next(line for line in shown.splitlines() if line.startswith("textures"))
    assert "5160" in row
    assert "11, 1 of 12 pictures are missing" in row
    assert "missing" in next(line for line in shown.splitlines() if line.startswith("openimage_o"))


def test_a_list_keeps_its_order_and_labels(root: Path) -> None:
    data = f"{root}/images_largescale@{root}/benchmark_imglist/imagenet/test_imagenet.txt"
    outputs = extract(f"{root}/net.py:net", data, say=lambda _: None)
    assert outputs.labels is not None
    assert outputs.labels.tolist() == [i % 4 for i in range(40)]
    torn = f"{root}/images_classic@{root}/benchmark_imglist/imagenet/test_textures.txt"
    with pytest.raises(ns.InvalidInput, match=r"names 1 pictures that are not below .*'texture/class 1/4.png'"):
        extract(f"{root}/net.py:net", torn, ood=True)
    assert len(extract(f"{root}/net.py:net", torn, ood=True, on_invalid="skip", say=lambda _: None)) == 11


def test_a_comparison_on_a_part_says_which_and_counts_shifted_inputs_as_in_distribution(
    root: Path, tmp_path: Path
) -> None:
    model = f"{root}/net.py:net"
    fixed = ("compare", "--model", model, "--benchmark", "imagenet1k", "-d", "msp", "-d", "norm_scaling")
    train = ("--train", root / "train.npz", "--outputs", tmp_path / "outputs", "--data-root", root)
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (80, 14, 14, 3), dtype=np.uint8)
    np.savez(root / "train.npz", images=images, labels=np.arange(80) % 4)
    ran = normscale_here(*fixed, *train, "-o", tmp_path / "rows.json")
    assert "ImageNet-1k: a part of the benchmark. Missing: validation, inaturalist, openimage_o" in ran.stderr
    assert "textures: 1 of 12 pictures are missing" in ran.stderr
    assert "near, full spectrum" in " ".join(ran.stdout.split())
    rows = json.loads((tmp_path / "rows.json").read_text())
    by = {(row["method"], row["setting"], row["ood_set"], row.get("id_set", "")): row for row in rows}

    def outputs(name: str, images: str = "images_largescale", *, ood: bool = False) -> ns.ModelOutputs:
        data = f"{root}/{images}@{root}/benchmark_imglist/imagenet/test_{name}.txt"
        return extract(model, data, ood=ood, say=lambda _: None)

    msp = ns.MSP()
    test, ninco, shifted = (msp.score(outputs(name)) for name in ("imagenet", "ninco", "imagenet_r"))
    alone = ns.evaluate(test, ninco)
    wide = ns.evaluate(np.concatenate([test, shifted]), ninco)
    assert by["msp", "frozen", "ninco", ""]["auroc"] == pytest.approx(alone.auroc, abs=1e-12)
    assert by["msp", "frozen", "ninco", "full spectrum"]["auroc"] == pytest.approx(wide.auroc, abs=1e-12)
    assert by["msp", "frozen", "ninco", "full spectrum"]["n_id"] == 55
    near = by["norm_scaling", "stream", "near (mean of ssb_hard, ninco)", "full spectrum"]
    parts = [by["norm_scaling", "stream", name, "full spectrum"]["fpr95_out"] for name in ("ssb_hard", "ninco")]
    assert near["fpr95_out"] == pytest.approx(fmean(parts), abs=1e-12)
    refused = normscale_here("compare", "--model", model, "--benchmark", "cifar10", "--data-root", tmp_path)
    assert "no set of cifar10 is below" in str(refused.exception)
