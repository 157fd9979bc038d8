"""What strangers do wrong, and the sentence that each of them gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import normscale as ns
from guard.server.models import linear_model
from normscale.cli import COMMANDS, app, as_options

SAMPLE = ns.load_sample()
LABELS: Any = SAMPLE.train.labels
NAMES = list("abcdefgh")


def softmax(logits: Any) -> Any:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    """What a person reads: notes, and the sentence of the error."""
    return " ".join(f"{result.stderr} {as_options(str(result.exception or ''))}".split())


def csv(path: Path, outputs: ns.ModelOutputs, order: list[int] | None = None, names: list[str] = NAMES) -> Path:
    chosen = list(range(8)) if order is None else order
    ns.write_table(path, ns.ModelOutputs(outputs.logits[:, chosen]), class_names=[names[i] for i in chosen])
    return path


@pytest.fixture(name="fitted")
def _fitted(tmp_path: Path) -> Path:
    train = tmp_path / "train.csv"
    ns.write_table(train, ns.ModelOutputs(SAMPLE.train.logits, labels=LABELS), class_names=NAMES)
    path = tmp_path / "detector.safetensors"
    result = run("fit", train, "-o", path, "--threshold-on", csv(tmp_path / "validation.csv", SAMPLE.validation))
    assert result.exit_code == 0, said(result)
    assert "note" not in result.stderr
    return path


def test_probabilities_are_refused_and_a_log_may_serve(tmp_path: Path, fitted: Path) -> None:
    table, bad = tmp_path / "softmax.npz", tmp_path / "bad.safetensors"
    np.savez(table, logits=softmax(SAMPLE.test.logits).astype(np.float32))
    for command in (
        ("fit", table, "-o", bad),
        ("fit", "sample:train", "-o", bad, "--threshold-on", table),
        ("score", fitted, table),
        ("eval", "--id", table, "--ood", "sample:unseen_digits"),
        ("eval", "--id", "sample:test", "--ood", table, "-d", "msp"),
        ("stress", "--train", table, "--id", "sample:test", "--ood", "sample:unseen_digits"),
    ):
        result = run(*command)
        assert result.exit_code == 1
        assert "softmax.npz holds probabilities, not logits" in said(result)
        assert "before the softmax" in said(result)
        assert "--probabilities takes their logarithm" in said(result)
        assert not bad.exists()
    done = run("eval", "--id", table, "--ood", table, "-d", "msp", "--probabilities", "-f", "json")
    assert json.loads(done.stdout.splitlines()[0])["auroc"] == 0.5
    assert run("fit", table, "-o", bad, "-d", "msp", "--probabilities").exit_code == 0
    scores = run("score", bad, table, "--probabilities").stdout.splitlines()[1:]
    expected = ns.MSP().score(SAMPLE.test)
    np.testing.assert_allclose([float(line.split(",")[0]) for line in scores], expected, rtol=1e-4, atol=1e-4)
    assert "was said to hold probabilities" in said(run("score", bad, "sample:test", "--probabilities"))


def test_a_detector_of_features_does_not_mind_probabilities(tmp_path: Path) -> None:
    table = tmp_path / "both.npz"
    np.savez(table, logits=softmax(SAMPLE.train.logits), features=SAMPLE.train.features, labels=LABELS)
    done = run("fit", table, "-o", tmp_path / "d.safetensors", "-d", "mahalanobis:shrinkage=oas")
    assert done.exit_code == 0, said(done)


def test_log_probabilities_are_noted(tmp_path: Path) -> None:
    table = tmp_path / "logs.npz"
    np.savez(table, logits=np.log(softmax(SAMPLE.train.logits)))
    done = run("fit", table, "-o", tmp_path / "d.safetensors")
    assert done.exit_code == 0
    assert "logs.npz holds log-probabilities" in said(done)


def test_percentages_are_refused(tmp_path: Path) -> None:
    table, out = tmp_path / "table.npz", tmp_path / "d.safetensors"
    np.savez(table, logits=100.0 * softmax(SAMPLE.train.logits))
    assert "table.npz holds percentages, not logits" in said(run("fit", table, "-o", out))
    assert not out.exists()


def test_a_fit_says_in_one_line_what_to_try_next(tmp_path: Path) -> None:
    out = ("-o", tmp_path / "d.safetensors")
    logits = tmp_path / "logits.npz"
    np.savez(logits, logits=SAMPLE.train.logits)
    for table, options in ((logits, ()), (logits, ("-d", "energy")), ("sample:train", ()), (logits, ("-d", "auto"))):
        lines = run("fit", table, *out, *options).stderr.splitlines()
        (line,) = [one for one in lines if "to compare all detectors" in one]
        assert f"normscale eval --train {table} --id TEST --ood OOD" in line
        assert any("there are logits" in one for one in lines) == (options != ("-d", "energy"))  # why the default
    command = f"eval --train {logits} --id sample:test --ood sample:unseen_digits -d msp"
    assert run(*command.split()).exit_code == 0


def test_columns_in_another_order_give_the_same_scores(tmp_path: Path, fitted: Path) -> None:
    straight = run("score", fitted, csv(tmp_path / "straight.csv", SAMPLE.test))
    turned = run("score", fitted, csv(tmp_path / "turned.csv", SAMPLE.test, [7, 2, 0, 1, 3, 4, 5, 6]))
    assert turned.stdout == straight.stdout
    assert "matched by name" in said(turned)
    assert "note" not in straight.stderr
    evaluated = run(
        "eval", "--saved", fitted, "--id", tmp_path / "turned.csv", "--ood", tmp_path / "straight.csv", "-f", "json"
    )
    assert {json.loads(line)["auroc"] for line in evaluated.stdout.splitlines() if "frozen" in line} == {0.5}
    assert "also in" in said(evaluated)
    wider = tmp_path / "wider.csv"
    columns = np.c_[SAMPLE.test.logits[:, :3], SAMPLE.test.logits[:, 0], SAMPLE.test.logits[:, 3:]]
    ns.write_table(wider, ns.ModelOutputs(columns), class_names=[*NAMES[:3], "owl", *NAMES[3:]])
    left_out = run("score", fitted, wider)
    assert left_out.stdout == straight.stdout
    assert "are left out: owl" in said(left_out)
    assert "another order" not in said(left_out)
    renamed = csv(tmp_path / "renamed.csv", SAMPLE.test, names=["z", *NAMES[1:]])
    assert "has no column of logits for 'a'" in said(run("score", fitted, renamed))
    clash = run("fit", tmp_path / "train.csv", "-o", tmp_path / "x.safetensors", "--class-names", "1,2,3,4,5,6,7,8")
    assert "Columns are matched by name" in said(clash)


def test_a_label_column_among_the_classes(tmp_path: Path) -> None:
    table = tmp_path / "stacked.npy"
    np.save(table, np.c_[SAMPLE.train.logits, SAMPLE.train.labels])
    assert "column 8 holds nothing but the whole numbers 0 to 7" in said(
        run("fit", table, "-o", tmp_path / "x.safetensors")
    )
    named = tmp_path / "named.csv"
    named.write_text("a,b,target\n0.5,1.5,1\n")
    assert "'target', looks like labels" in said(run("fit", named, "-o", tmp_path / "x.safetensors"))


def test_rows_and_columns_that_changed_places(tmp_path: Path, fitted: Path) -> None:
    np.save(tmp_path / "turned.npy", SAMPLE.train.logits.T)
    np.savez(tmp_path / "labelled.npz", logits=SAMPLE.train.logits.T, labels=LABELS)
    out = tmp_path / "x.safetensors"
    assert "8 rows of 865 classes. Did rows and columns change places?" in said(
        run("fit", tmp_path / "turned.npy", "-o", out)
    )
    assert "rows and columns changed places" in said(run("fit", tmp_path / "labelled.npz", "-o", out))
    assert "Pass logits.T" in said(run("score", fitted, tmp_path / "turned.npy"))
    np.save(tmp_path / "test.npy", SAMPLE.test.logits.T)
    for tables in (
        ("--id", tmp_path / "test.npy", "--ood", "sample:unseen_digits"),
        ("--id", "sample:unseen_digits", "--ood", tmp_path / "test.npy"),
    ):
        assert "change places? logits.T turns them." in said(run("eval", *tables, "-d", "msp"))


def test_rows_and_columns_of_many_classes_that_changed_places(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(800, 114))
    for name, table, noted in (("turned", logits.T, True), ("whole", logits, False), ("few", logits[:50], False)):
        np.save(tmp_path / f"{name}.npy", table)
        done = run("fit", tmp_path / f"{name}.npy", "-o", tmp_path / "x.safetensors", "-d", "norm_scaling")
        assert ("Did rows and columns change places?" in said(done)) == noted, name


def test_a_threshold_on_training_rows(tmp_path: Path) -> None:
    part = tmp_path / "part.npz"
    np.savez(part, logits=SAMPLE.train.logits[::3])
    for table in ("sample:train", part):
        fit = ("fit", "sample:train", "-o", tmp_path / "d.safetensors", "--threshold-on", table)
        done = run(*fit, "--arrays", "logits")
        assert done.exit_code == 0
        assert f"100 % of the rows of {table} are also in sample:train" in said(done)
    assert "or pass --arrays logits to fit on logits alone." in said(run(*fit))


def test_a_threshold_that_a_stream_would_not_keep(tmp_path: Path) -> None:
    table = ("sample:train", "-o", tmp_path / "d.safetensors", "--threshold-on", "sample:validation")
    noted = run("fit", *table, "-d", "oodd")
    assert "100 % would be flagged in a stream. Pass --stream to set it" in said(noted)
    for calm in (("-d", "oodd", "--stream"), ("-d", "rtl"), ("-d", "norm_scaling")):
        assert "would be flagged" not in said(run("fit", *table, *calm))
    flagged = run("score", tmp_path / "d.safetensors", "sample:test", "--stream")
    assert "26 of 362 rows" in said(flagged)


def test_swapped_sides_and_permuted_labels(tmp_path: Path) -> None:
    asked = ("-d", "msp", "-d", "energy")
    swapped = run("eval", "--id", "sample:uniform_noise", "--ood", "sample:test", *asked)
    assert "Are the two swapped?" in said(swapped)
    assert "swapped" not in said(run("eval", "--id", "sample:test", "--ood", "sample:uniform_noise", *asked))
    table = tmp_path / "permuted.npz"
    np.savez(table, logits=SAMPLE.train.logits, labels=(LABELS + 1) % 8)
    for command in (
        ("fit", table, "-o", tmp_path / "x.safetensors"),
        ("eval", "--train", table, "--id", "sample:test", "--ood", "sample:uniform_noise", "-d", "msp"),
    ):
        assert "if the classes were numbered otherwise" in said(run(*command))
        assert "number them in that order. " in said(run(*command)) + " "
    shuffled = np.random.default_rng(0).permutation(LABELS)
    np.savez(table, logits=SAMPLE.train.logits, labels=shuffled)
    noted = said(run("fit", table, "-o", tmp_path / "x.safetensors"))
    assert "Do labels and logits have their rows in the same order? " in noted + " "
    np.savez(table, logits=SAMPLE.train.logits, labels=LABELS + 1)
    assert "They seem to count from 1: subtract 1." in said(run("fit", table, "-o", tmp_path / "x.safetensors"))


def test_a_row_that_cannot_be_computed_is_a_dash_with_a_note(tmp_path: Path) -> None:
    predicted = SAMPLE.test.predicted
    inside, outside = tmp_path / "inside.npz", tmp_path / "outside.npz"
    np.savez(inside, logits=SAMPLE.test.logits[predicted < 4])
    np.savez(outside, logits=SAMPLE.test.logits[predicted >= 4])
    tables = ("--id", inside, "--ood", outside, "--ood", "sample:unseen_digits", "--train", "sample:train")
    asked = ("eval", *tables, "-d", "multi_threshold", "-d", "msp")
    shown = run(*asked)
    assert shown.exit_code == 0, said(shown)
    table = " ".join(shown.stdout.split())
    assert "multi_threshold per class - (1) - (1) - (1) - (1) - (1)" in table
    assert "(1) id_predicted and ood_predicted have no class in common" in table
    rows = [json.loads(line) for line in run(*asked, "-f", "json").stdout.splitlines()]
    by = {(row["ood_set"], row["setting"], row["method"]): row for row in rows}
    assert by["outside", "per class", "multi_threshold"]["auroc"] is None
    assert "no class in common" in by["outside", "per class", "multi_threshold"]["skipped"]
    assert by["unseen_digits", "per class", "multi_threshold"]["auroc"] > 0.9
    assert by["outside", "frozen", "msp"]["auroc"] is not None


def test_small_flaws(tmp_path: Path, fitted: Path) -> None:
    assert "there is no folder" in said(
        run("score", fitted, "sample:test", "--stream", "--save", tmp_path / "no" / "d.safetensors")
    )
    rows = np.ones((3, 2))
    rows[1, 0] = np.nan
    with pytest.raises(ns.InvalidInput, match=r"^row 1 holds NaN"):
        ns.RunningMoments(2).update(rows)
    assert [name for name in dir(ns) if not name.startswith("__")] == sorted(set(ns.__all__) - {"__version__"})
    assert "raise|skip" in run("score", "--help").stdout


def test_a_missing_table_among_many(tmp_path: Path, fitted: Path) -> None:
    (tmp_path / "many").mkdir()
    for name in "abcdefg":
        (tmp_path / "many" / f"{name}.csv").touch()
    sentence = said(run("score", fitted, tmp_path / "many" / "validation_rows.npz"))
    assert "the tables in that folder are a.csv, b.csv, c.csv, d.csv, e.csv and 2 more." in sentence


def test_a_report_on_what_is_no_benchmark_advises_no_deletion(tmp_path: Path, fitted: Path) -> None:
    (tmp_path / "notes").mkdir()
    for path, why in ((fitted, "it is a file"), (tmp_path / "notes", "it has no"), (tmp_path / "no", "no such folder")):
        sentence = said(run("report", path))
        assert "is not the folder of a benchmark" in sentence
        assert why in sentence
        assert "`normscale eval ... --report FOLDER`" in sentence
        assert "elete" not in sentence
    assert fitted.exists()


@pytest.mark.parametrize(
    "command",
    [
        ("fit", "sample:train", "-o"),
        ("score", "detector.safetensors", "validation.csv", "-o"),
        ("eval", "--id", "sample:test", "--ood", "sample:unseen_digits", "-d", "msp", "-o"),
    ],
)
def test_an_output_in_a_missing_folder(tmp_path: Path, fitted: Path, command: tuple[str, ...]) -> None:
    words = [fitted.parent / word if (fitted.parent / word).exists() else word for word in command]
    ending = ".safetensors" if command[0] == "fit" else ".csv"
    result = run(*words, tmp_path / "missing" / f"out{ending}")
    assert result.exit_code == 1
    assert "there is no folder" in said(result)
    assert "make it first" in said(result)
    assert not (tmp_path / "missing").exists()


def test_no_help_shows_the_type_of_a_variable() -> None:
    assert len(COMMANDS) > 12
    for words in (*([name] for name in COMMANDS), ["data", "get"], ["data", "list"]):
        shown = run(*words, "--help")
        assert shown.exit_code == 0, words
        assert "list[" not in shown.stdout, words
    assert "<str>..." in run("report", "--help").stdout


def test_help_lists_the_choices_of_an_option() -> None:
    for command, option, choices in (
        ("serve", "--on-drift", "freeze|warn|ignore"),
        ("serve", "--log-format", "text|json"),
        ("watch", "--on-drift", "freeze|warn|ignore"),
        ("watch", "--on-invalid", "raise|skip"),
    ):
        (line,) = [line for line in run(command, "--help").stdout.splitlines() if f" {option} " in line]
        assert choices in line


def test_a_model_that_cannot_be_served_gets_a_sentence(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    linear_model(tmp_path / "two.onnx", 4, 8)
    model = onnx.load(tmp_path / "two.onnx")
    model.graph.node.append(onnx.helper.make_node("Softmax", ["logits"], ["probabilities"]))
    for name in ("scores", "others"):
        model.graph.node.append(onnx.helper.make_node("Identity", ["logits"], [name]))

    def write(name: str, *outputs: str) -> Path:
        del model.graph.output[:]
        model.graph.output.extend(onnx.helper.make_tensor_value_info(one, 1, ["n", 8]) for one in outputs)
        onnx.save(model, tmp_path / name)
        return tmp_path / name

    two, soft = write("two.onnx", "scores", "others"), write("soft.onnx", "probabilities")
    store = ("--store", tmp_path / "guard.sqlite", "--port", 0)
    several = said(run("serve", "sample", "--model", two, *store))
    assert "several outputs of the model could be its logits: 'scores' (n, 8), 'others' (n, 8); pass" in several
    assert "(--logits NAME)" in several
    wrong = said(run("serve", "sample", "--model", two, "--logits", "score", *store))
    assert "Did you mean 'scores'?" in wrong
    assert "no model file at" in said(run("serve", "sample", "--model", tmp_path / "nowhere.onnx", *store))
    assert "give both" in said(run("serve", "sample", "--logits", "scores", *store))
    inputs = np.ones((2, 4), np.float32)
    expected = onnxruntime_outputs(two, inputs)
    assert not np.allclose(expected.sum(axis=1), 1.0)
    classifier = pytest.importorskip("normscale.guard.server.classifier").Classifier
    for chosen in (classifier(str(two), {"logits": 8}, "scores"), classifier(str(soft), {"logits": 8})):
        np.testing.assert_array_equal(chosen.run({"inputs": inputs})[0]["logits"], expected)
    assert "comes out of a Softmax, so it is no longer logits: the detector reads 'logits'" in chosen.note


def onnxruntime_outputs(path: Path, inputs: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["scores"], {"inputs": inputs})[0]


def test_a_table_in_the_place_of_a_detector_and_the_other_way_round(tmp_path: Path, fitted: Path) -> None:
    table = tmp_path / "train.npz"
    np.savez(table, logits=SAMPLE.train.logits)
    text = said(run("score", table, table))
    assert f"'{table}' is a table of outputs, and a detector is expected here" in text
    assert "`normscale fit` saved" in text
    text = said(run("score", fitted, fitted))
    assert f"{fitted} is a detector (" in text
    assert "and a table of outputs is expected here" in text
    assert f"{fitted} is a detector" in said(run("fit", fitted, "-o", tmp_path / "d.safetensors"))


@pytest.mark.parametrize(("detector", "noted"), [("energy", False), ("norm_scaling", True)])
def test_the_note_on_missing_classes_is_for_detectors_that_divide(tmp_path: Path, detector: str, noted: bool) -> None:
    table = tmp_path / "few.npz"
    np.savez(table, logits=SAMPLE.train.logits[LABELS < 4], labels=LABELS[LABELS < 4])
    text = said(run("fit", table, "-o", tmp_path / "d.safetensors", "-d", detector))
    assert ("the rows show 4 of 8 classes (labels). The logits of the others vary less" in text) == noted
    assert ("norm-scaling" in text.replace("norm_scaling", "")) == noted


def test_advice_is_in_the_words_of_the_command_line(tmp_path: Path) -> None:
    table = tmp_path / "bare.npz"
    np.savez(table, logits=SAMPLE.train.logits, features=SAMPLE.train.features)
    for detector in ("mahalanobis", "vim", "react+energy"):
        text = said(run("fit", table, "-o", tmp_path / "d.safetensors", "-d", detector))
        assert "needs" in text
        assert "ModelOutputs" not in text
        assert "give a table with" in text


@pytest.mark.parametrize("table", ["sample:test", "table.csv", "folder", "not_there.npz"])
def test_detector_and_table_in_the_wrong_order(tmp_path: Path, fitted: Path, table: str) -> None:
    (tmp_path / "folder").mkdir()
    csv(tmp_path / "table.csv", SAMPLE.test)
    place = table if table.startswith("sample:") else tmp_path / table
    result = run("score", place, fitted)
    assert result.exit_code == 1
    assert f"{str(place)!r} is a table of outputs, and a detector is expected here" in said(result)
    assert "A detector comes before the tables" in said(result)


@pytest.mark.parametrize("command", [("score",), ("watch",), ("eval", "--id", "sample:test", "--ood", "x", "--saved")])
def test_a_table_in_the_place_of_a_detector(command: tuple[str, ...]) -> None:
    result = run(*command, "sample:test")
    assert result.exit_code == 1
    assert "'sample:test' is a table of outputs, and a detector is expected here" in said(result)
    assert "-o sample:test" not in said(result)
