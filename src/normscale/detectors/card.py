"""What a detector says about itself, for display: read from its class, so that any detector has a card."""

from __future__ import annotations

import inspect
import re
from typing import Any, NamedTuple

from normscale.detectors.base import Detector, settings_of
from normscale.detectors.registry import JOIN, detector_class, make_detector
from normscale.detectors.step import Step
from normscale.outputs import FEATURES, LOGITS


class CardParameter(NamedTuple):
    """A parameter, its default and its meaning."""

    name: str
    default: Any
    meaning: str


class DetectorCard(NamedTuple):
    """The parts of a card; what a class does not say is empty."""

    name: str
    title: str
    paper: str
    """Authors and year."""
    idea: str
    """The first sentence of the docstring."""
    description: str
    """What follows up to the first section: the formula."""
    reads: tuple[str, ...]
    parameters: tuple[CardParameter, ...]
    needs: tuple[str, ...]
    settings: tuple[str, ...]
    cost: str
    python_example: str
    reference: str
    is_step: bool

    def document(self) -> dict[str, Any]:
        """The card as plain values."""
        return {**self._asdict(), "parameters": [one._asdict() for one in self.parameters]}


def card_of(name: str) -> DetectorCard:
    """The card of a detector, or of a step with its score."""
    detector = make_detector(name)
    cls = type(detector)
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.getdoc(cls) or "", flags=re.MULTILINE)
    sections = {title: text.strip("\n") for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    idea, _, description = parts[0].strip("\n").partition("\n\n")
    return DetectorCard(
        name=detector.name,
        title=detector.about.title or detector.name,
        paper=detector.about.paper.partition(': "')[0],
        idea=" ".join(idea.split()),
        description=description.strip("\n"),
        reads=detector.reads,
        parameters=_parameters(detector, joined=JOIN in name),
        needs=_needs(detector),
        settings=tuple(str(setting) for setting in settings_of(detector)),
        cost=detector.about.cost,
        python_example=_example(detector, name),
        reference=sections.get("References", ""),
        is_step=issubclass(detector_class(cls.name), Step),
    )


def _parameters(detector: Detector, joined: bool) -> tuple[CardParameter, ...]:
    """Own parameters; of a step with its score also the score's."""
    own = {}
    for key, value in detector.get_params().items():
        plain = list(value) if isinstance(value, tuple) else value
        own[key] = CardParameter(key, plain, detector.about.parameters[key])
    if joined and isinstance(detector, Step):
        inner = _parameters(detector.scorer, isinstance(detector.scorer, Step))
        del own["score"]
        own |= {one.name: one for one in inner if one.name not in own}
    return tuple(own.values())


def _example(detector: Detector, name: str) -> str:
    """Lines that run it on the embedded sample; empty where it reads arrays that the sample lacks."""
    if not {LOGITS, FEATURES}.issuperset(detector._arrays_in_fit):
        return ""
    lines = "import normscale as ns", "sample = ns.load_sample()", f'detector = ns.make_detector("{name}")'
    used = f"scores = detector.fit(sample.{detector.about.fitted_on}).score(sample.test)"
    return "\n".join(f">>> {line}" for line in (*lines, used))


def _needs(detector: Detector) -> tuple[str, ...]:
    needs = [f"arrays: {', '.join(detector.reads)}"]
    if detector._needs_fit:
        labels = ", with labels" if detector._needs_labels else ""
        needs.append(f"fit on {detector.about.fitted_on} outputs{labels}")
    if others := detector._arrays_in_fit[len(detector.reads) :]:
        needs.append(f"arrays for fit: {', '.join(others)}")
    if detector._needs_head:
        needs.append("the network's last layer (head) for fit")
    return tuple(needs)
