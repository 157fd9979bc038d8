"""Write the headline table of docs/results.md from the committed results of the CIFAR-10 benchmark.

    python tools/write_headline.py

`make docs` runs it, and a test compares it with the page.
"""

from __future__ import annotations

from pathlib import Path

from normscale.paper.headline import headline_table

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "docs" / "results" / "cifar10-small" / "results.jsonl"
BEGIN, END = "<!-- headline: make docs -->\n", "<!-- end of headline -->\n"


def with_table(page: str) -> str:
    """The page with the table of the committed results."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + headline_table(RESULTS) + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
