"""Sentences that the library writes for Python, in the words of the command line."""

from __future__ import annotations

import re

_ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(True|'[^']*'|\"[^\"]*\")")
_ADVICE = (
    (r"\bpass ModelOutputs\(\.\.\., head=\(weight, bias\)\)", "give a table with head_weight and head_bias"),
    (r"\bpass ModelOutputs\((?:\.\.\., |logits, )?(\w+)=\.\.\.\)", r"give a table with \1"),
    (r"\bPass ModelOutputs\((\w+)=\.\.\.\)", r"Give a table with \1"),
    (r"call set_threshold\(.*?\) first, or set threshold_ = Threshold\(value\)", "fit it with --threshold-on TABLE"),
    (r"call fit\(outputs\) or load_detector\(path\) first", "`normscale fit` makes one that is"),
    (r"\bns\.list_detectors\(\) names", "`normscale detectors` lists"),
    (r" normscale\.extraction\.extract does so by itself\.", ""),
)


def as_options(sentence: str) -> str:
    """Advice that is written for Python, as one types it on the command line.

    Examples
    --------
    >>> as_options('Drop the row or pass on_invalid="skip".')
    'Drop the row or pass --on-invalid skip.'
    >>> as_options("knn reads features; got outputs with logits. Pass ModelOutputs(features=...).")
    'knn reads features; got outputs with logits. Give a table with features.'
    """
    for python, words in _ADVICE:
        sentence = re.sub(python, words, sentence)
    return _ARGUMENT.sub(_option, sentence)


def _option(found: re.Match[str]) -> str:
    value = "" if found[2] == "True" else f" {found[2][1:-1]}"
    return f"--{found[1].replace('_', '-')}{value}"
