"""What somebody may add to a report: published numbers, further tables, sentences and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from normscale.experiments.run_folder import RunFolder
from normscale.report.reference import BesideReference, Reference
from normscale.report.scoreboard import Scoreboard
from normscale.report.table import ReportTable

if TYPE_CHECKING:
    from normscale.report.gallery import Drawn


def _no_tables(board: Scoreboard, beside: BesideReference) -> list[ReportTable]:
    return []


def _no_sentences(board: Scoreboard, beside: BesideReference) -> list[str]:
    return []


def _no_figures(run: RunFolder, board: Scoreboard) -> Iterator[Drawn]:
    return iter(())


class Additions(NamedTuple):
    """Parts of a report that are not about every classifier."""

    reference: Reference | None = None
    tables: Callable[[Scoreboard, BesideReference], list[ReportTable]] = _no_tables
    sentences: Callable[[Scoreboard, BesideReference], list[str]] = _no_sentences
    figures: Callable[[RunFolder, Scoreboard], Iterator[Drawn]] = _no_figures
