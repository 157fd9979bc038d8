"""A table as Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import re

from normscale.report.table import ReportTable

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
}


def to_markdown(table: ReportTable) -> str:
    """Headings, pipe tables with the best number bold, and notes.

    Examples
    --------
    >>> from normscale.report.table import Column, Section
    >>> columns = [Column("Method"), Column("Ours", "value")]
    >>> rows = [("MSP", 0.8), ("Energy", 0.9)]
    >>> print(to_markdown(ReportTable("t", "Scores", columns, [Section("AUROC", rows, frozenset({(1, 1)}))])))
    ## Scores
    <BLANKLINE>
    ### AUROC
    <BLANKLINE>
    | Method | Ours |
    |:---|---:|
    | MSP | 0.8000 |
    | Energy | **0.9000** |
    <BLANKLINE>
    """
    lines = [f"## {_markdown(table.title)}", ""]
    for section, shown in zip(table.sections, table.shown(), strict=True):
        if section.title:
            lines += [f"### {_markdown(section.title)}", ""]
        lines.append("| " + " | ".join(_markdown(column.title) for column in table.columns) + " |")
        lines.append("|" + "|".join("---:" if column.is_number else ":---" for column in table.columns) + "|")
        for i, row in enumerate(shown):
            cells = [_markdown(text) for text in row]
            cells = [f"**{text}**" if (i, j) in section.best else text for j, text in enumerate(cells)]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += [f"* {_markdown(note)}" for note in table.notes]
    return "\n".join(lines).rstrip("\n") + "\n"


def to_latex(table: ReportTable) -> str:
    """One ``table`` per section, with booktabs rules; the notes follow the last."""
    parts = []
    spec = "".join("r" if column.is_number else "l" for column in table.columns)
    head = " & ".join(latex_text(column.title) for column in table.columns)
    for number, (section, shown) in enumerate(zip(table.sections, table.shown(), strict=True)):
        title = f"{table.title}: {section.title}" if section.title else table.title
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(title)}}}",
            rf"\label{{tab:{re.sub('[^a-z0-9]+', '-', table.name.lower())}-{number}}}",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
        ]
        for i, row in enumerate(shown):
            cells = [latex_text(text) for text in row]
            cells = [rf"\textbf{{{text}}}" if (i, j) in section.best else text for j, text in enumerate(cells)]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        if number == len(table.sections) - 1:
            lines += [rf"\par\medskip\footnotesize {latex_text(note)}" for note in table.notes]
        parts.append("\n".join([*lines, r"\end{table}"]))
    return "% needs \\usepackage{booktabs}\n" + "\n\n".join(parts) + "\n"


def to_csv(table: ReportTable) -> str:
    """Every row with its section, numbers in full; nothing where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titled = len(table.sections) > 1
    writer.writerow([*([table.section_column] if titled else []), *(column.title for column in table.columns)])
    for section in table.sections:
        writer.writerows([*([section.title] if titled else []), *row] for row in section.rows)
    return text.getvalue()


def latex_text(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    Examples
    --------
    >>> print(latex_text("50 % of my_set ± 1"))
    50 \% of my\_set $\pm$ 1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|])", r"\\\1", text.replace("\n", " "))
