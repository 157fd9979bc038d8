"""A table as data: titled columns of a kind, rows in sections, the best numbers, and notes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

Value: TypeAlias = str | int | float | None
Kind: TypeAlias = Literal["text", "count", "value", "ranked", "spread", "difference", "percent", "points"]
Row: TypeAlias = tuple[Value, ...]

NOTHING = "–"
_FORMS: dict[str, str] = {
    "count": "{:,}",
    "value": "{:.{digits}f}",
    "ranked": "{:.{digits}f}",
    "spread": "±{:.{digits}f}",
    "difference": "{:+.{digits}f}",
    "percent": "{:.2f} %",
    "points": "{:+.2f} %",
}


class Mean(float):
    """A mean over networks that is shown with its deviation, where there are several."""

    spread: float | None = None

    @classmethod
    def of(cls, mean: float | None, spread: float | None) -> Mean | None:
        """None without a mean."""
        made = None if mean is None else cls(mean)
        if made is not None:
            made.spread = spread
        return made


class Column(NamedTuple):
    """A column's title, and how its numbers are written. The best number of a ``ranked`` one is bold."""

    title: str
    kind: Kind = "text"

    @property
    def is_number(self) -> bool:
        """Whether it is sorted and aligned as numbers."""
        return self.kind != "text"

    def show(self, value: Value, digits: int = 4) -> str:
        """The value for people.

        Examples
        --------
        >>> Column("Ours - paper", "difference").show(0.01234), Column("Rows", "count").show(26032)
        ('+0.0123', '26,032')
        >>> Column("Paper", "value").show(None), Column("Accuracy", "percent").show(0.929)
        ('–', '92.90 %')
        """
        if value is None or isinstance(value, str):
            return NOTHING if value is None else value
        number = 100 * value if self.kind in ("percent", "points") else value
        text = _FORMS[self.kind].format(number, digits=digits).replace("-", "−")
        spread = getattr(value, "spread", None)
        return text if spread is None else f"{text} {_FORMS['spread'].format(spread, digits=digits)}"


class Section(NamedTuple):
    """Rows that belong together, such as those of one metric."""

    title: str
    rows: list[Row]
    best: frozenset[tuple[int, int]] = frozenset()
    """Which (row, column) holds the best number; several, if they tie."""


class ReportTable(NamedTuple):
    """A table with one or more sections of the same columns."""

    name: str
    """Of its files."""
    title: str
    columns: list[Column]
    sections: list[Section]
    notes: list[str] = []  # noqa: RUF012 - never changed
    section_column: str = "metric"
    """What tells the sections apart, in a CSV file."""

    def texts(self) -> list[list[list[str]]]:
        """The values of every section, row and column for people."""
        return [
            [[column.show(value) for column, value in zip(self.columns, row, strict=True)] for row in section.rows]
            for section in self.sections
        ]


def table_of(
    name: str,
    title: str,
    columns: Sequence[Column],
    sections: Mapping[str, Sequence[Row]],
    notes: Iterable[str] = (),
    section_column: str = "metric",
) -> ReportTable:
    """Make a table without the columns in which nothing stands, with the best of every ``ranked`` column.

    Lower is better where an arrow in the title of the column, or of the section, points down.

    Examples
    --------
    >>> columns = [Column("Method"), Column("Note"), Column("FPR95 ↓", "ranked")]
    >>> made = table_of("t", "T", columns, {"Static": [("MSP", "", 0.3), ("Energy", "", 0.2)]})
    >>> [column.title for column in made.columns], made.sections[0].best
    (['Method', 'FPR95 ↓'], frozenset({(1, 1)}))
    """
    rows = [row for many in sections.values() for row in many]
    kept = [place for place in range(len(columns)) if not place or any(row[place] not in (None, "") for row in rows)]
    kept_columns = [columns[place] for place in kept]
    made = []
    for heading, many in sections.items():
        left = [tuple(row[place] for place in kept) for row in many]
        best: set[tuple[int, int]] = set()
        for j, column in enumerate(kept_columns):
            numbers = {(i, j): row[j] for i, row in enumerate(left) if isinstance(row[j], float)}
            if column.kind == "ranked" and len(numbers) > 1:  # the best of one is no news
                best_value = (min if "↓" in f"{column.title}{heading}" else max)(numbers.values())  # type: ignore[type-var]
                best |= {place for place, value in numbers.items() if value == best_value}
        made.append(Section(heading, left, frozenset(best)))
    return ReportTable(name, title, kept_columns, made, list(notes), section_column)
