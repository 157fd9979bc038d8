"""What a stress grid means for a user's own logits, in sentences.

Every statement is read off the grid's numbers. The first sentence is the advice; the others say what it rests on.
Differences of AUROC up to 0.005 are taken for none, and a gain of 0.01 is not worth a risk.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from normscale.detectors.base import Setting
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput
from normscale.experiments.measurement import StreamKind
from normscale.experiments.stress_result import Numbers, StressResult
from normscale.experiments.stress_summary import TOLERANCE

WORTH = 0.01
"""The AUROC gain above which running statistics are worth advising: the best of many always gains a little."""


def recommend(result: StressResult) -> list[str]:
    """Say which detector and which statistics to use, and why.

    Parameters
    ----------
    result : StressResult
        With at least one method with running statistics and its frozen form. Its settings may name the method that is
        ``preferred`` where several without running statistics are as good, and say how many training rows there were.
        Methods without numbers in some of its streams are left out, and named.

    Returns
    -------
    list of str
        Sentences for people; the first is the advice.

    Examples
    --------
    >>> from normscale.experiments.measurement import Measurement
    >>> def row(detector, title, setting, auroc):
    ...     numbers = {"auroc": auroc, "fpr95_out": 0.2}
    ...     kind = StreamKind(0.5, "shuffled", "balanced")
    ...     return Measurement("noise", title, detector, title, setting, {}, numbers, 500, 500, 0, stream=kind)
    >>> found = ("a", "A", "frozen", 0.85), ("b", "frozen B", "frozen", 0.8), ("b", "running B", "stream", 0.95)
    >>> rows = [row(*one) for one in found]
    >>> print(recommend(StressResult(rows))[0])
    Use running B: against A, the best without running statistics, it gains up to 0.100 AUROC and never loses more \
than 0.005.
    """
    whole, result = result, result.without(result.incomplete())
    pair = result.running_and_frozen()
    if pair is None:
        raise InvalidInput(
            "a recommendation needs a method with running statistics and its frozen form; the grid has "
            f"{', '.join(result.methods) or 'no method'}."
        )
    view = _View(result, *pair)
    if not view.kinds:
        return [f"There is nothing to recommend: {'; '.join(result.skipped())}."]
    sentences = [_advice(view), _static(view), _balanced(view), _balances(view), _orders(view), _parameters(view)]
    sentences += [_sets(result, pair), _skipped(result), _left_out(whole)]
    return [text for text in sentences if text]


class _View:
    """The kinds of streams of a grid, and the questions the sentences ask of them."""

    def __init__(self, result: StressResult, running: str, frozen: str) -> None:
        self.result, self.running, self.frozen = result, running, frozen
        self.kinds: dict[StreamKind, dict[str, Numbers]] = result.means()
        self.titles, self.rivals = result.titles, result.rivals()
        self.balances, self.orders = result.balances, result.orders
        self.drawn = {row.stream.balance: _classes(row.classes) for row in result.rows if row.stream}
        self.moving = result.in_setting(Setting.STREAM)
        static = [name for name in result.methods if name not in self.moving]
        self.static = sorted(static, key=lambda name: -self.mean(name)) if self.kinds else static
        self.best = self.static[0]
        preferred = result.settings.get("preferred")
        if preferred in static and self.kinds and self.mean(self.best) - self.mean(preferred) <= TOLERANCE:
            self.best = preferred

    def mean(self, method: str) -> float:
        return fmean(numbers[method].auroc for numbers in self.kinds.values())

    def mean_fpr(self, method: str) -> float:
        return fmean(numbers[method].fpr95_out for numbers in self.kinds.values())

    def gains(
        self, method: str, over: str, *, order: str | None = None, balance: str | None = None
    ) -> dict[StreamKind, float]:
        """AUROC of one method minus another's, by kind of stream; only of one order or balance if given."""
        return {
            cell: numbers[method].auroc - numbers[over].auroc
            for cell, numbers in self.kinds.items()
            if order in (None, cell.order) and balance in (None, cell.balance)
        }

    def evenly_mixed(self, method: str, over: str) -> dict[StreamKind, float]:
        """The gains in balanced, shuffled streams, by rising share."""
        return dict(sorted(self.gains(method, over, order="shuffled", balance="balanced").items()))

    def wins_at(self, method: str, over: str, margin: float) -> str:
        """At which OoD shares it wins in balanced, shuffled streams: "at least 5 %", "10 % or 25 %", or nothing."""
        gains = self.evenly_mixed(method, over)
        won = [cell.share for cell, gain in gains.items() if gain > margin]
        if won and won == [cell.share for cell in gains][-len(won) :]:
            return f"at least {_percent(won[0])}"
        return " or ".join(map(_percent, won))

    def called(self, method: str) -> str:
        """The method's name in a sentence."""
        return self.titles[method]


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
        peaks = {name: max(view.evenly_mixed(name, best).values()) for name in winners}
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
    others = [name for name in (*view.moving, *view.static) if name not in view.rivals]
    closest = max(others, key=view.mean)
    if best in view.rivals and view.mean(closest) <= view.mean(best) + TOLERANCE:
        text += (
            f", and nothing with running statistics, nor its frozen form, is more than {TOLERANCE:g} ahead of it on "
            f"average (closest is {view.called(closest)}, with a mean AUROC of {view.mean(closest):.3f} "
            f"against {view.mean(best):.3f})"
        )
    return f"{text}."


def _static(view: _View) -> str:
    best = view.best
    rivals = [name for name in view.static if name in view.rivals]
    other = view.frozen if best in view.rivals else (rivals or [best])[0]
    count = f"{len(view.kinds)} kinds of streams" if len(view.kinds) > 1 else "one kind of stream"
    rank = "is best" if best == view.static[0] else "is as good as any"
    text = (
        f"Without running statistics {view.called(best)} {rank}, with a mean AUROC of {view.mean(best):.3f} (FPR95 "
        f"{view.mean_fpr(best):.3f}) over {count}"
    )
    if other == best:
        return f"{text}."
    return f"{text}; {view.called(other)} has {view.mean(other):.3f} ({view.mean_fpr(other):.3f})."


def _balanced(view: _View) -> str:
    gains = view.evenly_mixed(view.running, view.frozen)
    if not gains:
        return ""
    where, gain = max(gains.items(), key=lambda item: item[1])
    if gain <= TOLERANCE:
        return (
            f"In balanced, shuffled streams the running statistics gain nothing over frozen ones (at most {gain:+.3f} "
            f"AUROC, at an OoD share of {_percent(where.share)})."
        )
    here = view.kinds[where]
    wins, low = view.wins_at(view.running, view.frozen, TOLERANCE), min(gains.values())
    text = (
        f"In balanced, shuffled streams running statistics beat frozen ones at an OoD share of {wins}, by {gain:.3f} "
        f"at {_percent(where.share)} ({here[view.running].auroc:.3f} against {here[view.frozen].auroc:.3f})"
    )
    return f"{text}; elsewhere they lose up to {-low:.3f}." if low < -TOLERANCE else f"{text}."


def _balances(view: _View) -> str:
    parts = []
    for balance in view.balances:
        if balance == "balanced":
            continue
        gains = view.gains(view.running, view.frozen, balance=balance)
        if not gains:
            continue
        worst, loss = min(gains.items(), key=lambda item: item[1])
        what = f"with {balance.replace('class 80', 'class at 80')} ({view.drawn[balance]})"
        if loss >= -TOLERANCE:
            parts.append(f"{what} running statistics lose nothing to frozen ones")
        else:
            here = view.kinds[worst]
            parts.append(
                f"{what} running statistics fall to {here[view.running].auroc:.3f} where frozen ones keep "
                f"{here[view.frozen].auroc:.3f} ({_percent(worst.share)} OoD, {worst.order})"
            )
    return _sentence("Classes that come unevenly", parts)


def _orders(view: _View) -> str:
    parts = []
    for order in view.orders:
        if order == "shuffled":
            continue
        costs = {
            cell.share: numbers[view.running].auroc - view.kinds[cell._replace(order="shuffled")][view.running].auroc
            for cell, numbers in view.kinds.items()
            if cell.order == order and cell.balance == "balanced" and cell._replace(order="shuffled") in view.kinds
        }
        if costs:
            share = min(costs, key=lambda one: costs[one])
            cost = f"up to {-costs[share]:.3f} (at {_percent(share)} OoD)" if costs[share] < -TOLERANCE else "nothing"
            parts.append(f"{order} cost{'' if order == 'bursts' else 's'} {cost}")
    return _sentence("Order, against a shuffled stream", parts)


def _parameters(view: _View) -> str:
    """What another value of a parameter does, where one was tried with the running detector."""
    detectors = {row.method: row.detector for row in view.result.rows}
    same = [name for name in view.moving if detectors[name] == detectors[view.running]]
    parameters = {row.method: row.parameters for row in view.result.rows}
    tried = [
        key for key in parameters[view.running] if len({write_json(parameters[name].get(key)) for name in same}) > 1
    ]
    if len(tried) != 1:  # several at once: no number could be traced to one of them
        return ""
    (key,) = tried
    parts = []
    for name in same:
        gains, value = view.gains(name, view.frozen), parameters[name][key]
        size = " (the training set's size)" if value == view.result.settings.get("n_train") else ""
        best, worst = max(gains.values()), min(gains.values())
        shown = f"{value:g}" if isinstance(value, float) else value
        parts.append(f"{shown}{size} gains {best:+.3f} at best and {worst:+.3f} at worst")
    return _sentence(f"{key.replace('_', ' ').capitalize()}, against frozen statistics", parts, "; ")


def _sets(result: StressResult, pair: tuple[str, str]) -> str:
    """How much the OoD sets differ."""
    gains = {}
    for name in result.ood_sets if len(result.ood_sets) > 1 else []:
        view = _View(result._replace(rows=[row for row in result.rows if row.ood_set == name]), *pair)
        gains_here = view.evenly_mixed(*pair)
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


def _left_out(result: StressResult) -> str:
    """Which methods have too few numbers to be compared."""
    incomplete, titles = result.incomplete(), result.titles
    if not incomplete:
        return ""
    names, why = " / ".join(titles[name] for name in incomplete), next(iter(incomplete.values()))
    return f"Left out, for want of numbers in some streams: {names}; for example, {why.removesuffix('.')}."


def _sentence(head: str, parts: Iterable[str], separator: str = ", ") -> str:
    text = separator.join(parts)
    return f"{head}: {text}." if text else ""


def _classes(classes: tuple[int, ...]) -> str:
    return f"class{'es' if len(classes) > 1 else ''} {' and '.join(map(str, classes))}"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
