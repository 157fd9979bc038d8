"""Write the README's headline table from the committed results of the CIFAR-10 benchmark, beside the paper's numbers.

    python tools/write_headline.py

`make docs` runs it, and a test compares it with the README.
"""

from __future__ import annotations

from pathlib import Path

from normscale.paper.headline import headline_table

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "cifar10-small" / "results.jsonl"
BEGIN, END = "<!-- headline: make docs -->\n", "<!-- end of headline -->\n"


def with_table(readme: str) -> str:
    """The README with the table as it must be."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + headline_table(RESULTS) + END + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
