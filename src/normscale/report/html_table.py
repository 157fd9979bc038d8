"""A table as HTML: every section a table of its own, whose columns sort by click or key."""

from __future__ import annotations

from html import escape

from normscale.report.better_than import BETTER, BETTER_NOT_ALL, NO_DIFFERENCE, WORSE, WORSE_NOT_ALL
from normscale.report.table import Column, ReportTable, Section, Value

_LONG = 24
"""Texts beyond this many characters may wrap, but not into a narrow column."""
_MANY = 8
"""Tables with more columns are set closer."""
_SUBJECT = ' class="subject"'
_VERDICTS = {BETTER: "better", BETTER_NOT_ALL: "better", WORSE: "worse", WORSE_NOT_ALL: "worse", NO_DIFFERENCE: ""}


def to_html(
    table: ReportTable, *, folded_after: int | None = None, folded_title: str = "Set by set", subject: str = ""
) -> str:
    """The sections of a table beside or below each other, and its notes.

    Parameters
    ----------
    table : ReportTable
    folded_after : int, optional
        Sections from this number on are folded.
    folded_title : str
        What the fold is called.
    subject : str
        The title of the method whose rows stand out.
    """
    sections = [_section(table, i, subject) for i in range(len(table.sections))]
    open_ones, folded = sections[:folded_after], sections[folded_after:] if folded_after is not None else []
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    page = f'<div class="tables">{"".join(open_ones)}</div>' + (f'<ul class="notes">{notes}</ul>' if notes else "")
    if folded:
        titles = ", ".join(section.title for section in table.sections[folded_after:])
        summary = f"<summary>{escape(folded_title)} <small>{escape(titles)}</small></summary>"
        page += f'<details>{summary}<div class="tables">{"".join(folded)}</div></details>'
    return page


def _section(table: ReportTable, number: int, subject: str) -> str:
    section, shown = table.sections[number], table.shown()[number]
    label = f"{table.title}: {section.title}" if section.title else table.title
    caption = section.title or table.title
    kind, kinds = ' class="{}"', "sortable many" if len(table.columns) > _MANY else "sortable"
    head = "".join(
        f'<th scope="col" aria-sort="none"{kind.format("number") if column.is_number else ""}>'
        f'<button type="button">{escape(column.title)}</button></th>'
        for column in table.columns
    )
    rows = "".join(
        f"<tr{_SUBJECT if subject and subject in texts[:2] else ''}>"
        + "".join(_cell(table.columns[j], section, i, j, text) for j, text in enumerate(texts))
        + "</tr>"
        for i, texts in enumerate(shown)
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label, quote=True)}">'
        f'<table class="{kinds}" id="table-{escape(table.name, quote=True)}-{number}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(column: Column, section: Section, i: int, j: int, text: str) -> str:
    value = section.rows[i][j]
    classes = [
        *(["number"] if column.is_number else []),
        *(["best"] if (i, j) in section.best else []),
        *(["long"] if not column.is_number and len(text) > _LONG else []),
        *([_VERDICTS[text]] if _VERDICTS.get(text) else []),
    ]
    attributes = f' class="{" ".join(classes)}"' if classes else ""
    if column.is_number:
        attributes += f' data-value="{_sort_key(value)}"'
    if j == 0:
        return f'<th scope="row"{attributes}>{escape(text)}</th>'
    return f"<td{attributes}>{escape(text)}</td>"


def _sort_key(value: Value) -> str:
    """The number in full, and nothing where there is none: that sorts last either way."""
    return "" if value is None else escape(repr(value), quote=True)
