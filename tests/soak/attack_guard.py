"""Attack a guard with all that its file and its code tell, and report the worst that was reached.

    python tests/soak/attack_guard.py                                        # the embedded sample
    python tests/soak/attack_guard.py --outputs FOLDER --save                # and a CIFAR-10 ResNet-20; keep the record
    python tests/soak/attack_guard.py --tables                     # the record as the tables of docs/guard-attacks.md

The attacker has the detector file, the code, rows like the honest ones and rows like the OoD ones, and sends a share of
the traffic; the rest is honest. Two goals: *hide* (fewer OoD inputs are flagged) and *cry* (more in-distribution ones
are). Rows are chosen by optimisation, not by chance:

* *moments*: the corner of the box of means and spreads that harms most is found by coordinate ascent, and honest rows
  are moved there, just so far that the mixture with the honest traffic reaches a chosen part of a limit (drip);
* *greedy*: of a pool of candidate rows those are sent whose repetition does the most harm to a copy of the detector.

Each is sent steadily, all at the beginning, or in turns with calm (the ratchet: press until the guard freezes, wait
until it thaws). The part of the limit is then refined. Reported, for every share of the traffic, from a fresh store and
from 10 000 honest rows: the worst figure before any alarm, the worst at all, and the figure 2 000 honest rows after the
end; also how far any one class's in-distribution rows moved before an alarm.

Besides, for every detector:

* *few rows*: rows just below the file's threshold that the running statistics flag, one by one until the guard
  freezes; and rows far out, among a few honest ones;
* *one class*: the rows that harm the in-distribution rows of one class most;
* *keep frozen*: the same rows whenever the guard runs: which share of the traffic keeps it frozen how long;
* *flapping*: the same rows until an alarm, then none until it is over: how many messages that makes;
* *benign streams*: nobody attacks, but the rows are sorted, unbalanced, stuck or scaled.

All of it is in docs/results/guard-attacks.json, which grows line by line: cut off, the same command at the same commit
goes on.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import sys
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
from normscale.detectors.baseline import TrainingBaseline
from normscale.guard import Policy, Verdict, open_guard
from normscale.guard.guard_state import GuardState
from normscale.guard.judge import Judge
from normscale.scores import msp_score

ROOT = Path(__file__).resolve().parents[2]
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
LONG = 20_000
"""Rows of a benign stream, and of an attack that counts messages or frozen rows."""
REACH = 5.9
"""Deviations from the training mean that no number of an attacker's row exceeds, nor the detector's limits of logits:
beyond, rows are kept out."""

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
        self._limits = TrainingBaseline.of(ns.ModelOutputs(self.train)).logit_limits()

    def within_reach(self, scaled: Rows) -> Rows:
        """Rows that are taken in, out of some in deviations from the training mean."""
        return (self.mean + self.std * scaled.clip(-REACH, REACH)).clip(*self._limits)

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


class Run:
    """A guard's state as rows are sent to it; nothing is written anywhere."""

    def __init__(self, judge: Judge, state: GuardState) -> None:
        self.judge, self.state = judge, state
        self.rows = self.frozen_rows = self.alarm_rows = self.messages = 0

    @property
    def frozen(self) -> bool:
        return self.state.stream.frozen is not None

    def send(self, rows: Rows, client: str = "", at: float = 0.0) -> Verdict:
        """Send a block, and count what a person would hear of: alarms, freezes and thaws."""
        ruling = self.judge.rule(self.state, client, at, ns.ModelOutputs(rows), np.zeros(1, np.int64))
        self.state = ruling.after
        self.rows += len(rows)
        self.frozen_rows += len(rows) * self.frozen
        self.alarm_rows += len(rows) * bool(self.state.stream.alarms)
        for event, note, _ in ruling.log:
            self.messages += len(note["alarms"]) if event == "alarm" else event in ("freeze", "thaw")
        return ruling.verdict

    def flags(self, rows: Rows) -> NDArray[np.bool_]:
        """Which rows would be flagged now."""
        block = self.judge.block(ns.ModelOutputs(rows))
        none = np.zeros(len(rows), np.bool_)  # is taken in
        return self.judge._score(self.state.stream, self.state.threshold, block, none).flags

    def alarm_soon(self, case: Case) -> bool:
        """Whether an alarm stands, or the next honest rows would raise one."""
        if self.state.stream.alarms or self.frozen:
            return True
        twin = Run(self.judge, self.state)
        twin.send(case.draw(NEXT, np.random.default_rng(self.state.scored)), at=self.state.at)
        return bool(twin.state.stream.alarms)


class Look(NamedTuple):
    """What a guard would say now."""

    ood: float
    """Share of the OoD probes that would be flagged."""
    in_distribution: float
    worst_class: float
    """How much larger than by the file alone that share is in the predicted class where it moved most."""
    alarm: bool
    """Whether one stands, or is raised by the next honest rows."""

    def harm(self, goal: str) -> float:
        return {"hide": -self.ood, "cry": self.in_distribution, "class": self.worst_class}[goal]


def look(run: Run, case: Case) -> Look:
    """Ask about the probes, and whether the next honest rows would raise an alarm; the guard stays as it is."""
    file = Run(run.judge, run.state._replace(stream=run.judge.start))
    flags, by_file = (each.flags(case.in_distribution) for each in (run, file))
    predicted = case.in_distribution.argmax(axis=1)
    classes = [predicted == c for c in range(case.mean.size)]
    moved = max((flags[mine].mean() - by_file[mine].mean() for mine in classes if mine.sum() >= 20), default=0.0)
    return Look(float(run.flags(case.ood).mean()), float(flags.mean()), float(moved), run.alarm_soon(case))


class Target:
    """A guard to attack, again and again from the same state."""

    def __init__(self, case: Case, detector: Detector, warm: int = 0, policy: Policy | None = None) -> None:
        self.case, self.detector, self.warm, self.policy = case, detector, warm, policy or Policy()
        guard = open_guard(detector, ":memory:", self.policy)
        guard.store.close()
        self._before = Run(guard.judge, guard.state)
        random = np.random.default_rng(99)
        for _ in range(0, warm, 500):
            self._before.send(case.draw(500, random))

    def open(self) -> Run:
        """The guard as it is before the attack."""
        return Run(self._before.judge, self._before.state)


class Outcome(NamedTuple):
    """What one attack reached."""

    silent: Look
    """The worst before any alarm."""
    silent_rows: int
    """Rows sent by then, the honest ones too."""
    silent_class: float
    """How far the worst class had moved before any alarm."""
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
    random, case, run = np.random.default_rng(seed), target.case, target.open()
    silent = worst = look(run, case)
    silent_rows = worst_rows = alarms = 0
    silent_class, budget, quiet = silent.worst_class, share * rows, True
    for number, sent in enumerate(range(0, rows, BLOCK)):
        if timing == "first":
            mine = int(min(BLOCK, budget))
        elif timing == "ratchet" and run.frozen:
            mine = 0
        else:
            mine = int((number + 1) * BLOCK * share) - int(number * BLOCK * share)
        budget -= mine
        block = np.concatenate([make(mine), case.draw(BLOCK - mine, random)])
        run.send(block[random.permutation(BLOCK)])
        now = look(run, case)
        quiet, alarms = quiet and not now.alarm, alarms + now.alarm
        if now.harm(goal) > worst.harm(goal):
            worst, worst_rows = now, sent + BLOCK
        if quiet:
            silent_class = max(silent_class, now.worst_class)
            if now.harm(goal) > silent.harm(goal):
                silent, silent_rows = now, sent + BLOCK
    for _ in range(0, AFTER, BLOCK):
        run.send(case.draw(BLOCK, random))
    return Outcome(silent, silent_rows, silent_class, worst, worst_rows, alarms, look(run, case))


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
        return case.within_reach(shift + spread * scaled)

    return make


def most_harmful_rows(case: Case, detector: Detector, goal: str, seed: int, victim: int | None = None) -> Rows:
    """A pool of rows, the most harmful first, when a copy of the detector takes them in again and again.

    The pool: honest rows and OoD rows, drawn together around the training mean or pulled apart. With a ``victim`` the
    harm is that to the in-distribution rows predicted as this class.
    """
    random = np.random.default_rng(seed)
    honest, ood = case.draw(40, random), case.ood[random.integers(0, len(case.ood), 40)]
    pool = [case.mean + factor * (rows - case.mean) for factor in (0.3, 0.6, 1.0, 1.6, 2.5) for rows in (honest, ood)]
    candidates = case.within_reach((np.concatenate(pool) - case.mean) / case.std)
    probes, cover = case.ood if goal == "hide" else case.in_distribution, case.draw(60, random)
    probes = probes[:200] if victim is None else probes[probes.argmax(axis=1) == victim]
    harms = np.empty(len(candidates))
    for i, row in enumerate(candidates):
        twin = copy.copy(detector)
        twin._marks_far_rows = False
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


def fewest_far_rows_that_freeze(target: Target, most: int = 10) -> int | None:
    """How few rows, each within a limit for rows, freeze the guard; None: more than ``most``."""
    case = target.case
    for n, reach in itertools.product(range(1, most + 1), (4.0, REACH, 0.99 * target.policy.outlier, 1e6)):
        random, run = np.random.default_rng(n), target.open()
        run.send(case.draw(int(random.integers(150, 600)), random))
        run.send(case.mean + case.std * reach * random.choice([-1.0, 1.0], (n, case.mean.size)))
        for _ in range(20):
            run.send(case.draw(50, random))
            if run.frozen:
                return n
    return None


def rows_just_below(case: Case, detector: Detector, n: int = 400, seed: int = 1) -> Rows:
    """Rows between honest and OoD ones, bisected to lie just below the file's threshold."""
    random = np.random.default_rng(seed)
    flagged = detector.predict(case.honest)
    low = case.honest[~flagged][random.integers(0, int((~flagged).sum()), n)]
    high = case.ood[detector.predict(case.ood)]
    high = high[random.integers(0, len(high), n)]
    for _ in range(40):
        middle = 0.5 * (low + high)
        above = detector.predict(middle)[:, None]
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low


class Crafted:
    """Rows just below the file's threshold, of which those are sent that the running statistics flag at the time."""

    def __init__(self, target: Target, seed: int = 1) -> None:
        self._pool, self._random = rows_just_below(target.case, target.detector, seed=seed), np.random.default_rng(seed)

    def draw(self, run: Run, n: int = 1) -> Rows:
        useful = self._pool[run.flags(self._pool)]
        chosen = useful if len(useful) else self._pool
        return chosen[self._random.integers(0, len(chosen), n)]


def fewest_crafted_rows_that_freeze(target: Target, most: int = 100) -> int | None:
    """How many rows just below the file's threshold freeze the guard, one by one; None: more than ``most``."""
    run, crafted = target.open(), Crafted(target)
    for n in range(1, most + 1):
        run.send(crafted.draw(run))
        if run.frozen:
            return n
    return None


class Nuisance(NamedTuple):
    """What an attacker who wants noise, or no learning, gets for a share of the traffic."""

    hostile: float
    frozen: float
    messages: int


def nuisance(target: Target, until_frozen: bool, rows: int = LONG) -> Nuisance:
    """Send crafted rows as long as the guard runs, or as long as no alarm stands; honest rows otherwise."""
    run, crafted, random, hostile = target.open(), Crafted(target), np.random.default_rng(0), 0
    while run.rows < rows:
        if not (run.frozen if until_frozen else run.state.stream.alarms):
            run.send(np.concatenate([crafted.draw(run, 4), target.case.draw(1, random)]))
            hostile += 4
        else:
            run.send(target.case.draw(20, random))
    return Nuisance(hostile / run.rows, run.frozen_rows / run.rows, run.messages)


class OneClass(NamedTuple):
    """How far the in-distribution rows of one class moved before an alarm, and which class that was."""

    moved: float
    victim: int


def harm_one_class(target: Target, share: float, rows: int) -> OneClass:
    """Send the rows that harm one class most, for every third class."""
    found = []
    for victim in range(0, target.case.mean.size, 3):
        pool = most_harmful_rows(target.case, target.detector, "cry", seed=1, victim=victim)
        for part in (0.3, 0.95):
            make = greedy_rows(target.case, pool, part, seed=1)
            found.append(OneClass(attack(target, make, share, "steady", "class", rows).silent_class, victim))
    return max(found)


# -- streams that nobody attacks ---------------------------------------------------------------------------------

BENIGN = ("iid", "sorted by 50", "sorted by 500", "30 % one class", "50 % one class", "stuck frame", "x 0.9", "x 1.1")


def benign_stream(case: Case, kind: str, rows: int, seed: int = 5) -> Rows:
    """Honest rows in an order, a mixture or a scale that training did not have."""
    random = np.random.default_rng(seed)
    stream, predicted = case.draw(rows, random), case.honest.argmax(axis=1)

    def of_class(c: int, n: int) -> Rows:
        members = case.honest[predicted == c]
        return members[random.integers(0, len(members), n)]

    if kind.startswith("sorted by "):
        length = int(kind.removeprefix("sorted by "))
        parts = [of_class(int(random.integers(case.mean.size)), length) for _ in range(0, rows, length)]
        return np.concatenate(parts)[:rows]
    if kind.endswith(" one class"):
        chosen = random.random(rows) < float(kind.split()[0]) / 100.0
        stream[chosen] = of_class(0, int(chosen.sum()))
    elif kind == "stuck frame":
        for first in range(2000, rows, 5000):
            stream[first : first + 200] = stream[first]
    elif kind.startswith("x "):
        stream = stream * float(kind.split()[1])
    return stream


class Benign(NamedTuple):
    """What a benign stream makes of a guard."""

    more_flagged: float
    """Share of the rows flagged, above the file's."""
    frozen: float
    """Share of the rows while it was frozen ..."""
    alarm: float
    """... or an alarm stood."""
    messages: int


def benign(target: Target, kind: str, rows: int = LONG) -> Benign:
    """Send a benign stream."""
    run, stream = target.open(), benign_stream(target.case, kind, rows)
    flagged = [run.send(stream[i : i + 50]).is_ood for i in range(0, rows, 50)]
    more = float(np.concatenate(flagged).mean() - target.detector.predict(stream).mean())
    return Benign(more, run.frozen_rows / run.rows, run.alarm_rows / run.rows, run.messages)


# -- the report ----------------------------------------------------------------------------------------------------


class Record:
    """The lines so far, on disk if wanted."""

    KEY = ("data", "detector", "honest_rows_before", "goal", "share")

    def __init__(self, command: str, saved: bool) -> None:
        self._head = {"command": command, "made_with": environment()}
        self._saved = saved
        self.lines: list[dict[str, Any]] = []
        self.besides: list[dict[str, Any]] = []
        if saved and TARGET.exists():
            before = json.loads(TARGET.read_text())
            if all(before.get(name) == value for name, value in self._head.items()):
                self.lines, self.besides = before["attacks"], before["besides"]

    def knows(self, key: tuple[Any, ...]) -> bool:
        """Whether a line is there already."""
        return any(tuple(line[name] for name in self.KEY) == key for line in self.lines)

    def add(self, lines: list[dict[str, Any]], line: dict[str, Any]) -> None:
        """Keep a line of one of both lists, and show it."""
        line = {name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}
        lines.append(line)
        print("  ".join(f"{name} {value}" for name, value in line.items()), file=sys.stderr)
        if self._saved:
            document = {
                **self._head,
                "date": date.today().isoformat(),
                "attacks": self.lines,
                "besides": self.besides,
            }
            with atomic_path(TARGET) as temporary:
                Path(temporary).write_text(json.dumps(document, indent=1) + "\n")


def survey(record: Record, case: Case, name: str, rows: int) -> None:
    """All attacks on one detector."""
    detector = ns.make_detector(name).fit(case.train).set_threshold(case.validation)
    file = look(Target(case, detector).open(), case)
    for warm in (0, WARM):
        target = Target(case, detector, warm)
        for goal in ("hide", "cry"):
            missing = [share for share in SHARES if not record.knows((case.name, name, warm, goal, share))]
            if not missing:
                continue
            corner, pool = worst_corner(case, goal), most_harmful_rows(case, detector, goal, seed=1)
            for share in missing:
                line = summary(list(attacks(target, share, goal, corner, pool, rows)), goal, file)
                key = dict(zip(Record.KEY, (case.name, name, warm, goal, share), strict=True))
                record.add(record.lines, {**key, **line})
    besides(record, case, name, detector, rows)


def summary(outcomes: list[tuple[str, Outcome]], goal: str, file: Look) -> dict[str, Any]:
    """The worst of some attacks, each with what reached it."""

    def figure(seen: Look) -> float:
        return seen.ood if goal == "hide" else seen.in_distribution

    silent_by, silent = max(outcomes, key=lambda each: each[1].silent.harm(goal))
    worst_by, worst = max(outcomes, key=lambda each: each[1].worst.harm(goal))
    _, slowest = max(outcomes, key=lambda each: each[1].after.harm(goal))
    return {
        "frozen": figure(file),
        "without_alarm": figure(silent.silent),
        "rows": silent.silent_rows,
        "by": silent_by,
        "worst_class_without_alarm": max(outcome.silent_class for _, outcome in outcomes),
        "worst": figure(worst.worst),
        "worst_rows": worst.worst_rows,
        "worst_by": worst_by,
        "alarm_stood": worst.worst.alarm,
        "after": figure(slowest.after),
    }


def besides(record: Record, case: Case, name: str, detector: Detector, rows: int) -> None:
    """What else must not happen, and what streams that nobody attacks do."""

    def keep(what: str, find: Callable[[], Any]) -> None:
        key = {"data": case.name, "detector": name, "what": what}
        if any(key.items() <= line.items() for line in record.besides):
            return
        found = find()
        record.add(record.besides, {**key, **(found._asdict() if hasattr(found, "_asdict") else {"rows": found})})

    fresh, warm = Target(case, detector), Target(case, detector, WARM)
    for when, target in (("fresh", fresh), ("warm", warm)):
        keep(f"fewest far rows that freeze, {when}", lambda target=target: fewest_far_rows_that_freeze(target))
        keep(f"fewest crafted rows that freeze, {when}", lambda target=target: fewest_crafted_rows_that_freeze(target))
    keep("kept frozen", lambda: nuisance(warm, until_frozen=True))
    keep("flapping", lambda: nuisance(warm, until_frozen=False))
    for share in (0.05, 0.2):
        keep(f"one class harmed by {100 * share:.0f} %", lambda share=share: harm_one_class(warm, share, rows // 2))
    for kind in BENIGN:
        keep(f"benign: {kind}", lambda kind=kind: benign(fresh, kind))


def tables(document: dict[str, Any]) -> Iterator[str]:
    """The record as Markdown, worse of a fresh guard and one that has learned."""
    cases = [(data, name) for data in ("sample", "resnet20") for name in DETECTORS]
    short = {"norm_scaling": "plain", "robust_norm_scaling": "robust"}
    yield f"| data | detector | goal | file alone | {' | '.join(f'{100 * share:.0f} %' for share in SHARES)} | after |"
    yield "|" + "---|" * (5 + len(SHARES))
    for goal, (data, name) in itertools.product(("hide", "cry"), cases):
        lines = [
            line for line in document["attacks"] if (line["data"], line["detector"], line["goal"]) == (data, name, goal)
        ]
        worse = min if goal == "hide" else max
        cells = []
        for share in SHARES:
            mine = [line for line in lines if line["share"] == share]
            silent, worst = (100 * worse(line[key] for line in mine) for key in ("without_alarm", "worst"))
            cells.append(f"**{silent:.1f}** ({worst:.0f})")
        file, after = 100 * lines[0]["frozen"], 100 * worse(line["after"] for line in lines)
        yield f"| {data} | {short[name]} | {goal} | {file:.1f} | {' | '.join(cells)} | {after:.1f} |"
    yield ""
    found = {(line["data"], line["detector"], line["what"]): line for line in document["besides"]}
    for kind, shown in (
        (False, lambda line: ", ".join(_besides_cell(key, line[key]) for key in line)),
        (True, lambda line: f"{100 * line['frozen']:.0f} %, {line['messages']}, {100 * line['more_flagged']:+.1f}"),
    ):
        first = "benign stream: frozen, messages, points above the file" if kind else "attack"
        yield f"| {first} | {' | '.join(f'{data}, {short[name]}' for data, name in cases)} |"
        yield "|" + "---|" * (1 + len(cases))
        for what in dict.fromkeys(line["what"] for line in document["besides"]):
            if what.startswith("benign: ") == kind:
                lines = [found.get((*case, what), {}) for case in cases]
                cells = [shown(dict(list(line.items())[3:])) if line else "not recorded" for line in lines]
                yield f"| {what.removeprefix('benign: ')} | {' | '.join(cells)} |"
        yield ""


def _besides_cell(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "alarm" if value else "no alarm"
    if isinstance(value, float):
        return f"{name.replace('_', ' ')} {100 * value:.1f} %"
    return "more than tried" if value is None else f"{value} {name}" if name != "victim" else f"class {value}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, help="a folder of cifar10_train.npz, cifar10_test.npz, svhn.npz, ...")
    parser.add_argument("--rows", type=int, default=4000, help="of each attack, the honest ones too")
    parser.add_argument("--detector", choices=DETECTORS, action="append")
    parser.add_argument("--save", action="store_true", help=f"write {TARGET.relative_to(ROOT)}")
    parser.add_argument("--tables", action="store_true", help="print what is recorded as Markdown, and attack nothing")
    chosen = parser.parse_args()
    if chosen.tables:
        print("\n".join(tables(json.loads(TARGET.read_text()))))
        return 0
    cases = [sample_case()] + ([resnet_case(chosen.outputs)] if chosen.outputs else [])
    outputs = " --outputs outputs_resnet20" if chosen.outputs else ""
    record = Record(f"python tests/soak/attack_guard.py --rows {chosen.rows}{outputs}", chosen.save)
    began = time.monotonic()
    for case, name in itertools.product(cases, chosen.detector or DETECTORS):
        survey(record, case, name, chosen.rows)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
