"""A table as data: titled columns of a kind, rows in sections, what is best, and notes. Renderers make it visible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

Value: TypeAlias = str | int | float | None
Kind: TypeAlias = Literal["text", "count", "value", "spread", "difference", "percent", "points"]
Row: TypeAlias = tuple[Value, ...]

NOTHING = "–"
"""Stands where there is no number."""

_FORMS: dict[str, str] = {
    "count": "{:,}",
    "value": "{:.4f}",
    "spread": "±{:.4f}",
    "difference": "{:+.4f}",
    "percent": "{:.2f} %",
    "points": "{:+.2f} %",
}


class Column(NamedTuple):
    """A column's title, and how its numbers are written."""

    title: str
    kind: Kind = "text"
    between: tuple[int, int] | None = None
    """Of a difference: the columns it is between. It is shown as the difference of the numbers shown there."""

    @property
    def is_number(self) -> bool:
        """Whether it is sorted and aligned as numbers."""
        return self.kind != "text"

    def show(self, value: Value) -> str:
        """The value for people.

        Examples
        --------
        >>> Column("Ours - paper", "difference").show(0.01234), Column("Rows", "count").show(26032)
        ('+0.0123', '26,032')
        >>> Column("Paper", "value").show(None), Column("Accuracy", "percent").show(0.929)
        ('–', '92.90 %')
        """
        if value is None:
            return NOTHING
        if isinstance(value, str):
            return value
        shown = 100 * value if self.kind in ("percent", "points") else value
        return _FORMS[self.kind].format(shown).replace("-", "−")

    def rounded(self, value: float) -> float:
        """The number that :meth:`show` shows."""
        return round(100 * value, 2) / 100 if self.kind in ("percent", "points") else round(value, 4)


class Section(NamedTuple):
    """Rows that belong together: those of one metric, mostly."""

    title: str
    rows: list[Row]
    best: frozenset[tuple[int, int]] = frozenset()
    """Which (row, column) holds the best number; several, if they tie."""


class ReportTable(NamedTuple):
    """A table with one or more sections of the same columns.

    Examples
    --------
    >>> table = ReportTable("rows", "Rows", [Column("Set"), Column("Rows", "count")], [Section("", [("svhn", 26032)])])
    >>> table.shown()
    [[['svhn', '26,032']]]
    """

    name: str
    """Of its files."""
    title: str
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = []  # noqa: RUF012 - never changed
    section_column: str = "metric"
    """What tells the sections apart, in a CSV file."""

    def shown(self) -> list[list[list[str]]]:
        """The values of every section, row and column for people.

        Examples
        --------
        >>> columns = [Column("Ours", "value"), Column("Paper", "value"), Column("Difference", "difference", (0, 1))]
        >>> ReportTable("t", "T", columns, [Section("", [(0.93064, 0.80196, 0.93064 - 0.80196)])]).shown()[0][0]
        ['0.9306', '0.8020', '+0.1286']
        """
        return [[self._shown_row(row) for row in section.rows] for section in self.sections]

    def _shown_row(self, row: Row) -> list[str]:
        return [column.show(self._seen(column, row, value)) for column, value in zip(self.columns, row, strict=True)]

    def _seen(self, column: Column, row: Row, value: Value) -> Value:
        """The value, or the difference that a reader of the other columns would find."""
        if column.between is None or not isinstance(value, float):
            return value
        first, second = (self.columns[place].rounded(float(row[place] or 0.0)) for place in column.between)
        return first - second


def best_of(values: Mapping[tuple[int, int], Value], *, highest: bool) -> frozenset[tuple[int, int]]:
    """The places of the highest (or lowest) number; every one of them, if they tie.

    Examples
    --------
    >>> best_of({(0, 1): 0.8, (1, 1): 0.9, (2, 1): None}, highest=True)
    frozenset({(1, 1)})
    """
    numbers = {place: value for place, value in values.items() if isinstance(value, (int, float))}
    if len(numbers) < 2:  # the best of one is no news
        return frozenset()
    wanted = max(numbers.values()) if highest else min(numbers.values())
    return frozenset(place for place, value in numbers.items() if value == wanted)
