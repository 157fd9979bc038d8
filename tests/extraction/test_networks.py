"""Networks of transformers, timm and torchvision, as a user saves, loads and names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from needed_extras import need
from normscale import InvalidInput, ModelOutputs
from normscale.extraction import Preprocessing, extract, open_model
from normscale.extraction.preprocessing import of_timm

need("transformers", "timm")
pytestmark = pytest.mark.usefixtures("torchvision")

torch.set_num_threads(1)
IMAGES = torch.randn(7, 3, 32, 32, generator=torch.Generator().manual_seed(0))
WORDS = ["the", "a", "sky", "sea", "cat", "dog", "runs", "swims", "blue", "red"]
TEXTS = ["the cat runs", "a red dog swims the blue sea", "sky", "the the the a a"]
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "hidden_size": 16}


def rebuilds(outputs: ModelOutputs, logits: Tensor) -> None:
    """Logits are the model's, and its head makes them of the features."""
    np.testing.assert_allclose(outputs.logits, logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert outputs.head is not None
    np.testing.assert_allclose(outputs.head.logits(outputs.features), outputs.logits, rtol=1e-3, atol=1e-5)


def vit(folder: Path, **options: Any) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    names = dict(enumerate(("cat", "dog", "owl", "rat")))
    config = ViTConfig(**SMALL, image_size=32, patch_size=8, id2label=names, label2id={n: i for i, n in names.items()})
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(folder)
    return model


def pictures(folder: Path, *names: str, n: int = 3) -> Path:
    """Folders of pictures of several sizes, one of them grey."""
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(n):
            shape = (40 + 5 * i, 60) if i == 1 else (40 + 5 * i, 60, 3)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_a_saved_vit_reads_pictures_by_its_own_record(tmp_path: Path) -> None:
    from transformers import ViTImageProcessorPil

    model = vit(tmp_path / "vit")
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.4] * 3)
    processor.save_pretrained(tmp_path / "vit")
    folder = pictures(tmp_path / "pictures", "dog", "cat", "fish")
    said: list[str] = []
    found = extract(str(tmp_path / "vit"), folder, batch_size=2, say=said.append)
    files = sorted(folder.rglob("*.png"))
    inputs = processor(images=[Image.open(file).convert("RGB") for file in files], return_tensors="pt")
    rebuilds(found, model(**inputs).logits)
    assert found.labels is not None
    assert found.labels.tolist() == [0] * 3 + [1] * 3 + [-1] * 3  # by the names of the classes
    assert any("ViTImageProcessorPil" in text and "0.4, 0.4, 0.4" in text for text in said)
    assert any("1 folders, such as 'fish', are no classes of the model" in text for text in said)
    one = extract(str(tmp_path / "vit"), folder, batch_size=2, workers=1, say=said.append)
    np.testing.assert_array_equal(one.logits, found.logits)


def test_without_a_record_nothing_is_guessed(tmp_path: Path) -> None:
    vit(tmp_path / "vit")
    folder = pictures(tmp_path / "pictures", "a")
    with pytest.raises(InvalidInput, match="does not record how pictures become its inputs, and that is not guessed"):
        extract(str(tmp_path / "vit"), folder)
    told = extract(str(tmp_path / "vit"), folder, preprocess=Preprocessing(32), say=lambda _: None)
    assert (len(told), told.labels) == (3, None)  # one folder, four classes: which is which is not known
    with pytest.raises(InvalidInput, match=r"the model fails on inputs of shape \(3, 3, 30, 30\).*size"):
        extract(str(tmp_path / "vit"), folder, preprocess=Preprocessing(30))


def test_swin_and_dictionaries_of_pixels() -> None:
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    model = SwinForImageClassification(
        SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4, num_labels=3
        )
    )
    batches = [{"pixel_values": IMAGES[:4], "labels": torch.tensor([0, 1, 2, 0])}]
    found = extract(model, batches, layers=["swin.encoder.layers.0"])
    rebuilds(found, model.eval()(IMAGES[:4]).logits)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 0]
    assert found.array("swin_encoder_layers_0").shape == (4, 16)


def tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", model_max_length=6)
    fast.save_pretrained(folder)


def text_model(kind: str) -> Any:
    import transformers

    options = {
        "Bert": SMALL,
        "DistilBert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
        "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "pad_token_id": 0},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, num_labels=3, **options)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


@pytest.mark.parametrize("kind", ("Bert", "DistilBert", "GPT2"))
def test_texts_by_the_tokenizer_beside_the_model(kind: str, tmp_path: Path) -> None:
    """GPT-2's head works on every token, and the logits are those of the last that is not padding."""
    model = text_model(kind)
    model.save_pretrained(tmp_path / "model")
    tokenizer(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    found = extract(str(tmp_path / "model"), tmp_path / "texts.txt", layers=[], say=lambda _: None)
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")(
        TEXTS, padding=True, truncation=True, return_tensors="pt"
    )
    tokens = {name: value for name, value in tokens.items() if name != "token_type_ids" or kind == "Bert"}
    rebuilds(found, model(**tokens).logits)
    layer = {"Bert": "bert.embeddings", "DistilBert": "distilbert.embeddings", "GPT2": "transformer.ln_f"}[kind]
    whole = extract(model, dict(tokens), layers=[layer]).array(layer.replace(".", "_"))
    alone = {name: value[2:3, :1] for name, value in tokens.items()}  # "sky", without its padding
    np.testing.assert_allclose(
        whole[2:3], extract(model, alone, layers=[layer]).array(layer.replace(".", "_")), atol=1e-5
    )


class MeanOfTokens(nn.Module):
    """A head on every token, and the mean of what it says over those that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weight = attention_mask[..., None].float()
        return {"logits": (self.score(self.words(input_ids)) * weight).sum(1) / weight.sum(1)}


def test_a_mean_over_tokens_is_found_by_looking() -> None:
    ids = torch.randint(0, 9, (5, 4), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    model = MeanOfTokens()
    rebuilds(extract(model, {"input_ids": ids, "attention_mask": mask}), model(ids, mask)["logits"])


def test_two_heads_are_not_chosen_between() -> None:
    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x) + self.two(x.flip(1))) / 2  # type: ignore[no-any-return]

    with pytest.raises(InvalidInput, match="several linear layers could give the model's logits: 'two', 'one'"):
        extract(TwoHeads(), torch.randn(4, 8))


def test_timm_by_name_with_weights_of_ones_own(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", pretrained=False, num_classes=4).eval()
    save_file({f"module.{name}": value for name, value in model.state_dict().items()}, tmp_path / "net.safetensors")
    folder = pictures(tmp_path / "pictures", "a", "b", "c", "d", n=1)
    said: list[str] = []
    name = "timm:test_resnet:num_classes=4"
    found = extract(name, folder, weights=str(tmp_path / "net.safetensors"), say=said.append)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    files = sorted(folder.rglob("*.png"))
    with torch.no_grad():
        expected = model(torch.stack([transform(Image.open(file).convert("RGB")) for file in files]))
    rebuilds(found, expected)
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3]
    assert "timm's pretrained_cfg" in said[0]
    assert "the 4 folders are the model's classes in the order of their names" in said[1]
    with pytest.raises(InvalidInput, match=r"weights in .* do not fit the model"):
        extract("timm:test_vit", folder, weights=str(tmp_path / "net.safetensors"))
    with pytest.raises(InvalidInput, match="timm cannot make 'no_such_net'"):
        open_model("timm:no_such_net")
    model.pretrained_cfg = {"input_size": (3, 8, 8)}
    assert of_timm(model) is None


def test_torchvision_by_name_and_its_recorded_preprocessing(tmp_path: Path) -> None:
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.get_model("shufflenet_v2_x0_5", num_classes=3).eval()
    torch.save(model.state_dict(), tmp_path / "net.pt")
    folder = pictures(tmp_path / "pictures", "a", n=2)
    transforms = torchvision.models.get_model_weights("shufflenet_v2_x0_5").DEFAULT.transforms()
    inputs = torch.stack([transforms(Image.open(file).convert("RGB")) for file in sorted(folder.rglob("*.png"))])
    said: list[str] = []
    name = "torchvision:shufflenet_v2_x0_5:num_classes=3"
    found = extract(name, folder, weights=str(tmp_path / "net.pt"), ood=True, say=said.append)
    with torch.no_grad():
        rebuilds(found, model(inputs))
    assert "crop_size=[224] resize_size=[256]" in said[0]


def test_unknown_models_are_explained(tmp_path: Path) -> None:
    for name, message in (
        ("resnet18", "expected hf:ORG/NAME, a folder of save_pretrained, timm:NAME"),
        ("no.onnx", "there is no file no.onnx"),
        ("no.py:net", r"there is no file no\.py"),
        (str(tmp_path), "transformers cannot load"),
    ):
        with pytest.raises(InvalidInput, match=message):
            open_model(name)
    (tmp_path / "net.py").write_text("import torch\ndef net(): return torch.nn.Linear(3, 2)\n")
    assert extract(f"{tmp_path}/net.py:net", torch.zeros(2, 3)).logits.shape == (2, 2)
    with pytest.raises(InvalidInput, match="has no 'other'"):
        open_model(f"{tmp_path}/net.py:other")
