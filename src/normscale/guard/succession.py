"""A store belongs to one detector; another one of the same classes may take it over."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.guard.guard_state import GuardState
from normscale.guard.stores import Transaction


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
    transaction: Transaction, start: GuardState, detector: Detector, own: str, *, adopt: bool, store_name: str
) -> dict[str, Any] | None:
    """Make sure that a store belongs to the detector with this fingerprint; a note for the log when it was taken over.

    Counts, a person's freeze and answers to keys stay. The statistics begin anew, the threshold is the new file's, and
    quarantined rows, which are another network's, are dropped.
    """
    known, stored = transaction.meta["detector"], transaction.state()
    if known == own:
        return None
    if known is not None and not adopt:
        raise InvalidInput(
            f"the store {store_name!r} holds the statistics of another detector; its rows do not belong to this one. "
            "Choose another --store, go back to the detector file that it was made with, or take it over (--adopt)."
        )
    names, n_classes = detector.class_names, detector.n_classes_
    classes = {"names": None if names is None else list(names), "number": n_classes}
    earlier = read_json(transaction.meta["classes"] or "null") or classes
    compared = "number" if earlier["names"] is None or names is None else "names"
    if earlier[compared] != classes[compared]:
        raise InvalidInput(
            f"the store {store_name!r} was made with other classes ({_shown(earlier)}) than this detector has "
            f"({_shown(classes)}), so nothing of it can be taken over; choose another --store."
        )
    transaction.meta["detector"], transaction.meta["classes"] = own, write_json(classes)
    if stored is None:
        return None if known is None else {"rows": 0}
    before = start.unpacked(stored, of_detector=False)
    by_person = before.frozen is not None and before.frozen.by_person
    state = start._replace(  # what only the old detector's logits explain begins anew, an alarm's freeze too
        **{name: getattr(before, name) for name in ("seq", "at", "scored", "alarms_raised", "this_minute")},
        frozen=before.frozen if by_person else None,
    )
    transaction.drop_quarantined(transaction.quarantined(with_rows=False))
    transaction.save_state(state.seq, transaction.head(), state.pack())
    return {"rows": before.rows}


def _shown(classes: dict[str, Any]) -> str:
    return ", ".join(classes["names"]) if classes["names"] is not None else f"{classes['number']} without names"
