"""A store belongs to one detector; another one may take it over, with what the stream has taught."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from normscale._kernels import BlockState
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.guard.guard_state import STORED, Frozen, GuardState, MinuteCounts, statistics_tensors
from normscale.guard.statistics import Statistics, Tensors
from normscale.guard.stores import Transaction
from normscale.state import unpack_state


def profile_of(detector: Detector) -> dict[str, Any]:
    """Its classes, and mean and deviation of their logits in training, for a detector that comes after it."""
    moments = None if detector.baseline_ is None else detector.baseline_.moments
    return {
        "classes": detector.n_classes_,
        "names": None if detector.class_names is None else list(detector.class_names),
        "mean": None if moments is None else moments.mean.tolist(),
        "std": None if moments is None else moments.std.tolist(),
    }


def fingerprint(detector: Detector) -> str:
    """Tells detectors apart by what they learned and from which rows; the threshold may differ."""
    digest = hashlib.sha256()
    digest.update(write_json([detector.name, {k: repr(v) for k, v in detector.get_params().items()}]).encode())
    for name, array in sorted(detector._arrays().items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        # In single precision: fitting the same rows with other kernels differs in the last digits of double precision.
        digest.update(array.astype(np.float32).tobytes() if array.dtype.kind == "f" else array.tobytes())
    return digest.hexdigest()


def succeed(
    transaction: Transaction, start: GuardState, own: str, profile: dict[str, Any], *, adopt: bool, store_name: str
) -> dict[str, Any] | None:
    """Make sure that a store belongs to the detector with this fingerprint; a note for the log when it was taken over.

    Running moments are carried over relative to training: a class whose running mean lies 0.1 deviations above
    its old training mean gets one 0.1 deviations above the new. Counts, a person's freeze and answers to keys stay;
    the threshold is the new file's, and quarantined rows, which are another network's, are dropped.
    """
    known = transaction.meta["detector"]
    if known == own:
        return None
    stored = transaction.state()
    if known is not None and not adopt:
        raise InvalidInput(
            f"the store {store_name!r} holds the statistics of another detector; its rows do not belong to this one. "
            "Choose another --store, go back to the detector file that it was made with, or take it over (--adopt)."
        )
    earlier = read_json(transaction.meta["profile"] or "null")
    transaction.meta["detector"], transaction.meta["profile"] = own, write_json(profile)
    if known is None:
        return None
    if earlier is not None and not _classes_agree(earlier, profile):
        raise InvalidInput(
            f"the store {store_name!r} was made with other classes ({_classes(earlier)}) than this detector has "
            f"({_classes(profile)}), so nothing of it can be carried over; choose another --store."
        )
    if stored is None:
        return {"carried": False}
    header, tensors = unpack_state(stored, STORED)
    carried = _carried(start.statistics, statistics_tensors(tensors), earlier, profile)
    frozen = None if header["frozen"] is None else Frozen.from_list(header["frozen"])
    state = start._replace(  # what only the old detector's logits explain begins anew, an alarm's freeze too
        **{name: header[name] for name in ("seq", "at", "scored", "alarms_raised")},
        frozen=frozen if frozen is not None and frozen.by_person else None,
        this_minute=MinuteCounts(*header["this_minute"]),
        statistics=start.statistics if carried is None else carried,
        rows=0 if carried is None else int(header["rows"]),
    )
    transaction.drop_quarantined(transaction.quarantined(with_rows=False))
    transaction.save_state(state.seq, transaction.head(), state.pack())
    return {"carried": carried is not None, "rows": state.rows}


def _carried(statistics: Statistics, old: Tensors, profile: Any, new: Any) -> Statistics | None:
    """The old running moments, seen from the new training; None where either is of another kind."""
    both_known = profile is not None and profile["mean"] is not None and new["mean"] is not None
    if statistics.moments is None or set(old) != set(statistics.tensors()) or not both_known:
        return None
    before = statistics.restored(old).moments
    assert before is not None
    then, now = (({name: np.array(each[name]) for name in ("mean", "std")}) for each in (profile, new))
    wide = then["std"] > 0.0
    scale = np.divide(now["std"], then["std"], out=np.ones_like(now["std"]), where=wide)
    mean = now["mean"] + np.where(wide, (before.mean - then["mean"]) * scale, 0.0)
    m2 = np.where(wide, before.m2 * scale**2, now["std"] ** 2 * before.weight)
    return statistics.of_moments(BlockState(before.weight, mean, m2))


def _classes_agree(old: Any, new: Any) -> bool:
    named = old["names"] is not None and new["names"] is not None
    return bool(old["names"] == new["names"] if named else old["classes"] == new["classes"])


def _classes(profile: Any) -> str:
    return ", ".join(profile["names"]) if profile["names"] is not None else f"{profile['classes']} without names"
