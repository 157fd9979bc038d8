"""Copy the result of a training run into docs/results/ with its command and commit, and draw its curve.

python tools/record_training.py RUN_FOLDER docs/results/NAME -- normscale train ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from record_comparison import commit


def main(run: Path, target: Path, command: str) -> None:
    result = json.loads((run / "result.json").read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    record = {"command": command, "recorded_at_commit": commit(), **result}
    target.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    draw(result, target.with_suffix(".png"))


def draw(result: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    log = result["log"]
    assert isinstance(log, list)
    epochs = [line["epoch"] for line in log]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8, 3), layout="constrained")
    left.plot(epochs, [line["loss"] for line in log], marker="o", markersize=3)
    left.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    right.plot(epochs, [100 * line["accuracy"] for line in log], marker="o", markersize=3, label="training, augmented")
    right.plot(
        epochs, [100 * line["validation_accuracy"] for line in log], marker="o", markersize=3, label="validation"
    )
    test = 100 * float(str(result["test_accuracy"]))
    right.axhline(test, linestyle="--", linewidth=1, color="0.4", label=f"test, at the end: {test:.2f} %")
    right.set(xlabel="epoch", ylabel="accuracy (%)")
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{result['network']}, width {result['width']}, {result['data']}, seed {result['seed']}", fontsize=10
    )
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[3] != "--":
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), " ".join(sys.argv[4:]))
