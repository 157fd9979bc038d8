"""How a network is trained: the paper's recipe, and a fast one."""

from __future__ import annotations

from typing import NamedTuple

from normscale import _validate
from normscale.errors import InvalidInput


class Recipe(NamedTuple):
    """Stochastic gradient descent with momentum, and how the learning rate moves.

    ``schedule`` is ``"steps"`` (divide by ten at 60 % and 80 % of the epochs) or ``"triangle"`` (linear warm-up over
    the first ``warm_up`` share of the steps, then linearly down to zero). No label smoothing: logits stay comparable.
    """

    name: str
    learning_rate: float
    schedule: str
    epochs: int
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    batch_size: int = 128
    warm_up: float = 0.0

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of one step, counted from 0.

        Examples
        --------
        >>> paper = RECIPES["paper"]
        >>> [paper.learning_rate_at(step, 10) for step in (0, 5, 6, 8)]
        [0.01, 0.01, 0.001, 0.0001]
        """
        if self.schedule == "steps":
            passed = (10 * step >= 6 * total_steps) + (10 * step >= 8 * total_steps)
            return self.learning_rate / (1.0, 10.0, 100.0)[passed]
        rising = max(1.0, self.warm_up * total_steps)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        return self.learning_rate * max(0.0, (total_steps - step) / max(1.0, total_steps - rising))

    def with_epochs(self, epochs: int | None) -> Recipe:
        """The same recipe for another number of epochs."""
        return self if epochs is None else self._replace(epochs=_validate.at_least(epochs, "epochs", 1))


RECIPES = {
    "paper": Recipe("paper", learning_rate=1e-2, schedule="steps", epochs=200),
    "fast": Recipe("fast", learning_rate=0.2, schedule="triangle", epochs=18, nesterov=True, warm_up=0.2),
}


def find_recipe(name: str) -> Recipe:
    """A recipe by name."""
    if name not in RECIPES:
        raise InvalidInput(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}.")
    return RECIPES[name]
