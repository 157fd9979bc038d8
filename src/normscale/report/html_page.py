"""The report as one HTML file: no network, no other file; whatever comes from a run is escaped."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any, NamedTuple

from normscale._version import __version__
from normscale.experiments.plan import Plan
from normscale.experiments.run_folder import RunFolder
from normscale.report.fitted_on import is_fitted_on
from normscale.report.html_table import to_html
from normscale.report.table import ReportTable
from normscale.report.tables import count

METHODS = "methods"
"""The table that says what each method was fitted and tuned on, if the page has it."""
BENCHMARK = "normscale benchmark"
"""What most pages are."""


class Picture(NamedTuple):
    """A figure ready for the page."""

    group: str
    """Where it belongs; see :mod:`normscale.report.gallery`."""
    markup: str
    """An ``<svg>`` in the page's own colours."""
    caption: str
    shape: str = ""
    """``map`` takes the width of the page, ``tall`` two places below each other."""


class Contents(NamedTuple):
    """Everything a page shows."""

    run: RunFolder
    sentences: Sequence[str]
    tables: Mapping[str, ReportTable]
    pictures: Sequence[Picture]
    advice: Sequence[str]
    """Of the stress grid."""
    notes: Sequence[str] = ()
    """What could not be shown, and why."""
    subject: str = ""
    """The title of the method that the report is about."""
    further: Sequence[str] = ()
    """Names of tables that only this report has."""


class PagePart(NamedTuple):
    """A section of a page."""

    anchor: str
    title: str
    markup: str
    """Empty: the section is left out."""


def render(contents: Contents) -> str:
    """The page."""
    plan = contents.run.plan
    kind = BENCHMARK if plan.network else "normscale comparison"
    return assemble(f"OoD detection on {plan.in_set}", _facts(plan), _parts(contents), kind=kind)


def assemble(title: str, facts: str, parts: Sequence[PagePart], *, kind: str = BENCHMARK, module: str = "") -> str:
    """A page of sections; ``kind`` stands above the title, ``module`` is an ES module of its own."""
    parts = [part for part in parts if part.markup]
    links = "".join(f'<a href="#{part.anchor}">{escape(part.title)}</a>' for part in parts)
    body = "".join(
        f'<section id="{part.anchor}"><h2>{escape(part.title)}</h2>{part.markup}</section>' for part in parts
    )
    page = resources.files("normscale.report").joinpath("page")
    return Template(page.joinpath("template.html").read_text("utf-8")).substitute(
        version=escape(__version__),
        kind=escape(kind),
        title=escape(title),
        heading=re.sub(r"\w+-\d+\b", r'<span class="whole">\g<0></span>', escape(title)),  # CIFAR-100 on one line
        facts=escape(facts),
        contents=links,
        style=page.joinpath("style.css").read_text("utf-8"),
        script=page.joinpath("sort.js").read_text("utf-8"),
        body=body,
        module=f'<script type="module">\n{module}</script>\n' if module else "",
        footer=escape(f"Made by normscale {__version__} from the run's own files."),
    )


def said_once(tables: Mapping[str, ReportTable], said: Sequence[str]) -> dict[str, ReportTable]:
    """Tables without the notes that the page has said before; each file of a table has all of its notes.

    Parameters
    ----------
    tables : mapping of str to ReportTable
        In the order of the page.
    said : sequence of str
        What stands above them.
    """
    known, found = set(said), {}
    for name, table in tables.items():
        new = [note for note in table.notes if note not in known and not (METHODS in tables and is_fitted_on(note))]
        known.update(new)
        found[name] = table._replace(notes=new)
    return found


def _parts(contents: Contents) -> list[PagePart]:
    run = contents.run
    tables = said_once(_without_copy(contents.tables), [*contents.sentences, *contents.notes])

    def table(*names: str) -> str:
        return "".join(to_html(tables[name], subject=contents.subject) for name in names if name in tables)

    def pictures(group: str) -> str:
        return _figures([one for one in contents.pictures if one.group == group])

    expanded = table("expanded")
    if expanded:
        expanded = (
            f"<details><summary>Every method on every OoD set, one metric after the other</summary>{expanded}</details>"
        )
    return [
        PagePart("found", "What was found", sentences_html(contents.sentences, contents.notes)),
        PagePart("comparison", "All methods", table("comparison" if "comparison" in tables else "per_set")),
        PagePart("per-set", "Every OoD set", table("per_set") if "comparison" in tables else ""),
        PagePart("better", f"Is {contents.subject} better?", _folded(tables.get("better_than"), contents.subject)),
        *(PagePart(one, tables[one].title, table(one)) for one in contents.further if one in tables),
        PagePart("figures", "Figures", _per_set_figures(contents)),
        PagePart("calibration", "Calibration", pictures("calibration")),
        PagePart("streams", "Other streams", _streams(contents.advice, pictures("stress"))),
        PagePart("networks", "Networks" if run.plan.network else "Accuracy", table("accuracy") + pictures("training")),
        PagePart("sets", "OoD sets", table("ood_sets")),
        PagePart("expanded", "Expanded results", expanded),
        PagePart("settings", "Settings", _settings(run.plan) + table("methods")),
        PagePart("environment", "Environment", _definitions(run.made_by, leave_out=("command",))),
        PagePart("repeat", "How to repeat it", _repeat(run)),
    ]


def _without_copy(tables: Mapping[str, ReportTable]) -> dict[str, ReportTable]:
    """The tables without the poorer one of two that say the same: with one OoD set its numbers are the averages."""
    averages, per_set = tables.get("comparison"), tables.get("per_set")
    copy = ""
    if averages is not None and per_set is not None and len(per_set.columns) == 2:
        if "expanded" not in tables:  # no spreads and no reference, which only the averages have; more metrics
            copy = "comparison"
        elif len(averages.sections[0].rows) == len(per_set.sections[0].rows):
            copy = "per_set"
    return {name: table for name, table in tables.items() if name != copy}


def _folded(table: ReportTable | None, subject: str) -> str:
    """The first section, which sums the others up, and those folded."""
    return "" if table is None else to_html(table, folded_after=1, subject=subject)


def _facts(plan: Plan) -> str:
    if not plan.network:  # somebody's own outputs, of whose making nothing is known
        return f"outputs of one classifier, {count(len(plan.ood), 'OoD set')}, {count(len(plan.methods), 'method')}"
    epochs = f"{count(plan.epochs, 'epoch')} of" if plan.epochs else "all epochs of"
    return (
        f"{count(len(plan.seeds), 'network')} ({plan.network}, width {plan.width}, {epochs} recipe {plan.recipe}), "
        f"{count(len(plan.ood), 'OoD set')}, {count(len(plan.methods), 'method')} planned"
    )


def sentences_html(sentences: Sequence[str], notes: Sequence[str] = ()) -> str:
    """The first sentence large, the others as a list."""
    first, *others = sentences or ("There is nothing to say yet.",)
    items = "".join(f"<li>{escape(text)}</li>" for text in (*others, *notes))
    return f'<p class="lead">{escape(first)}</p>' + (f'<ul class="found">{items}</ul>' if items else "")


def _figures(pictures: Sequence[Picture]) -> str:
    items = ""
    for one in pictures:
        kind = f' class="{one.shape}"' if one.shape else ""
        markup = one.markup
        if one.shape == "map":
            markup = f'<div class="scroll" tabindex="0" role="region" aria-label="Stress map">{markup}</div>'
        items += f"<figure{kind}>{markup}<figcaption>{escape(one.caption)}</figcaption></figure>"
    return f'<div class="figures">{items}</div>' if items else ""


def _per_set_figures(contents: Contents) -> str:
    groups = dict.fromkeys(one.group for one in contents.pictures if one.group.startswith("ood:"))
    blocks = []
    for number, group in enumerate(groups):
        own = [one for one in contents.pictures if one.group == group]
        summary = f"{escape(group.removeprefix('ood:'))} <small>{count(len(own), 'figure')}</small>"
        blocks.append(f"<details{'' if number else ' open'}><summary>{summary}</summary>{_figures(own)}</details>")
    return "".join(blocks)


def _streams(advice: Sequence[str], pictures: str) -> str:
    if not advice and not pictures:
        return ""
    first, *others = advice or ("",)
    items = "".join(f"<li>{escape(text)}</li>" for text in others)
    intro = (
        "<p>The comparison above shuffles each OoD set and the whole test set into one stream. Running statistics live "
        "on that mixture: this is what becomes of them in other streams.</p>"
    )
    words = f'<p class="lead">{escape(first)}</p><ul class="found">{items}</ul>' if first else ""
    return intro + words + pictures


def _settings(plan: Plan) -> str:
    values: dict[str, Any] = {
        "preset": plan.name,
        "in-distribution set": plan.data,
        "pictures": "as they are" if plan.image_size is None else f"{plan.image_size[0]} x {plan.image_size[1]}",
        "network": f"{plan.network}, width {plan.width}",
        "recipe": plan.recipe,
        "epochs": plan.epochs if plan.epochs is not None else "the recipe's own",
        "seeds": ", ".join(map(str, plan.seeds)),
        "OoD sets": ", ".join(name if name == source else f"{name} = {source}" for name, source in plan.ood.items()),
    }
    of_training = ("preset", "pictures", "network", "recipe", "epochs", "seeds")
    return _definitions(values, leave_out=() if plan.network else of_training)


def _definitions(values: Mapping[str, Any], leave_out: Sequence[str] = ()) -> str:
    items = "".join(
        f"<dt>{escape(str(name))}</dt><dd>{escape('not known' if value is None else str(value))}</dd>"
        for name, value in values.items()
        if name not in leave_out
    )
    return f"<dl>{items}</dl>" if items else ""


def _repeat(run: RunFolder) -> str:
    again = escape(shlex.join(["normscale", "report", os.fspath(run.path)]))
    command = str(run.made_by.get("command") or "")
    if not command:
        return (
            "<p>The run was started from Python; <code>settings.json</code> in its folder holds the plan. This page is "
            f"made again by</p><pre>{again}</pre>"
        )
    version = escape(str(run.made_by.get("normscale", "?")))
    commit = run.made_by.get("commit")
    at = f", commit <code>{escape(re.sub('[+]changes$', ' with changes', str(commit)))}</code>" if commit else ""
    goes_on = "; started again, the command goes on where it stopped" if run.plan.network else ""
    return (
        f"<p>With normscale {version}{at}{goes_on}:</p>"
        f"<pre>{escape(command)}</pre><p>This page alone:</p><pre>{again}</pre>"
    )
