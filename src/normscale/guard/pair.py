"""A guard that answers and, maybe, a shadow: another detector that is sent the same rows until somebody switches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from normscale.errors import InvalidInput
from normscale.guard.acceptable import checked_outputs
from normscale.guard.guard import Guard
from normscale.guard.request import Request, Verdict
from normscale.guard.stored_state import Switched
from normscale.outputs import ModelOutputs

Result = TypeVar("Result")


class GuardPair:
    """The guard in use. One thread at a time may use it.

    The shadow is a guard on a store of its own. It scores and takes in what the serving guard answered, and keeps count
    of how far both agree; nobody sees its answers. :meth:`switch` writes to the serving guard's store that the
    shadow serves from now on: no process takes rows into that store any more, and all of them go over to the other.
    """

    def __init__(self, serving: Guard, shadow: Guard | None = None) -> None:
        """Find out which of them serves; a sentence when rows of one could not be rows of the other."""
        self.serving = serving
        self.shadow = shadow
        self.former: Guard | None = None
        """The one that served before a switch."""
        self.missed = 0
        """Rows that this process could not give to the shadow ..."""
        self.trouble: str | None = None
        """... and why, as long as it lasts."""
        self.widths: Mapping[str, int] = serving.widths
        if shadow is not None:
            for name in set(serving.widths) & set(shadow.widths):
                if serving.widths[name] != shadow.widths[name]:
                    raise InvalidInput(
                        f"the shadow reads {name} of {shadow.widths[name]} columns and the serving detector "
                        f"{serving.widths[name]}; they cannot score the same rows."
                    )
            self.widths = {**serving.widths, **shadow.widths}
            shadow.recall()
        successor = serving.state.successor
        if successor is not None:
            if shadow is None or shadow.fingerprint != successor.fingerprint:
                raise Switched(serving.store.name, successor)
            self._follow()

    def checked(self, outputs: ModelOutputs | Any) -> ModelOutputs:
        """Choose the arrays that the guards read, and check their shapes."""
        return checked_outputs(outputs, self.widths, self.serving.detector.name)

    def process(self, requests: Sequence[Request]) -> list[Verdict | InvalidInput]:
        """Answer requests as :meth:`Guard.process` does; when this returns the shadow has the rows, too."""
        answers = self.run(lambda guard: guard.process(requests))
        both = zip(requests, answers, strict=True)
        given = [  # scaled logits are for the client; the shadow's detector may not have any
            dataclasses.replace(one, given=answer, scaled=False) for one, answer in both if isinstance(answer, Verdict)
        ]
        if self.shadow is not None and given:
            of_shadow = self._try_shadow(lambda shadow: shadow.process(given)) or []
            scored = sum(len(verdict.scores) for verdict in of_shadow if isinstance(verdict, Verdict))
            self.missed += sum(len(one.outputs) for one in given) - scored
        return answers

    def run(self, job: Callable[[Guard], Result]) -> Result:
        """Do something with the guard that serves, also when another process has switched meanwhile."""
        try:
            return job(self.serving)
        except Switched:
            if self.shadow is None:
                raise
            self._follow()
            return job(self.serving)

    def refresh(self) -> None:
        """Read what other processes have written since."""
        self.run(Guard.refresh)
        self._try_shadow(Guard.refresh)

    def switch(self, *, by: str = "") -> None:
        """Let the shadow serve from now on."""
        self.run(Guard.refresh)  # another process may have done so already
        if self.shadow is None:
            raise InvalidInput("there is no shadow to switch to; start the server with --shadow FILE.")
        self.shadow.probe()
        with suppress(Switched):  # by another process, just now
            self.serving.hand_over(self.shadow, by=by)
        self._follow()

    def close(self) -> None:
        """Close the stores."""
        for guard in (self.serving, self.shadow, self.former):
            if guard is not None:
                guard.store.close()

    def _follow(self) -> None:
        assert self.shadow is not None
        self.former, self.serving, self.shadow, self.trouble = self.serving, self.shadow, None, None

    def _try_shadow(self, job: Callable[[Guard], Result]) -> Result | None:
        """Do something with the shadow; whatever happens to it, clients get their answers."""
        if self.shadow is None:
            return None
        try:
            result = job(self.shadow)
            self.trouble = None
            return result
        except Exception as error:  # a detector of somebody else may raise anything
            self.trouble = str(error) or type(error).__name__
            return None
