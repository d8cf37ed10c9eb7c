"""A run directory: config.json, metrics.jsonl, checkpoints/, best/, last/, summary.json."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import partialsgd
from partialsgd._util.files import read_json
from partialsgd.export import files
from partialsgd.lab.recipes import RECIPES
from partialsgd.lab.training.errors import AlreadyThere, NotThere
from partialsgd.lab.training.settings import Settings


@final
@dataclass(frozen=True)
class Run:
    """A training on disk."""

    path: Path

    @staticmethod
    def new(settings: Settings, digest: str | None = None) -> Run:
        """A directory of its own, with the settings in it and the hash of the data."""
        default = f"runs/{settings.recipe}-{time.strftime('%Y%m%d-%H%M%S')}"
        path = Path(settings.out or default)
        if path.exists() and (not path.is_dir() or {file.name for file in path.iterdir()} - {files.STAGE}):
            is_run = (path / "config.json").exists()
            what = f"a run is there; `partialsgd resume {path}` continues it" if is_run else "not empty"
            raise AlreadyThere(f"{path} exists ({what}); give another --out")
        run = Run(path)
        path.mkdir(parents=True, exist_ok=True)
        said = {"recipe": settings.recipe, "settings": asdict(settings), "data": digest, "versions": versions()}
        run.write("config.json", said)
        return run

    @staticmethod
    def open(path: str | Path) -> Run:
        run = Run(Path(path))
        if not (run.path / "config.json").is_file():
            raise NotThere(f"{run.path} is no run: it has no config.json, which `partialsgd train` writes first")
        try:
            _ = run.settings
        except ValueError:
            if (run.path.parent / "checkpoints").is_dir():
                raise NotThere(f"{run.path} is a part of a run; give the run itself, {run.path.parent}") from None
            raise
        return run

    @property
    def settings(self) -> Settings:
        path = self.path / "config.json"
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            recipe, values = said["recipe"], {name: _frozen(value) for name, value in said["settings"].items()}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not of a run ({error!r}); `partialsgd train` writes such a file") from error
        if recipe not in list(RECIPES):
            raise ValueError(f"{path} is of the recipe {recipe!r}; there are {', '.join(RECIPES)}")
        try:
            return RECIPES[recipe](**values)
        except TypeError as error:
            raise ValueError(f"{path} is of another version of partialsgd, or was edited: {error}") from error

    def require_data(self, digest: str) -> None:
        """Refuse data that the run was not begun with: its test phrases may be training phrases there."""
        said = read_json(self.path / "config.json")
        known = said.get("data")
        changed = [part for part in digest.split() if known is not None and part not in known.split()]
        if changed and ":" in changed[0]:
            name = changed[0].partition(":")[0]
            raise ValueError(
                f"the weights of the {name} are not those that {self.path} was begun with; bring back the run that "
                f"was at {getattr(self.settings, name, name)}, or train anew"
            )
        if changed:
            raise ValueError(
                f"the data are not those that {self.path} was begun with: the files have changed, or a library that "
                f"makes them ({', '.join(f'{name} {version}' for name, version in said['versions'].items())} then)"
            )

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The states of the training, from which it can go on."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The family that was best on the validation data."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The family as it is now."""
        return self.path / "last"

    @property
    def summary(self) -> dict[str, Any] | None:
        """What came out, or None while the run is not at its end."""
        path = self.path / "summary.json"
        return read_json(path) if path.exists() else None

    def write(self, name: str, record: dict[str, Any]) -> None:
        """A JSON file of the run, whole or not at all."""
        with files.staged(self.path) as stage:
            files.write_json(stage / name, record)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process trains a run. The lock is the system's and ends with the process, however that ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RuntimeError(f"another process is training {self.path}; wait for it, or end it") from error
            yield


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {"partialsgd": partialsgd.__version__}
    for name in ("torch", "transformers", "accelerate", "tokenizers", "babel", "sacrebleu", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
