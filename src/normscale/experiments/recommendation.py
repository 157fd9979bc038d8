"""What a stress grid means for a user's own logits, in sentences.

Every statement is read off the grid's numbers. The first sentence is the advice; the others say what it rests on.
Differences of AUROC up to 0.005 are taken for none, and a gain of 0.01 is not worth a risk.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from normscale.errors import InvalidInput
from normscale.experiments.stress import FROZEN, PRIORS, RIVALS, RUNNING, norm_scaling_name
from normscale.experiments.stress_result import Cell, Numbers, StressResult
from normscale.experiments.stress_summary import TOLERANCE

WORTH = 0.01
"""The AUROC gain above which running statistics are worth advising: the best of many always gains a little."""

_PEOPLE = {"msp": "MSP", "max_logit": "MaxLogit", "energy": "Energy", "robust_norm_scaling": "robust norm-scaling"}


def recommend(result: StressResult) -> list[str]:
    """Say which detector and which statistics to use, and why.

    Parameters
    ----------
    result : StressResult
        With at least the paper's norm-scaling and frozen norm-scaling among its methods.

    Returns
    -------
    list of str
        Sentences for people; the first is the advice.

    Examples
    --------
    >>> from normscale.experiments.stress_result import StressRow
    >>> def row(method, auroc):
    ...     return StressRow("noise", 0.5, "shuffled", "balanced", (), method, {}, auroc, 0.2, 500, 500, 1, 0, "")
    >>> numbers = {"energy": 0.85, "norm_scaling msp frozen": 0.8, "norm_scaling msp w=1": 0.95}
    >>> print(recommend(StressResult([row(*item) for item in numbers.items()]))[0])
    Use running norm-scaling (msp, prior weight 1): against Energy, the best without running statistics, it gains \
up to 0.100 AUROC and never loses more than 0.005.
    """
    if missing := [name for name in (RUNNING, FROZEN) if name not in result.methods]:
        raise InvalidInput(f"a recommendation needs the methods {RUNNING} and {FROZEN}; missing: {', '.join(missing)}.")
    view = _View(result)
    if not view.cells:
        return [f"There is nothing to recommend: {'; '.join(result.skipped())}."]
    sentences = [_advice(view), _static(view), _balanced(view), _balances(view), _orders(view), _priors(view)]
    return [text for text in (*sentences, _sets(result), _skipped(result)) if text]


class _View:
    """The cells of a grid, and the questions the sentences ask of them."""

    def __init__(self, result: StressResult) -> None:
        self.cells: dict[Cell, dict[str, Numbers]] = result.cells()
        self.weights = {row.method: row.parameters.get("prior_weight") for row in result.rows}
        self.balances, self.orders = result.balances, result.orders
        self.drawn = {row.balance: _classes(row.classes) for row in result.rows}
        static = [name for name in result.methods if name in RIVALS or name.endswith(" frozen")]
        self.moving = [name for name in result.methods if name not in static]
        self.static = sorted(static, key=lambda name: -self.mean(name)) if self.cells else static
        self.best = self.static[0]
        if "energy" in static and self.cells and self.mean(self.best) - self.mean("energy") <= TOLERANCE:
            self.best = "energy"  # where several are as good, the one that everybody knows

    def mean(self, method: str) -> float:
        return fmean(numbers[method].auroc for numbers in self.cells.values())

    def mean_fpr(self, method: str) -> float:
        return fmean(numbers[method].fpr95_out for numbers in self.cells.values())

    def gains(
        self, method: str, over: str, *, order: str | None = None, balance: str | None = None
    ) -> dict[Cell, float]:
        """AUROC of one method minus another's, by cell; only of one order or balance if given."""
        return {
            cell: numbers[method].auroc - numbers[over].auroc
            for cell, numbers in self.cells.items()
            if order in (None, cell.order) and balance in (None, cell.balance)
        }

    def paper_like(self, method: str, over: str) -> dict[Cell, float]:
        """The gains in balanced, shuffled streams, by rising share."""
        return dict(sorted(self.gains(method, over, order="shuffled", balance="balanced").items()))

    def wins_at(self, method: str, over: str, margin: float) -> str:
        """At which OoD shares it wins in balanced, shuffled streams: "at least 5 %", "10 % or 25 %", or nothing."""
        gains = self.paper_like(method, over)
        won = [cell.share for cell, gain in gains.items() if gain > margin]
        if won and won == [cell.share for cell in gains][-len(won) :]:
            return f"at least {_percent(won[0])}"
        return " or ".join(map(_percent, won))

    def called(self, method: str) -> str:
        """The method's name in a sentence."""
        if not method.startswith("norm_scaling "):
            return _PEOPLE.get(method, method)
        _, score, prior = method.split()
        if prior == "frozen":
            return f"frozen norm-scaling ({score})"
        weight = self.weights[method]
        shown = f"{weight:g}" if weight else prior.removeprefix("w=")
        return f"running norm-scaling ({score}, prior weight {shown})"


def _advice(view: _View) -> str:
    best = view.best
    safe = [
        method
        for method in view.moving
        if min(view.gains(method, best).values()) >= -TOLERANCE and max(view.gains(method, best).values()) > WORTH
    ]
    if safe:
        method = max(safe, key=view.mean)
        return (
            f"Use {view.called(method)}: against {view.called(best)}, the best without running statistics, it gains up "
            f"to {max(view.gains(method, best).values()):.3f} AUROC and never loses more than {TOLERANCE:g}."
        )
    winners = [method for method in view.moving if view.wins_at(method, best, WORTH)]
    if winners:
        peaks = {name: max(view.paper_like(name, best).values()) for name in winners}
        losses = {name: -min(view.gains(name, best).values()) for name in winners}
        top = max(peaks.values())
        method = min((name for name in winners if peaks[name] >= top - WORTH), key=lambda name: losses[name])
        gain, loss = peaks[method], losses[method]
        return (
            f"Use {view.called(best)} unless you know your stream. Let statistics run only if its classes come evenly, "
            f"its rows are well mixed and {view.wins_at(method, best, WORTH)} of them are OoD: there "
            f"{view.called(method)} gains up to {gain:.3f} AUROC, while in other streams it loses up to {loss:.3f}."
        )
    text = (
        f"Use {view.called(best)}: even in balanced, shuffled streams nothing with running statistics gains more than "
        f"{WORTH:g} AUROC on it"
    )
    others = [name for name in (*view.moving, *view.static) if name not in RIVALS]
    closest = max(others, key=view.mean)
    if best in RIVALS and view.mean(closest) <= view.mean(best) + TOLERANCE:
        text += (
            f", and no form of norm-scaling is more than {TOLERANCE:g} ahead of it on average (closest is "
            f"{view.called(closest)}, with a mean AUROC of {view.mean(closest):.3f} against {view.mean(best):.3f})"
        )
    return f"{text}."


def _static(view: _View) -> str:
    best = view.best
    rivals = [name for name in view.static if name in RIVALS]
    other = FROZEN if best in RIVALS else (rivals or [best])[0]
    count = f"{len(view.cells)} kinds of streams" if len(view.cells) > 1 else "one kind of stream"
    rank = "is best" if best == view.static[0] else "is as good as any"
    text = (
        f"Without running statistics {view.called(best)} {rank}, with a mean AUROC of {view.mean(best):.3f} (FPR95 "
        f"{view.mean_fpr(best):.3f}) over {count}"
    )
    if other == best:
        return f"{text}."
    return f"{text}; {view.called(other)} has {view.mean(other):.3f} ({view.mean_fpr(other):.3f})."


def _balanced(view: _View) -> str:
    gains = view.paper_like(RUNNING, FROZEN)
    if not gains:
        return ""
    where, gain = max(gains.items(), key=lambda item: item[1])
    if gain <= TOLERANCE:
        return (
            f"In balanced, shuffled streams the running statistics gain nothing over frozen ones (at most {gain:+.3f} "
            f"AUROC, at an OoD share of {_percent(where.share)})."
        )
    here = view.cells[where]
    wins, low = view.wins_at(RUNNING, FROZEN, TOLERANCE), min(gains.values())
    text = (
        f"In balanced, shuffled streams running statistics beat frozen ones at an OoD share of {wins}, by {gain:.3f} "
        f"at {_percent(where.share)} ({here[RUNNING].auroc:.3f} against {here[FROZEN].auroc:.3f})"
    )
    return f"{text}; elsewhere they lose up to {-low:.3f}." if low < -TOLERANCE else f"{text}."


def _balances(view: _View) -> str:
    parts = []
    for balance in view.balances:
        if balance == "balanced":
            continue
        gains = view.gains(RUNNING, FROZEN, balance=balance)
        if not gains:
            continue
        worst, loss = min(gains.items(), key=lambda item: item[1])
        what = f"with {balance.replace('class 80', 'class at 80')} ({view.drawn[balance]})"
        if loss >= -TOLERANCE:
            parts.append(f"{what} running statistics lose nothing to frozen ones")
        else:
            here = view.cells[worst]
            parts.append(
                f"{what} running statistics fall to {here[RUNNING].auroc:.3f} where frozen ones keep "
                f"{here[FROZEN].auroc:.3f} ({_percent(worst.share)} OoD, {worst.order})"
            )
    return _sentence("Classes that come unevenly", parts)


def _orders(view: _View) -> str:
    parts = []
    for order in view.orders:
        if order == "shuffled":
            continue
        costs = {
            cell.share: numbers[RUNNING].auroc - view.cells[cell._replace(order="shuffled")][RUNNING].auroc
            for cell, numbers in view.cells.items()
            if cell.order == order and cell.balance == "balanced" and cell._replace(order="shuffled") in view.cells
        }
        if costs:
            share = min(costs, key=lambda one: costs[one])
            cost = f"up to {-costs[share]:.3f} (at {_percent(share)} OoD)" if costs[share] < -TOLERANCE else "nothing"
            parts.append(f"{order} cost{'' if order == 'bursts' else 's'} {cost}")
    return _sentence("Order, against a shuffled stream", parts)


def _priors(view: _View) -> str:
    names = [norm_scaling_name(prior=prior) for prior in PRIORS if prior != "frozen"]
    parts = []
    for name in names:
        if name in view.moving and len(view.moving) > 1:
            gains = view.gains(name, FROZEN)
            size = " (the training set's size)" if name.endswith("train") else ""
            best, worst = max(gains.values()), min(gains.values())
            parts.append(f"{view.weights[name]:g}{size} gains {best:+.3f} at best and {worst:+.3f} at worst")
    return _sentence("Prior weight, against frozen statistics", parts, "; ")


def _sets(result: StressResult) -> str:
    """How much the OoD sets differ."""
    gains = {}
    for name in result.ood_sets if len(result.ood_sets) > 1 else []:
        gains_here = _View(result._replace(rows=[row for row in result.rows if row.ood_set == name])).paper_like(
            RUNNING, FROZEN
        )
        if gains_here:
            gains[name] = max(gains_here.values())
    if not gains:
        return ""
    high, low = max(gains, key=lambda name: gains[name]), min(gains, key=lambda name: gains[name])
    return (
        f"The OoD sets differ: the most that running gains over frozen in balanced, shuffled streams is "
        f"{gains[high]:+.3f} on {high} and {gains[low]:+.3f} on {low}."
    )


def _skipped(result: StressResult) -> str:
    skipped = result.skipped()
    if not skipped:
        return ""
    return f"{sum(skipped.values())} streams could not be made for want of rows; for example, {next(iter(skipped))}."


def _sentence(head: str, parts: Iterable[str], separator: str = ", ") -> str:
    text = separator.join(parts)
    return f"{head}: {text}." if text else ""


def _classes(classes: tuple[int, ...]) -> str:
    return f"class{'es' if len(classes) > 1 else ''} {' and '.join(map(str, classes))}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
