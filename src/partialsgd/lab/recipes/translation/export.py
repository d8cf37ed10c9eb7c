"""Export of a level of a translation run: the code in its README, and the tokenizer of transformers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.training.task import ExportDetails, fill_template
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PACKAGES = {
    "safetensors": "torch transformers tokenizers safetensors",
    "onnx": "onnxruntime tokenizers numpy",
    "transformers": "torch transformers",
}
_DYNAMIC = {"input_ids": {1: "source"}, "attention_mask": {1: "source"}, "decoder_input_ids": {1: "target"}}


def details(settings: Translation, format: str, tokenizer: Tokenizer, example: str, *, is_full: bool) -> ExportDetails:
    """Fill in the code for a level; `example` is a sentence to translate."""
    data = "phrases generated from the Unicode locale data"
    if settings.data is not None:
        data = f"the sentences in `{Path(settings.data).name}`"
    is_original = is_full and settings.alone in (None, FULL)
    templates = Path(__file__).parent / "templates"
    smaller = "" if is_original or settings.nest not in ("low-rank", "width") else f"{settings.nest}.py.txt"
    code = fill_template(
        templates / f"{format}.py.txt",
        text=repr(example),
        longest=settings.longest,
        smaller=smaller and (templates / smaller).read_text(encoding="utf-8"),
    )
    return ExportDetails(
        about=f"Translates {settings.source} to {settings.target}; trained on {data}.",
        packages=_PACKAGES[format],
        code=code,
        files=_auto_tokenizer(tokenizer) if format == "transformers" else {},
        dynamic=_DYNAMIC,
    )


def _auto_tokenizer(tokenizer: Tokenizer) -> dict[str, str]:
    """The files from which `AutoTokenizer.from_pretrained` loads the tokenizer."""
    transformers: Any = import_module("transformers")
    wrapped = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
    with TemporaryDirectory() as folder:
        wrapped.save_pretrained(folder)
        return {file.name: file.read_text(encoding="utf-8") for file in Path(folder).iterdir()}
