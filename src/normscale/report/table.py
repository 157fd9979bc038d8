"""A table as data: titled columns of a kind, rows in sections, what is best, and notes. Renderers make it visible."""

from __future__ import annotations

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
    "percent": "{:.2%}",
    "points": "{:+.2%}",
}


class Column(NamedTuple):
    """A column's title, and how its numbers are written."""

    title: str
    kind: Kind = "text"

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
        >>> Column("Paper", "value").show(None)
        '–'
        """
        if value is None:
            return NOTHING
        return _FORMS[self.kind].format(value) if self.is_number else str(value)


class Section(NamedTuple):
    """Rows that belong together: those of one metric, mostly."""

    title: str
    rows: list[Row]
    best: frozenset[tuple[int, int]] = frozenset()
    """Which (row, column) holds the best number; several, if they tie."""


class Table(NamedTuple):
    """A table with one or more sections of the same columns.

    Examples
    --------
    >>> table = Table("rows", "Rows", [Column("Set"), Column("Rows", "count")], [Section("", [("svhn", 26032)])])
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
        """The values of every section, row and column for people."""
        return [
            [[column.show(value) for column, value in zip(self.columns, row, strict=True)] for row in section.rows]
            for section in self.sections
        ]


def best_in_column(rows: list[Row], column: int, *, highest: bool) -> frozenset[tuple[int, int]]:
    """Where a column has its highest (or lowest) number; every one of them, if they tie."""
    return _best({(i, column): row[column] for i, row in enumerate(rows)}, highest)


def best_in_rows(rows: list[Row], first: int, *, highest: bool) -> frozenset[tuple[int, int]]:
    """Where every row has its highest (or lowest) number from column ``first`` on."""
    places = (_best({(i, j): row[j] for j in range(first, len(row))}, highest) for i, row in enumerate(rows))
    return frozenset().union(*places)


def _best(values: dict[tuple[int, int], Value], highest: bool) -> frozenset[tuple[int, int]]:
    numbers = {place: value for place, value in values.items() if isinstance(value, (int, float))}
    if len(numbers) < 2:  # the best of one is no news
        return frozenset()
    wanted = max(numbers.values()) if highest else min(numbers.values())
    return frozenset(place for place, value in numbers.items() if value == wanted)
