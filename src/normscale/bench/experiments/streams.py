"""How a test stream is put together from in-distribution (ID) and OoD rows: share, class balance, order.

Rows are drawn without replacement. The share is exact, and the stream is as long as the sets allow: 10 000 ID and
10 000 OoD rows give 10 000 + 10 000 at 50 %, 9 990 + 10 at 0.1 %, 3 333 + 9 999 at 75 %. The rows do not depend on the
order: a detector without running statistics sees the same rows in every order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from normscale._validate import IntArray, as_class_indices, at_least, exact_share, one_of
from normscale.bench.experiments.measurement import StreamKind
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs

ORDERS = ("shuffled", "bursts", "ID first", "OoD first")
BALANCES = ("balanced", "one class 80 %", "one class missing", "two classes missing")
BURST = 200
"""Rows of one kind that come together in the order "bursts"."""
FEWEST = 20
"""A stream with fewer ID rows, or an OoD set with fewer rows, measures nothing."""
ENOUGH_OOD = 200
"""A stream with fewer OoD rows than that is drawn again until so many have been seen ..."""
MOST_DRAWS = 50
"""... but no more often than that: a stream with one OoD row in a thousand would take most of the time."""


def all_kinds(
    shares: Sequence[float], orders: Sequence[str] = ORDERS, balances: Sequence[str] = BALANCES[:3]
) -> list[StreamKind]:
    """Every combination of shares of OoD rows, orders and class balances."""
    return [StreamKind(share, order, balance) for share, balance, order in product(shares, balances, orders)]


class Sizes(NamedTuple):
    """How long a stream is, how often it is drawn, or why it cannot be made."""

    n_id: int
    n_ood: int
    draws: int
    skipped: str = ""


def stream_classes(outputs: ModelOutputs) -> IntArray:
    """The class of every ID row: its label where that is known, else the predicted class; shape (n,)."""
    if outputs.labels is None:
        return outputs.predicted
    return np.where(outputs.labels >= 0, outputs.labels, outputs.predicted)


class ClassBalance:
    """The ID rows, of the given ``classes``, spread over the classes in one of the ways of ``BALANCES``.

    * ``balanced``: every class equally often, as often as the median class occurs; a rarer one with all its rows.
    * ``one class 80 %``: four of five rows are of one class, the others as equal as their rows allow.
    * ``one class missing``, ``two classes missing``: balanced, without them.

    The seed draws the dominant or missing classes (``chosen``) among those that are not rarer than the median class.
    ``capacity`` is the most rows it can be made with.

    Examples
    --------
    >>> one = ClassBalance(np.repeat([0, 1, 2], 40), "one class 80 %", seed=0)
    >>> one.capacity, np.bincount(one.classes[one.draw(50, np.random.default_rng(0))])[list(one.chosen)]
    (50, array([40]))
    """

    def __init__(self, classes: ArrayLike, balance: str, seed: int) -> None:
        self.classes = as_class_indices(classes, "classes")
        self.balance = one_of(balance, "balance", BALANCES)
        counts = np.bincount(self.classes, minlength=1)
        present = np.sort(counts[counts > 0])
        median = int(present[(present.size - 1) // 2]) if present.size else 0
        common = np.flatnonzero((counts >= median) & (counts > 0))
        n_chosen = {"balanced": 0, "two classes missing": 2}.get(balance, 1)
        rng = np.random.default_rng([at_least(seed, "seed", 0), BALANCES.index(balance)])
        drawn = rng.permutation(common)[:n_chosen]
        self.chosen: tuple[int, ...] = tuple(sorted(drawn.tolist()))
        self._dominant = balance == "one class 80 %" and bool(self.chosen)
        self._others = counts.copy()
        self._others[drawn] = 0
        if self._dominant:
            self.capacity = min(5 * int(counts[drawn[0]]) // 4, 5 * int(self._others.sum()))
        else:
            self.capacity = int(np.minimum(self._others, median).sum())

    def draw(self, total: int, rng: np.random.Generator) -> IntArray:
        """Rows in random order, none twice; shape (total,), total <= capacity."""
        if total > self.capacity:
            raise InvalidInput(f"total must be at most {self.capacity} with {self.balance!r}; got {total}.")
        quota = np.zeros_like(self._others)
        if self._dominant:
            quota[self.chosen[0]] = (4 * total + 2) // 5
        quota += _as_equal_as_possible(self._others, total - int(quota.sum()), rng)
        by_class = np.lexsort((rng.random(self.classes.size), self.classes))  # each class in random order
        sorted_classes = self.classes[by_class]
        place_in_class = np.arange(self.classes.size) - np.searchsorted(sorted_classes, sorted_classes)
        rows: IntArray = rng.permutation(by_class[place_in_class < quota[sorted_classes]])
        return rows


def _as_equal_as_possible(counts: IntArray, total: int, rng: np.random.Generator) -> IntArray:
    """How many rows to take of each class, at most ``counts``, so that the largest differ by one at most."""
    level = bisect_right(range(int(counts.max(initial=0)) + 1), total, key=lambda k: int(np.minimum(counts, k).sum()))
    quota = np.minimum(counts, level - 1)
    rest = rng.permutation(np.flatnonzero(counts > quota))[: total - int(quota.sum())]
    quota[rest] += 1
    return quota


class Streams:
    """Streams of one share and one class balance, in one or more orders that have their drawn rows in common.

    Without a share: one stream of all rows of both sets, shuffled. ``n_id`` is the length of the whole ID set: rows
    count through it and on through the OoD set.
    """

    def __init__(
        self,
        n_id: int,
        share: float | None = None,
        balance: ClassBalance | None = None,
        orders: Sequence[str] = ORDERS[:1],
        seed: int = 0,
    ) -> None:
        self.n_id, self.share, self.balance, self.orders, self.seed = n_id, share, balance, orders, seed
        self.classes = balance.chosen if balance is not None else ()

    def kind(self, order: str) -> StreamKind | None:
        """What a record says about the stream; None for all rows."""
        if self.share is None or self.balance is None:
            return None
        return StreamKind(self.share, order, self.balance.balance)

    def __str__(self) -> str:
        return "" if self.balance is None else f"{100 * (self.share or 0.0):g} % OoD, {self.balance.balance}"

    def sizes(self, n_ood: int) -> Sizes:
        """The longest stream with exactly this share of OoD rows, or the reason why there is none."""
        if self.share is None or self.balance is None:
            return Sizes(self.n_id, n_ood, 1)
        exact = exact_share(self.share, "share")
        p, q = exact.numerator, exact.denominator
        k = min(self.balance.capacity // (q - p), n_ood // p)
        n_id_rows, n_ood_rows = k * (q - p), k * p
        if n_ood < FEWEST:
            return Sizes(0, 0, 0, f"the OoD set has {n_ood} rows; at least {FEWEST} are needed")
        if k == 0 or n_id_rows < FEWEST:
            needed = max(q - p, FEWEST)
            what = f"{needed} ID rows, and the ID set suffices for {self.balance.capacity} ({self.balance.balance})"
            if self.balance.capacity >= needed:
                what = f"{max(p, math.ceil(FEWEST * p / (q - p)))} OoD rows, and the OoD set has {n_ood}"
            return Sizes(0, 0, 0, f"an OoD share of {100 * self.share:g} % needs {what}")
        return Sizes(n_id_rows, n_ood_rows, min(math.ceil(ENOUGH_OOD / n_ood_rows), MOST_DRAWS))

    def rows(self, n_ood: int, draw: int = 0) -> tuple[IntArray, IntArray]:
        """Which ID rows and which OoD rows take part; none twice. Another draw gives other rows of the same classes."""
        if self.share is None or self.balance is None:
            return np.arange(self.n_id), np.arange(n_ood)
        sizes = self.sizes(n_ood)
        if sizes.skipped:
            raise InvalidInput(f"no such stream: {sizes.skipped}.")
        exact, balance = exact_share(self.share, "share"), BALANCES.index(self.balance.balance)
        key = [at_least(self.seed, "seed", 0), balance, exact.numerator, exact.denominator, draw]
        rng = np.random.default_rng(key)
        return self.balance.draw(sizes.n_id, rng), rng.permutation(n_ood)[: sizes.n_ood]

    def arrange(self, id_rows: IntArray, ood_rows: IntArray, order: str, draw: int = 0) -> IntArray:
        """Put drawn rows in order: ``shuffled``; ``bursts`` of 200 rows of one kind; ``ID first``; ``OoD first``."""
        one_of(order, "order", ORDERS)
        rows = np.concatenate([id_rows, self.n_id + ood_rows])
        if order == "ID first":
            return rows
        if order == "OoD first":
            return np.roll(rows, ood_rows.size)
        whole = self.share is None and order == "shuffled"
        rng = np.random.default_rng(self.seed if whole else [self.seed, ORDERS.index(order), draw])
        if order == "shuffled":
            return rows[rng.permutation(rows.size)]
        starts = [*range(0, id_rows.size, BURST), *range(id_rows.size, rows.size, BURST)]
        bursts = np.split(rows, starts[1:])
        return np.concatenate([bursts[i] for i in rng.permutation(len(bursts))])


def streams_of(kinds: Sequence[StreamKind], id_test: ModelOutputs, seed: int = 0) -> list[Streams]:
    """Streams of these kinds; kinds that differ in their order alone share their rows."""
    orders: dict[tuple[float, str], list[str]] = {}
    for kind in kinds:
        orders.setdefault((kind.share, kind.balance), []).append(kind.order)
    classes = stream_classes(id_test)
    balances = {kind.balance: ClassBalance(classes, kind.balance, seed) for kind in kinds}
    return [Streams(len(id_test), share, balances[balance], own, seed) for (share, balance), own in orders.items()]
