"""OpenOOD v1.5: its near and far OoD sets, and its published averages; they stand in ``openood_v1_5.json``."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from normscale.bench.report.published import OodGroupReference, OodGroups, PublishedAverages

FILE = "openood_v1_5.json"


@cache
def openood() -> OodGroupReference:
    """The groups and the figures, the latter between 0 and 1.

    Examples
    --------
    >>> openood().groups_of("cifar10").near
    ('cifar100', 'tinyimagenet')
    >>> openood().published["cifar10", "knn"]
    PublishedAverages(near=0.9064, far=0.9296)
    """
    document = json.loads(resources.files("normscale.bench.paper").joinpath(FILE).read_text("utf-8"))
    groups = {
        name: OodGroups(tuple(one["near"]), tuple(one["far"]), one["defined_by"])
        for name, one in document["groups"].items()
    }
    published = {
        (in_set, method): PublishedAverages(*(round(percent / 100, 4) for percent in pair))
        for in_set, figures in document["auroc_percent"].items()
        for method, pair in figures.items()
    }
    titles, same_set, remarks = document["set_titles"], document["same_set"], document["remarks"]
    return OodGroupReference(document["title"], document["source"], groups, published, titles, same_set, remarks)
