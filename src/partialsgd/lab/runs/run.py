"""A run directory: config.json, metrics.jsonl, checkpoints/, best/, last/, summary.json or failed.json, and .lock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import partialsgd
from partialsgd._util import files
from partialsgd.lab.recipes import require_recipe, settings_of
from partialsgd.lab.training.errors import AlreadyThere, NotThere, WrongCall
from partialsgd.lab.training.settings import Settings

_LATER = frozenset({"query_key", "shard", "distill", "distill_weight", "part_ways", "state", "full"})
"""Settings that came later than some runs, which were trained as the default says."""

Checkpoint: TypeAlias = Literal["best", "last"]
"""The saved model that a command uses: the best on the validation data, or that of the last evaluation."""
FAILED = "failed.json"
"""The file in the directory of a run that diverged; such a run has no final scores."""
VALID = "valid/"
"""The prefix of validation numbers in a record: valid/core/loss."""


@final
@dataclass(frozen=True)
class Run:
    """A training on disk."""

    path: Path

    @staticmethod
    def new(settings: Settings, data_hash: str | None = None, texts: Mapping[str, str] | None = None) -> Run:
        """Make a new directory, and write the settings and hashes of the data and of the texts beside it."""
        path = Path(settings.out or f"runs/{settings.recipe}-{time.strftime('%Y%m%d-%H%M%S')}")
        if path.exists() and (not path.is_dir() or {file.name for file in path.iterdir()} - {files.STAGE}):
            is_run = (path / "config.json").exists()
            what = f"it is a run; `partialsgd resume {path}` continues it" if is_run else "it is not empty"
            raise AlreadyThere(f"{path} exists ({what}); give another --out")
        run = Run(path)
        path.mkdir(parents=True, exist_ok=True)
        config = {"recipe": settings.recipe, "settings": asdict(settings), "data": data_hash, "versions": versions()}
        config["files"] = {name: files.sha256(text) for name, text in (texts or {}).items()}
        run.write_json("config.json", config)
        return run

    @staticmethod
    def open(path: str | Path) -> Run:
        """Open an existing run; its settings must be readable."""
        run = Run(Path(path))
        if not (run.path / "config.json").is_file():
            raise NotThere(f"{run.path} is not a run: it has no config.json, which `partialsgd train` writes first")
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
        config = files.read_json(path)
        if not isinstance(config.get("settings"), dict) or "recipe" not in config:
            raise ValueError(f"{path} is not the config.json of a run, which `partialsgd train` writes")
        try:
            return settings_of(require_recipe(config["recipe"]), config["settings"])
        except TypeError as error:
            raise ValueError(f"{path} was edited or written by another version of partialsgd: {error}") from error
        except WrongCall as error:
            raise WrongCall(f"{path}: {error}") from None

    def require_all_settings(self) -> None:
        """Refuse a config.json without some settings: a run continues with its own, not with today's defaults."""
        path = self.path / "config.json"
        stored = files.read_json(path)["settings"]
        absent = [field.name for field in fields(self.settings) if field.name not in stored]
        if absent := [name for name in absent if name not in _LATER]:
            raise ValueError(
                f"{path} has no {', '.join(absent)}: it was edited or written by another version of partialsgd; "
                "add the values that the run was started with, or resume it with that version"
            )

    def read_text(self, name: str) -> str:
        """Read a text file that the run keeps, and check that it is the one that the run started with."""
        path = self.path / name
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is missing or damaged ({error}); restore it from a copy of the run") from error
        stored = files.read_json(self.path / "config.json").get("files", {}).get(name)
        if stored is not None and stored != files.sha256(text):
            raise ValueError(
                f"{path} is damaged or from elsewhere: its sha256 is not the one in config.json; restore it from a "
                "copy of the run"
            )
        return text

    def require_data(self, data_hash: str) -> None:
        """Refuse data other than those the run started with: its test data might be training data there."""
        config = files.read_json(self.path / "config.json")
        stored = config.get("data")
        changed = [part for part in data_hash.split() if stored is not None and part not in stored.split()]
        if changed and ":" in changed[0]:
            name = changed[0].partition(":")[0]
            raise ValueError(
                f"the weights of the {name} are not those that {self.path} started with; restore the run at "
                f"{getattr(self.settings, name, name)}, or start a new training"
            )
        if changed:
            then = ", ".join(f"{name} {version}" for name, version in config["versions"].items())
            raise ValueError(
                f"the data are not those that {self.path} started with: the files changed, or a library that makes "
                f"them (the versions then were {then})"
            )

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """States of the training, from which it can be resumed."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The nested model that scored best on the validation data."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The nested model of the last evaluation."""
        return self.path / "last"

    @property
    def summary(self) -> dict[str, Any] | None:
        """The content of summary.json, or None while the run is not finished."""
        path = self.path / "summary.json"
        return files.read_json(path) if path.exists() else None

    def write_json(self, name: str, record: dict[str, Any]) -> None:
        """Write a JSON file of the run, whole or not at all."""
        files.write_alone(self.path / name, files.json_text(record).encode())

    def write_texts(self, texts: Mapping[str, str]) -> None:
        """Write text files of the run, each whole or not at all."""
        with files.staged(self.path) as stage:
            for name, text in texts.items():
                (stage / name).write_text(text, encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training this run. The operating system ends the lock with the process."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        with files.open_to_change(self.path / ".lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise RuntimeError(f"another process is training {self.path}; wait for it, or stop it") from error
            yield


def versions() -> dict[str, str]:
    """The installed versions of the packages that results depend on."""
    from importlib.metadata import PackageNotFoundError, version

    installed = {"partialsgd": partialsgd.__version__}
    for name in ("torch", "transformers", "accelerate", "tokenizers", "babel", "sacrebleu", "scikit-learn"):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def evaluation(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the validation numbers of a record by level; a level's name may have a slash, as in valid/1/4/loss."""
    levels: dict[str, dict[str, float]] = {}
    for key, value in record.items():
        if key.startswith(VALID):
            level, _, name = key.removeprefix(VALID).rpartition("/")
            levels.setdefault(level, {})[name] = float(value)
    return levels
