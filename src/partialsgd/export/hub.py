"""A nested model in a directory or repository of the Hugging Face Hub, with a card that has a row for each level."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from partialsgd._util.extras import missing
from partialsgd._util.files import write_text
from partialsgd.export import checkpoints, files, hugging_face
from partialsgd.nested import Nested
from partialsgd.nested.nested import Metrics, unwrap_nested

CARD = "README.md"
_MARK = "<!-- model card written by partialsgd; without this line it is yours and stays as it is -->"


def save_pretrained(nested: nn.Module, directory: str | PathLike[str], *, metrics: Metrics | None = None) -> None:
    """Write what `save` writes, and a model card; a card without the line of this package stays as it is."""
    nested, path = unwrap_nested(nested), Path(directory)
    card = path / CARD
    checkpoints.save(nested, path, metrics=metrics)
    if card.is_symlink() or (card.exists() and _MARK not in card.read_text(encoding="utf-8")):
        return
    write_text(card, model_card(nested, metrics or {}))


def from_pretrained(
    source: str | PathLike[str],
    model: nn.Module | None = None,
    *,
    revision: str | None = None,
    **options: Any,
) -> Nested:
    """Load a nested model from a directory, or from a repository of the Hub, of which only the two files of `save`
    are downloaded. The options are those of `load`."""
    path = Path(source)
    if path.is_dir():
        if revision is not None:
            raise ValueError(f"{path} is a directory, which has no revision {revision!r}")
        return checkpoints.load(path, model, **options)
    if path.exists():
        raise NotADirectoryError(f"{path} is a file; give the directory that save_pretrained wrote")
    hub = _hub()
    try:
        folder = hub.snapshot_download(str(source), revision=revision, allow_patterns=[files.WEIGHTS, files.CONFIG])
    except (hub.errors.HFValidationError, OSError) as error:  # errors of the network and of the Hub are OSErrors
        raise FileNotFoundError(
            f"there is no directory {str(source)!r}, and no repository of the Hub could be read ({error}); "
            "give the directory that save_pretrained wrote, or 'owner/name'"
        ) from error
    return checkpoints.load(folder, model, **options)


def push_to_hub(
    nested: nn.Module,
    repository: str,
    *,
    metrics: Metrics | None = None,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload a nested model",
    token: str | None = None,
) -> str:
    """Write the files to a temporary directory, make the repository if it is missing, and upload them."""
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(nested, folder, metrics=metrics)
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, revision=revision, commit_message=commit_message
        )
    return str(commit)


def model_card(nested: Nested, metrics: Metrics) -> str:
    """Return the text of README.md: what the model is, its levels with their sizes and numbers, and how to load it."""
    name = type(nested.model).__name__
    names = list(dict.fromkeys(number for numbers in metrics.values() for number in numbers))
    full = nested.size(nested.levels[-1])
    head = "| level | parameters | share |" + "".join(f" {_cell(number)} |" for number in names)
    rows = [head, "| --- | --: | --: |" + " --: |" * len(names)]
    for level in nested.levels:
        size = nested.size(level)
        numbers = "".join(f" {_number(metrics.get(level, {}), number)} |" for number in names)
        rows.append(f"| {_cell(level)} | {size:,} | {size / full:.1%} |{numbers}")
    given = "" if hugging_face.is_hugging_face(nested.model) else ", model"
    lines = [
        *("---", "library_name: partialsgd", "tags:", "- partialsgd", "- nested-model", "---", ""),
        *(_MARK, "", f"# {name}, {len(nested.levels)} sizes in one checkpoint", ""),
        f"The networks below share their weights and were trained together; each is a plain {name} when taken out.",
        *("", *rows, ""),
        *("```python", "import partialsgd as ps", ""),
        f'nested = ps.Nested.from_pretrained("…"{given})  # this directory or repository',
        f'small = nested.extract("{nested.levels[0]}")  # a plain torch module',
        *("```", ""),
    ]
    return "\n".join(lines)


def _number(numbers: Mapping[str, float], name: str) -> str:
    value = numbers.get(name)
    if value is None:
        return "–"
    number = float(value)
    return f"{number:.4g}" if math.isfinite(number) else str(number)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise missing("for repositories of the Hugging Face Hub, huggingface_hub is needed", "trainer") from error
    return huggingface_hub
