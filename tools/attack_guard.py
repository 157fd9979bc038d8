"""Attack a guard with all that its file and its code tell, and report the worst that was reached.

    python tools/attack_guard.py                                        # the embedded sample
    python tools/attack_guard.py --outputs ../shared/data/outputs_resnet20   # and a CIFAR-10 ResNet-20

The attacker has the detector file, the code, rows like the honest ones and rows like the OoD ones, and sends a share of
the traffic; the rest is honest. Two goals: *hide* (fewer OoD inputs are flagged) and *cry* (more in-distribution ones
are). Rows are chosen by optimisation, not by chance:

* *moments*: the corner of the box of means and spreads that harms most is found by coordinate ascent, and honest rows
  are moved there, just so far that the mixture with the honest traffic reaches a chosen part of a limit (drip);
* *greedy*: of a pool of candidate rows those are sent whose repetition does the most harm to a copy of the detector.

Each is sent steadily, all at the beginning, or in turns with calm (the ratchet: press until the guard freezes, wait
until it thaws). The part of the limit is then refined. Besides: how few rows freeze a guard, and cover traffic above a
cap. Reported, for every share of the traffic, from a fresh store and from 10 000 honest rows: the worst figure before
any alarm, the worst at all, and the figure 2 000 honest rows after the end; in docs/results/guard-attacks.json, which
grows line by line: cut off, the same command at the same commit goes on.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import normscale as ns
from normscale._atomic import atomic_path
from normscale._provenance import environment
from normscale.detectors.base import Detector
from normscale.guard import Guard, Policy, open_guard
from normscale.scores import msp_score

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "results" / "guard-attacks.json"
SHARES = (0.01, 0.05, 0.2, 0.5, 1.0)
DETECTORS = ("norm_scaling", "robust_norm_scaling")
BLOCK = 100
"""Rows of one request; a share of them is the attacker's."""
NEXT = 200
"""Honest rows within which an alarm must come to count as one."""
WARM, AFTER = 10_000, 2_000
"""Honest rows before the attack, and after it."""
PARTS = (0.3, 0.6, 0.95)
"""Of a limit that the mixture is moved to."""
REACH = 5.9
"""Deviations from the training mean that no number of an attacker's row exceeds: beyond, rows are kept out."""

Rows = NDArray[np.float64]


@dataclass
class Case:
    """Outputs of one network."""

    name: str
    train: Rows
    validation: Rows
    honest: Rows
    in_distribution: Rows
    """Probes."""
    ood: Rows
    """Probes."""
    mean: Rows = field(init=False)
    std: Rows = field(init=False)

    def __post_init__(self) -> None:
        self.mean, self.std = self.train.mean(axis=0), self.train.std(axis=0)

    def draw(self, n: int, random: np.random.Generator) -> Rows:
        """Honest rows."""
        return self.honest[random.integers(0, len(self.honest), n)]


def sample_case() -> Case:
    """The embedded sample; unseen digits are the OoD inputs."""
    sample = ns.load_sample()
    train, validation, test = (
        part.logits.astype(np.float64) for part in (sample.train, sample.validation, sample.test)
    )
    ood = sample.ood["unseen_digits"].logits.astype(np.float64)
    return Case("sample", train, validation, np.concatenate([test, validation]), test, ood)


def resnet_case(folder: Path) -> Case:
    """A ResNet-20 on CIFAR-10; half of the OoD inputs are SVHN, half TinyImageNet."""

    def logits(name: str) -> Rows:
        with np.load(folder / f"{name}.npz") as arrays:
            return arrays["logits"].astype(np.float64)

    test = logits("cifar10_test")
    ood = np.concatenate([logits(name)[:1000] for name in ("svhn", "tinyimagenet")])
    return Case("resnet20", logits("cifar10_train"), test[:2000], test[2000:8000], test[8000:], ood)


class Look(NamedTuple):
    """What a guard would say now."""

    ood: float
    """Share of the OoD probes that would be flagged."""
    in_distribution: float
    alarm: bool
    """Whether one stands, or is raised by the next honest rows."""

    def harm(self, goal: str) -> float:
        return -self.ood if goal == "hide" else self.in_distribution


def look(guard: Guard, case: Case) -> Look:
    """Ask about the probes, and whether the next honest rows would raise an alarm; the guard stays as it is."""
    ood, inside = (float(guard.preview(rows).is_ood.mean()) for rows in (case.ood, case.in_distribution))
    alarm = bool(guard.state.alarms) or guard.mode == "frozen"
    if not alarm:
        probe = ns.ModelOutputs(case.draw(NEXT, np.random.default_rng(guard.state.seq)))
        alarm = bool(guard.judge.rule(guard.state, "", guard.now, probe, np.zeros(1, np.int64)).after.alarms)
    return Look(ood, inside, alarm)


class Target:
    """A guard to attack, again and again from the same state."""

    def __init__(self, case: Case, detector: Detector, warm: int, folder: Path, policy: Policy | None = None) -> None:
        self.case, self.detector, self.warm, self.policy = case, detector, warm, policy or Policy()
        self._original, self._copy = folder / "original.sqlite", folder / "copy.sqlite"
        for path in (*folder.glob("original.sqlite*"), *folder.glob("copy.sqlite*")):
            path.unlink()
        guard = open_guard(detector, self._original, self.policy)
        random = np.random.default_rng(99)
        for _ in range(0, warm, 500):
            guard.score(case.draw(500, random))
        guard.store.close()

    def open(self) -> Guard:
        """A guard in the state before the attack."""
        for path in self._copy.parent.glob("copy.sqlite*"):
            path.unlink()
        shutil.copy(self._original, self._copy)
        return open_guard(self.detector, self._copy, self.policy)


class Outcome(NamedTuple):
    """What one attack reached."""

    silent: Look
    """The worst before any alarm."""
    silent_rows: int
    """Rows sent by then, the honest ones too."""
    worst: Look
    """The worst at all."""
    worst_rows: int
    alarms: int
    """Blocks during which an alarm stood."""
    after: Look
    """After honest rows."""


def attack(
    target: Target, make: Callable[[int], Rows], share: float, timing: str, goal: str, rows: int, seed: int = 0
) -> Outcome:
    """Send blocks of honest rows and the attacker's, and look at what became of the guard."""
    random, case, guard = np.random.default_rng(seed), target.case, target.open()
    silent = worst = look(guard, case)
    silent_rows = worst_rows = alarms = 0
    budget, quiet = share * rows, True
    with guard.store:
        for number, sent in enumerate(range(0, rows, BLOCK)):
            if timing == "first":
                mine = int(min(BLOCK, budget))
            elif timing == "ratchet" and guard.mode == "frozen":
                mine = 0
            else:
                mine = int((number + 1) * BLOCK * share) - int(number * BLOCK * share)
            budget -= mine
            block = np.concatenate([make(mine), case.draw(BLOCK - mine, random)])
            guard.score(block[random.permutation(BLOCK)])
            now = look(guard, case)
            quiet, alarms = quiet and not now.alarm, alarms + now.alarm
            if now.harm(goal) > worst.harm(goal):
                worst, worst_rows = now, sent + BLOCK
            if quiet and now.harm(goal) > silent.harm(goal):
                silent, silent_rows = now, sent + BLOCK
        for _ in range(0, AFTER, BLOCK):
            guard.score(case.draw(BLOCK, random))
        return Outcome(silent, silent_rows, worst, worst_rows, alarms, look(guard, case))


# -- which rows ------------------------------------------------------------------------------------------------


class Corner(NamedTuple):
    """Where running statistics do the most harm: signs of the shift and of the change of spread, for each class."""

    shift: Rows
    spread: Rows


def worst_corner(case: Case, goal: str, rounds: int = 3) -> Corner:
    """Coordinate ascent over the corners of a box around the training statistics, on norm-scaled log-odds."""
    rows = (case.ood if goal == "hide" else case.in_distribution)[:400]
    n_classes = rows.shape[1]
    threshold = np.quantile(msp_score((case.validation - case.mean) / case.std), 0.95)

    def harm(corner: Corner) -> float:
        scaled = (rows - case.mean - 0.5 * case.std * corner.shift) / (case.std * 1.4**corner.spread)
        above = np.tanh((msp_score(scaled) - threshold) / 0.5).mean()  # smooth: many corners flag the same rows
        return float(-above if goal == "hide" else above)

    # Of a common start, the direction of all spreads matters most.
    starts = [Corner(np.zeros(n_classes), np.full(n_classes, sign)) for sign in (-1.0, 1.0)]
    best = max(starts, key=harm)
    for _, part, index in itertools.product(range(rounds), range(2), range(n_classes)):
        for value in (-1.0, 0.0, 1.0):
            moved = [array.copy() for array in best]
            moved[part][index] = value
            best = max(best, Corner(*moved), key=harm)
    return best


def moment_rows(case: Case, corner: Corner, share: float, part: float, seed: int) -> Callable[[int], Rows]:
    """Honest rows, moved so that the mixture with the honest traffic lies at a part of the drift readings' limits."""
    random, policy = np.random.default_rng(seed), Policy()
    shift = part * policy.shift * corner.shift / share
    # The variance of the mixture of both, solved for the attacker's spread.
    wanted = (1.0 + part * policy.spread * corner.spread.clip(0.0)) / (
        1.0 + part * policy.spread * (-corner.spread).clip(0.0)
    )
    variance = (wanted**2 - (1.0 - share) - share * (1.0 - share) * shift**2) / share
    spread = np.sqrt(variance.clip(0.0))

    def make(n: int) -> Rows:
        scaled = (case.draw(n, random) - case.mean) / case.std
        return case.mean + case.std * (shift + spread * scaled).clip(-REACH, REACH)

    return make


def most_harmful_rows(case: Case, detector: Detector, goal: str, seed: int) -> Rows:
    """A pool of rows, the most harmful first, when a copy of the detector takes them in again and again.

    The pool: honest rows and OoD rows, drawn together around the training mean or pulled apart.
    """
    random = np.random.default_rng(seed)
    honest, ood = case.draw(40, random), case.ood[random.integers(0, len(case.ood), 40)]
    pool = [case.mean + factor * (rows - case.mean) for factor in (0.3, 0.6, 1.0, 1.6, 2.5) for rows in (honest, ood)]
    candidates = np.concatenate(pool)
    candidates = case.mean + case.std * ((candidates - case.mean) / case.std).clip(-REACH, REACH)
    probes, cover = (case.ood if goal == "hide" else case.in_distribution)[:200], case.draw(60, random)
    harms = np.empty(len(candidates))
    for i, row in enumerate(candidates):
        twin = copy.copy(detector)
        twin.stream(np.concatenate([cover, np.repeat(row[None], 60, axis=0)])[random.permutation(120)])
        harms[i] = twin.score(probes).mean() * (-1.0 if goal == "hide" else 1.0)
    ordered: Rows = candidates[np.argsort(-harms)]
    return ordered


def greedy_rows(case: Case, pool: Rows, part: float, seed: int) -> Callable[[int], Rows]:
    """The first of a pool, again and again: the higher the part, the fewer and the more harmful."""
    random, chosen = np.random.default_rng(seed), pool[: max(4, int(60 * (1.0 - part)))]

    def make(n: int) -> Rows:
        return chosen[random.integers(0, len(chosen), n)] + random.normal(0.0, 0.02, (n, case.mean.size)) * case.std

    return make


def attacks(
    target: Target, share: float, goal: str, corner: Corner, pool: Rows, rows: int, parts: tuple[float, ...] = PARTS
) -> Iterator[tuple[str, Outcome]]:
    """Every attack with one share of the traffic, then the best of them refined."""
    case = target.case
    timings = ["steady", "ratchet"] if share < 1.0 else ["steady"]
    if not target.warm and share < 1.0:
        timings.append("first")
    families: dict[str, Callable[[float, float], Callable[[int], Rows]]] = {
        "moments": lambda part, share: moment_rows(case, corner, share, part, seed=1),
        "greedy": lambda part, _: greedy_rows(case, pool, part, seed=1),
    }
    found: list[tuple[float, str, str, float]] = []
    for (name, make), part, timing in itertools.product(families.items(), parts, timings):
        rows_like = make(part, 1.0 if timing == "first" else share)
        outcome = attack(target, rows_like, share, timing, goal, rows)
        found.append((outcome.silent.harm(goal), name, timing, part))
        yield f"{name} {part:g} {timing}", outcome
    _, name, timing, best = max(found)
    for part in (0.8 * best, 1.25 * best):
        outcome = attack(target, families[name](part, 1.0 if timing == "first" else share), share, timing, goal, rows)
        yield f"{name} {part:.2f} {timing}", outcome


# -- what else must not happen -----------------------------------------------------------------------------------


def fewest_rows_that_freeze(target: Target, most: int = 10) -> int | None:
    """How few rows, each within a limit for rows, freeze the guard; None: more than ``most``."""
    case = target.case
    for n, reach in itertools.product(range(1, most + 1), (4.0, REACH, 0.99 * target.policy.outlier, 1e6)):
        random, guard = np.random.default_rng(n), target.open()
        with guard.store:
            guard.score(case.draw(150, random))
            guard.score(case.mean + case.std * reach * random.choice([-1.0, 1.0], (n, case.mean.size)))
            for _ in range(20):
                guard.score(case.draw(50, random))
                if guard.mode == "frozen":
                    return n
    return None


def cover_traffic(case: Case, detector: Detector, folder: Path, rows: int) -> Look:
    """With a cap for each client, one poisons and another sends calm rows far beyond it; the worst before an alarm."""
    target = Target(case, detector, 0, folder, Policy(client_cap=300))
    corner, guard, random = worst_corner(case, "hide"), target.open(), np.random.default_rng(0)
    make = moment_rows(case, Corner(2.0 * corner.shift, corner.spread), 1.0, 0.95, 1)
    with guard.store:
        worst = look(guard, case)
        for _ in range(0, rows, 2000):
            guard.score(make(100), client="poison")
            guard.score(case.draw(1900, random), client="cover")
            now = look(guard, case)
            if now.alarm:
                break
            worst = max(worst, now, key=lambda each: each.harm("hide"))
    return worst


# -- the report ----------------------------------------------------------------------------------------------------


class Record:
    """The lines so far, on disk if wanted."""

    KEY = ("data", "detector", "honest_rows_before", "goal", "share")

    def __init__(self, command: str, saved: bool) -> None:
        self._head = {"command": command, "made_with": environment()}
        self._saved = saved
        self.lines: list[dict[str, Any]] = []
        if saved and TARGET.exists():
            before = json.loads(TARGET.read_text())
            if all(before.get(name) == value for name, value in self._head.items()):
                self.lines = before["attacks"]

    def find(self, key: tuple[Any, ...]) -> dict[str, Any] | None:
        """A line that is there already."""
        return next((line for line in self.lines if tuple(line[name] for name in self.KEY) == key), None)

    def save(self) -> None:
        """Write what is known."""
        if self._saved:
            document = {**self._head, "date": date.today().isoformat(), "attacks": self.lines}
            with atomic_path(TARGET) as temporary:
                Path(temporary).write_text(json.dumps(document, indent=1) + "\n")


def survey(
    record: Record, case: Case, name: str, folder: Path, rows: int, shares: tuple[float, ...], starts: tuple[int, ...]
) -> None:
    """All attacks on one detector."""
    detector = ns.make_detector(name).fit(case.train).set_threshold(case.validation)
    frozen = Look(float(detector.predict(case.ood).mean()), float(detector.predict(case.in_distribution).mean()), False)
    for warm in starts:
        target = Target(case, detector, warm, folder)
        for goal in ("hide", "cry"):
            keys = {share: (case.name, name, warm, goal, share) for share in shares}
            missing = [share for share in shares if record.find(keys[share]) is None]
            if not missing:
                continue
            corner, pool = worst_corner(case, goal), most_harmful_rows(case, detector, goal, seed=1)
            for share in missing:
                outcomes = list(attacks(target, share, goal, corner, pool, rows))
                silent_by, silent = max(outcomes, key=lambda each: each[1].silent.harm(goal))
                worst_by, worst = max(outcomes, key=lambda each: each[1].worst.harm(goal))
                _, slowest = max(outcomes, key=lambda each: each[1].after.harm(goal))
                figure = (lambda seen: seen.ood) if goal == "hide" else (lambda seen: seen.in_distribution)
                line = {
                    "data": case.name,
                    "detector": name,
                    "honest_rows_before": warm,
                    "goal": goal,
                    "share": share,
                    "frozen": round(figure(frozen), 4),
                    "without_alarm": round(figure(silent.silent), 4),
                    "rows": silent.silent_rows,
                    "by": silent_by,
                    "worst": round(figure(worst.worst), 4),
                    "worst_rows": worst.worst_rows,
                    "worst_by": worst_by,
                    "alarm_stood": worst.worst.alarm,
                    "after": round(figure(slowest.after), 4),
                }
                record.lines.append(line)
                record.save()
                print(
                    f"{case.name:9}{name:20}{warm:6} {goal:5}{100 * share:4.0f} %  frozen {100 * line['frozen']:5.1f}  "
                    f"without alarm {100 * line['without_alarm']:5.1f} ({line['rows']} rows, {silent_by})  "
                    f"worst {100 * line['worst']:5.1f}{' alarm' if line['alarm_stood'] else ''} ({worst_by})  "
                    f"after {100 * line['after']:5.1f}",
                    file=sys.stderr,
                )
        last = record.find((case.name, name, warm, "cry", shares[-1]))
        assert last is not None
        if "fewest_rows_that_freeze" not in last:
            last["fewest_rows_that_freeze"] = fewest_rows_that_freeze(target)
        print(f"  fewest rows that freeze: {last['fewest_rows_that_freeze']}", file=sys.stderr)
    if "cover_traffic_ood_flagged" not in last:
        last["cover_traffic_ood_flagged"] = cover_traffic(case, detector, folder, 4 * rows).ood
    print(f"  cover traffic: OoD flagged {100 * last['cover_traffic_ood_flagged']:.1f}", file=sys.stderr)
    record.save()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, help="a folder of cifar10_train.npz, cifar10_test.npz, svhn.npz, ...")
    parser.add_argument("--rows", type=int, default=4000, help="of each attack, the honest ones too")
    parser.add_argument("--detector", choices=DETECTORS, action="append")
    parser.add_argument("--save", action="store_true", help=f"write {TARGET.relative_to(ROOT)}")
    chosen = parser.parse_args()
    cases = [sample_case()] + ([resnet_case(chosen.outputs)] if chosen.outputs else [])
    outputs = " --outputs outputs_resnet20" if chosen.outputs else ""
    record = Record(f"python tools/attack_guard.py --rows {chosen.rows}{outputs}", chosen.save)
    began = time.monotonic()
    memory = (
        "/dev/shm" if Path("/dev/shm").is_dir() else None
    )  # thousands of flushes to a disk would take most of the time
    with tempfile.TemporaryDirectory(prefix="normscale-attack-", dir=memory) as folder:
        for case, name in itertools.product(cases, chosen.detector or DETECTORS):
            survey(record, case, name, Path(folder), chosen.rows, SHARES, (0, WARM))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
