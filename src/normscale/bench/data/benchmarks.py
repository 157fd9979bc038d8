"""The benchmarks of OpenOOD v1.5 as folders: which sets there are, and which of them lie below a folder.

benchmarks.json has their lists' names, numbers of pictures and checksums. A number or a checksum stands there where
copies of the list in at least two public repositories agree. A checksum is SHA-256 of the list's lines, joined by
line feeds, without spaces at their ends.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from normscale._validate import named
from normscale.encoding.json_text import read_json
from normscale.errors import InvalidInput
from normscale.extraction.items import listed_files, open_items

LISTS = "benchmark_imglist"
SOURCE = "https://github.com/Jingkang50/OpenOOD"
_OTHERWISE = ("", ".parquet", ".npz")


class BenchmarkSet(NamedTuple):
    """One set of a benchmark."""

    name: str
    role: str
    """``train``, ``validation`` or ``test`` (in-distribution), ``near`` or ``far`` (OoD), ``shifted`` (the classes of
    training in other pictures: in-distribution in the full spectrum)."""
    list: str
    """The published list of its pictures, below ``benchmark_imglist``."""
    root: str
    """The folder that the list's paths begin in."""
    home: str
    """Where its pictures are published."""
    images: int | None = None
    """How many pictures the published list names, where that is known."""
    digest: str = ""


class Benchmark(NamedTuple):
    """In-distribution sets and the OoD sets to tell from them."""

    name: str
    title: str
    n_classes: int
    sets: tuple[BenchmarkSet, ...]


class FoundSet(NamedTuple):
    """What of a set lies below a folder."""

    set: BenchmarkSet
    data: str = ""
    """What :func:`normscale.extract` takes; empty where nothing is there."""
    n: int = 0
    """Pictures that are there."""
    missing: int = 0
    """Pictures that the list names and that are not there."""
    state: str = "missing"
    """``whole``, or in words what is different from the published set."""


def list_benchmarks() -> tuple[Benchmark, ...]:
    """Every benchmark known by name."""
    table = read_json(Path(__file__).with_name("benchmarks.json").read_text(encoding="utf-8"))
    made = [{**one, "sets": tuple(BenchmarkSet(**item) for item in one["sets"])} for one in table]
    return tuple(Benchmark(**one) for one in made)


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of a name; a name that is not known is an error with the nearest one."""
    return named(name, {one.name: one for one in list_benchmarks()}, "benchmark")


def find_sets(benchmark: Benchmark, root: str) -> list[FoundSet]:
    """What of a benchmark lies below ``root``, in OpenOOD's own layout or as a folder or file named after each set.

    OpenOOD's layout has the lists in ``benchmark_imglist`` and the pictures in ``images_largescale`` and
    ``images_classic``. Without a list, ``root/NAME`` (or NAME.parquet, NAME.npz) is taken whole.
    """
    if not os.path.isdir(root):
        raise InvalidInput(f"there is no folder {root}.")
    return [_find_set(one, root) for one in benchmark.sets]


def _find_set(one: BenchmarkSet, root: str) -> FoundSet:
    listing, folder = os.path.join(root, LISTS, *one.list.split("/")), os.path.join(root, one.root)
    if os.path.isfile(listing) and os.path.isdir(folder):
        there, missing = listed_files(folder, listing)
        listed = FoundSet(one, f"{folder}@{listing}" if there else "", len(there), len(missing))
        notes = [f"{len(missing)} of {len(there) + len(missing)} pictures are missing"] if missing else []
        if one.digest and _digest(listing) != one.digest:
            notes.append("its list is not the published one")
        elif not one.digest:
            notes.append("its list could not be checked: no checksum is known")
        return listed._replace(state=", ".join(notes) or "whole")
    for ending in _OTHERWISE:
        path = os.path.join(root, one.name + ending)
        if os.path.exists(path):
            n = open_items(path).n
            published = "" if one.images is None else f", the published one has {one.images}"
            return FoundSet(one, path, n, 0, f"no list: all {n} pictures of {one.name + ending}{published}")
    return FoundSet(one)


def _digest(listing: str) -> str:
    with open(listing, encoding="utf-8") as file:
        lines = [line.rstrip() for line in file if line.strip()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
