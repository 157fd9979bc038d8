"""Train a small DistilBERT on the 150 intents of CLINC150, and write its texts for ``normscale compare``.

    git clone https://github.com/clinc/oos-eval
    python benchmarks/examples/clinc150.py oos-eval/data/data_full.json clinc
    normscale compare --model clinc/model --train clinc/train.parquet --validation clinc/validation.parquet \
        --id clinc/test.parquet --ood out_of_scope=clinc/out_of_scope.parquet --outputs clinc/outputs

The tokenizer (WordPiece) and the network are made from nothing: no download. The out-of-scope sentences are used in
no step of the training. Docs: docs/howto/text-classifier.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import pyarrow
import torch
from pyarrow import parquet
from tokenizers import BertWordPieceTokenizer
from torch.nn.functional import cross_entropy
from transformers import BertTokenizerFast, DistilBertConfig, DistilBertForSequenceClassification

SIZE = {"dim": 128, "n_layers": 1, "n_heads": 4, "hidden_dim": 256, "max_position_embeddings": 48, "vocab_size": 4000}
BATCH, RATE, DECAY, DROPOUT = 64, 3e-3, 0.01, 0.2


def make_tokenizer(texts: list[str], folder: Path) -> Any:
    """WordPiece, trained on the training sentences."""
    pieces = BertWordPieceTokenizer(lowercase=True)
    pieces.train_from_iterator(texts, vocab_size=SIZE["vocab_size"], min_frequency=2, show_progress=False)
    pieces.save_model(str(folder))
    tokenizer = BertTokenizerFast(
        str(folder / "vocab.txt"), model_max_length=48, model_input_names=["input_ids", "attention_mask"]
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def main() -> None:
    """Train, and say the accuracy on the validation sentences after each epoch."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    texts = json.loads(given.data.read_text())
    names = sorted({intent for _, intent in texts["train"]})
    number = {name: i for i, name in enumerate(names)}
    (given.folder / "model").mkdir(parents=True, exist_ok=True)
    sets = {"train": "train", "validation": "val", "test": "test", "out_of_scope": "oos_test"}
    for name, key in sets.items():
        columns: dict[str, list[Any]] = {"text": [text for text, _ in texts[key]]}
        if key != "oos_test":
            columns["label"] = [number[intent] for _, intent in texts[key]]
        parquet.write_table(pyarrow.table(columns), given.folder / f"{name}.parquet")

    torch.manual_seed(given.seed)
    tokenizer = make_tokenizer([text for text, _ in texts["train"]], given.folder / "model")
    config = DistilBertConfig(
        **SIZE, dropout=DROPOUT, attention_dropout=DROPOUT, seq_classif_dropout=DROPOUT, pad_token_id=0,
        id2label=dict(enumerate(names)), label2id=number,
    )  # fmt: skip
    model = DistilBertForSequenceClassification(config)
    rows = {name: _encoded(tokenizer, texts[sets[name]], number) for name in ("train", "validation")}
    steps = given.epochs * math.ceil(len(texts["train"]) / BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    start = time.monotonic()
    for epoch in range(given.epochs):
        model.train()
        order = torch.randperm(len(texts["train"]))
        for at in range(0, len(order), BATCH):
            ids, mask, labels = _batch(rows["train"], order[at : at + BATCH])
            loss = cross_entropy(model(input_ids=ids, attention_mask=mask).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        right = _right(model, rows["validation"])
        print(
            f"epoch {epoch + 1}: {right:.4f} of the validation sentences, {time.monotonic() - start:.0f} s", flush=True
        )
    model.save_pretrained(given.folder / "model")


def _encoded(tokenizer: Any, pairs: list[tuple[str, str]], number: dict[str, int]) -> tuple[torch.Tensor, ...]:
    found = tokenizer([text for text, _ in pairs], padding=True, truncation=True, return_tensors="pt")
    return found["input_ids"], found["attention_mask"], torch.tensor([number[intent] for _, intent in pairs])


def _batch(rows: tuple[torch.Tensor, ...], chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Some rows, cut to the longest of them."""
    ids, mask, labels = (one[chosen] for one in rows)
    longest = int(mask.sum(dim=1).max())
    return ids[:, :longest], mask[:, :longest], labels


@torch.inference_mode()
def _right(model: Any, rows: tuple[torch.Tensor, ...]) -> float:
    model.eval()
    right = 0
    for chosen in torch.arange(len(rows[2])).split(256):
        ids, mask, labels = _batch(rows, chosen)
        right += int((model(input_ids=ids, attention_mask=mask).logits.argmax(dim=1) == labels).sum())
    return right / len(rows[2])


if __name__ == "__main__":
    main()
