"""Damaged, swapped and hostile files, and symbolic links where files are written.

The outcome must be the same bits, or one sentence and no traceback; nothing in a file may be executed.
"""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from partialsgd._util import tensor_files
from partialsgd.export import files
from partialsgd.lab.runs import checkpoints
from partialsgd.lab.runs.run import Run
from partialsgd.logging import metrics_log
from studies.assault.processes import Ended
from studies.assault.targets import Arena, Tally, differences, fingerprint, refusal

EDITABLE = ("config.json", "metrics.jsonl", "summary.json")
"""Files of a run that a person may edit: damage that makes another valid value is read as that value."""
SAME, REFUSED, OTHER_VALUE = "the same bits", "refused in a sentence", "read as another valid value"


class _Payload:
    """Creates the canary when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.canary,)


def _flip(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]


def _zero(data: bytes, random: Random) -> bytes:
    begin = random.randrange(len(data))
    end = min(len(data), begin + random.randint(1, 4096))
    return data[:begin] + bytes(end - begin) + data[end:]


MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    "a bit flipped": _flip,
    "cut off": lambda data, random: data[: random.randrange(len(data))],
    "a block of zeros": _zero,
    "random bytes": lambda data, random: random.randbytes(len(data)),
    "empty": lambda data, random: b"",
    "with something at the end": lambda data, random: data + random.randbytes(random.randint(1, 100)),
}


def mutated_files(arena: Arena, tally: Tally) -> Iterator[None]:
    """Every kind of file of a run, damaged in every way, and then the commands that read it."""
    canary = arena.scratch / "canary"
    readers = _readers(arena)
    while True:
        for recipe, pattern, command in readers:
            place = arena.unfinished(recipe) if command == "resume" else arena.copy(arena.whole(recipe), "attacked")
            if command == "export again":
                shutil.copytree(_exported(arena), place / "exported")
            path = arena.random.choice(sorted(place.glob(pattern)))
            how = arena.random.choice([*MUTATIONS, "swapped", "gone", "a pickle"])
            _damage(path, how, arena, canary)
            ended, changed = _read(arena, command, recipe, place)
            what = f"{path.relative_to(place)} of {recipe} {how}, {command}"
            _judge(tally, ended, changed, what, is_editable=path.name in EDITABLE and path.parent == place)
            if canary.exists():
                canary.unlink()
                tally.bad("code in a file was executed", what)
            yield


_PIECE = 100


def mutated_reads(arena: Arena, tally: Tally) -> Iterator[None]:
    """The same damage for the functions that read the files, a hundred files in one process: many more attempts."""
    to = arena.scratch / "reads.json"
    while True:
        for recipe in ("images", "translation"):
            run = arena.copy(arena.whole(recipe), "read")
            seed = arena.random.randrange(1 << 30)
            ended = arena.server.call(f"{__name__}:read_many", str(run), str(arena.scratch / "canary"), seed, str(to))
            if ended.code != 0:
                tally.bad(f"the process ended with code {ended.code}", f"a hundred damaged files of {recipe}")
            else:
                for outcome, what, is_good in json.loads(to.read_text()):
                    tally.good(outcome) if is_good else tally.bad(outcome, f"{what} of {recipe}")
            yield


def read_many(run: str, canary: str, seed: int, to: str) -> int:
    """Damage one file after the other, read it, and put it back; write the outcomes to a file."""
    logging.getLogger("partialsgd").setLevel(logging.ERROR)
    folder, random = Path(run), Random(seed)
    expected = {name: {read(folder)} for name, (_, read) in _FUNCTIONS.items()}
    newest = checkpoints.paths(folder / "checkpoints")[-1]
    data = newest.read_bytes()
    newest.unlink()
    expected["checkpoints"].add(_FUNCTIONS["checkpoints"][1](folder))  # damage of the newest is passed over
    newest.write_bytes(data)
    outcomes = []
    for _ in range(_PIECE):
        name = random.choice(list(_FUNCTIONS))
        pattern, read = _FUNCTIONS[name]
        path, how = random.choice(sorted(folder.glob(pattern))), random.choice([*MUTATIONS, "a pickle"])
        data = path.read_bytes()
        path.write_bytes(pickle.dumps(_Payload(Path(canary))) if how == "a pickle" else MUTATIONS[how](data, random))
        outcome, is_good = _outcome(
            read, folder, expected[name], is_editable=path.name in EDITABLE[:2] and name != "best"
        )
        path.write_bytes(data)
        if Path(canary).exists():
            Path(canary).unlink()
            outcome, is_good = "code in a file was executed", False
        outcomes.append((outcome, f"{path.relative_to(folder)} {how}", is_good))
    Path(to).write_text(json.dumps(outcomes))
    return 0


def _outcome(read: Callable[[Path], str], folder: Path, expected: set[str], *, is_editable: bool) -> tuple[str, bool]:
    try:
        result = read(folder)
    except (ValueError, OSError):
        return REFUSED, True
    except Exception as error:
        return f"{type(error).__name__}: {error}", False
    if result in expected:
        return SAME, True
    return (OTHER_VALUE, True) if is_editable else ("another result without a word", False)


def _newest_state(run: Path) -> str:
    newest = checkpoints.latest(run / "checkpoints")
    structure, tensors = checkpoints.pack(newest)
    return tensor_files.digest({"state": structure}, tensors)


def _model(run: Path) -> str:
    record, tensors = files.read(run / "best")
    return tensor_files.digest(record, tensors)


_FUNCTIONS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "checkpoints": ("checkpoints/*", _newest_state),
    "best": ("best/*", _model),
    "config": ("config.json", lambda run: repr(Run.open(run).settings)),
    "metrics": ("metrics.jsonl", lambda run: repr(metrics_log.read(run / "metrics.jsonl"))),
}
"""Files by pattern, and a function that reads them and returns what it has read."""


def _readers(arena: Arena) -> list[tuple[str, str, str]]:
    """A recipe, a pattern of files and a command that reads them."""
    own = ["config.json", "metrics.jsonl", "checkpoints/*", "best/*", "last/*"]
    readers = [(recipe, pattern, "resume") for recipe in ("images", "translation") for pattern in own]
    readers += [("translation", "tokenizer.json", command) for command in ("resume", "evaluate")]
    readers += [(recipe, "best/*", "evaluate") for recipe in ("images", "translation")]
    readers += [("translation", "best/*", "load"), ("images", "best/*", "export")]
    readers += [("images", "exported/*", "export again")]
    return readers + [("images", pattern, "report") for pattern in EDITABLE]


def _damage(path: Path, how: str, arena: Arena, canary: Path) -> None:
    if how == "gone":
        path.unlink()
    elif how == "a pickle":
        path.write_bytes(pickle.dumps(_Payload(canary)))
    elif how == "swapped":
        others = [other for other in arena.scratch.glob(f"whole-*/**/*{path.suffix}") if other.is_file()]
        shutil.copyfile(arena.random.choice(sorted(others)), path)
    else:
        path.write_bytes(MUTATIONS[how](path.read_bytes(), arena.random))


def _read(arena: Arena, command: str, recipe: str, place: Path) -> tuple[Ended, bool]:
    """Run a command on a run; whether its result differs from that on the undamaged run."""
    whole = arena.whole(recipe)
    if command == "resume":
        ended = arena.server.partialsgd("resume", place)
        return ended, ended.code == 0 and bool(differences(place, fingerprint(whole)))
    if command == "report":
        return arena.server.partialsgd("report", place, "--to", arena.scratch / "page.html"), False
    if command.startswith("export"):
        to = place / ("exported" if command == "export again" else "new")
        ended = arena.server.partialsgd("export", place, "--to", to)
        return ended, ended.code == 0 and any(
            (to / file.name).read_bytes() != file.read_bytes() for file in _exported(arena).iterdir()
        )

    def run(path: Path) -> Ended:
        if command == "load":
            return arena.server.call(f"{__name__}:load", str(path / "best"))
        return arena.server.partialsgd("evaluate", path)

    undamaged = _output(run(whole), whole)
    ended = run(place)
    return ended, ended.code == 0 and _output(ended, place) != undamaged


def _exported(arena: Arena) -> Path:
    """The core of the undamaged images run; made once."""
    to = arena.scratch / "exported"
    if not to.exists():
        arena.server.partialsgd("export", arena.whole("images"), "--to", to)
    return to


def _output(ended: Ended, run: Path) -> str:
    return "".join(ended.output.replace(str(run), "RUN").split())


def _judge(tally: Tally, ended: Ended, changed: bool, what: str, *, is_editable: bool) -> None:
    if ended.code != 0:
        wrong = refusal(ended)
        tally.bad(wrong, f"{what} ({_last_line(ended)})") if wrong else tally.good(REFUSED)
    elif not changed:
        tally.good(SAME)
    elif is_editable:
        tally.good(OTHER_VALUE)
    else:
        tally.bad("another result without a word", what)


def _last_line(ended: Ended) -> str:
    return next((line.strip() for line in reversed(ended.output.splitlines()) if line.strip()), "no output")[-200:]


def load(folder: str) -> int:
    """Load a nested model, and print a hash of its weights or the message of its error, as a command would."""
    from partialsgd import export
    from partialsgd.export import states

    try:
        nested = export.load(folder)
    except (ValueError, OSError, RuntimeError, ImportError, ArithmeticError, TypeError) as error:
        print(f"partialsgd: {error}")
        return 1
    print(tensor_files.digest({}, states.stored(nested.model)))
    return 0


def symbolic_links(arena: Arena, tally: Tally) -> Iterator[None]:
    """A link to somebody's file at each path that a command writes; that file must stay as it is."""
    whole, victim = arena.whole("images"), arena.scratch / "victim"
    written = [("resume", path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()]
    written += [("resume", Path(name)) for name in (".lock", "checkpoints/.being_written", ".being_written")]
    exported = sorted(path.name for path in _exported(arena).iterdir())
    written += [("export", Path("to") / name) for name in exported] + [("report", Path("report.html"))]
    for command, path in sorted(set(written)):
        if path == Path("config.json"):
            continue  # it is read and not written
        place = arena.unfinished("images")
        victim.write_bytes(b"somebody's")
        link = place / path
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
        call = {"resume": [], "export": ["--to", place / "to", "--overwrite"], "report": []}[command]
        ended = arena.server.partialsgd(command, place, *call)
        what = f"{command} with a link at {path}"
        wrong = refusal(ended) if ended.code != 0 else None
        if victim.read_bytes() != b"somebody's":
            tally.bad("the file behind the link was changed", what)
        elif wrong:
            tally.bad(wrong, f"{what} ({_last_line(ended)})")
        else:
            tally.good(REFUSED if ended.code else "the link was replaced, the file behind it was not touched")
        yield


_CODE = "__import__('pathlib').Path({canary!r}).touch()"
_VALUES: list[Any] = [None, -1, 0, 1e308, float("nan"), float("inf"), 10**30, "x" * 100_000, [], {}, [[]], True, _CODE]
_OPTIONS: list[tuple[str, str]] = [
    *(("--threads", value) for value in ("0", "-1", "999999999999")),
    *(("--ratio", value) for value in ("0", "-1", "nan", "1/0", "2", "x", "1e-999999999")),
    *(("--clip-norm", value) for value in ("0", "nan", "-1")),
    *(("--lr", value) for value in ("nan", "inf", "-1", "0")),
    *((option, value) for option in ("--epochs", "--batch", "--width", "--limit") for value in ("0", "-3", "1e9", "")),
    *((f"--{name}-every", value) for name in ("measure", "checkpoint", "evaluate") for value in ("0", "-1")),
    *(("--keep", value) for value in ("0", "-1")),
    *((option, _CODE) for option in ("--method", "--probe")),
    *(("--method", value) for value in ("(" * 5000, "sam(rho=1e999)", "dropout(keep=-1)", "sam(**{})", "lambda: 0")),
    *(("--data", value) for value in ("/dev/zero", "/dev/null", "/")),
    *(("--out", value) for value in ("/dev/null/x", "/dev/null", "\n")),
    *(("--seed", value) for value in ("-1", "1e400", str(2**70))),
]


def hostile_settings(arena: Arena, tally: Tally) -> Iterator[None]:
    """Options and values of config.json that are wrong, huge, deep or code."""
    canary = arena.scratch / "canary"
    for option, value in _OPTIONS:
        text = value.format(canary=str(canary)) if value == _CODE else value
        out = arena.scratch / "hostile"
        shutil.rmtree(out, ignore_errors=True)
        call = ["train", "images", "--limit", "40", "--width", "2", "--epochs", "1", "--threads", "1"]
        call = [*call, "--measure-every", "2", "--out", str(out), option, text]
        ended = arena.server.partialsgd(*call, timeout=30)
        what = f"train {option} {text[:60]!r}"
        if ended.code != 0 and (wrong := refusal(ended)):
            tally.bad(wrong, f"{what} ({_last_line(ended)})")
        elif ended.code == 2 and out.exists():
            tally.bad("a directory was made for a call that was refused", what)
        else:
            tally.good(REFUSED if ended.code else "taken as it is")
        if canary.exists():
            canary.unlink()
            tally.bad("code in an option was executed", what)
        yield
    config = json.loads((arena.whole("images") / "config.json").read_text())
    cases: list[tuple[str, Callable[[Any], str]]] = [
        ("deep JSON", lambda record: "[" * 100_000),
        ("deep settings", lambda record: json.dumps(record)[:-1] + ', "x": ' + "[" * 900 + "]" * 900 + "}"),
        ("not UTF-8", lambda record: "\udcff"),
        ("a list", lambda record: "[]"),
    ]
    for name in config["settings"]:
        cases.append((f"{name} missing", lambda record, name=name: _without(record, name)))
        for value in arena.random.sample(_VALUES, 3):
            text = value.format(canary=str(canary)) if value == _CODE else value
            cases.append((f"{name} = {str(text)[:40]}", lambda record, n=name, v=text: _with(record, n, v)))
    for what, edit in cases:
        place = arena.unfinished("images")
        path = place / "config.json"
        path.write_text(edit(json.loads(path.read_text())), encoding="utf-8", errors="surrogateescape")
        ended = arena.server.partialsgd("resume", place, timeout=30)
        if ended.code == 0 and what.endswith(" missing"):
            tally.bad("the default was taken without a word", f"config.json with {what}")
        else:
            changed = ended.code == 0 and bool(differences(place, fingerprint(arena.whole("images"))))
            _judge(tally, ended, changed, f"config.json with {what}", is_editable=True)
        if canary.exists():
            canary.unlink()
            tally.bad("code in config.json was executed", what)
        yield


def _without(record: Any, name: str) -> str:
    return json.dumps({**record, "settings": {k: v for k, v in record["settings"].items() if k != name}})


def _with(record: Any, name: str, value: Any) -> str:
    return json.dumps({**record, "settings": {**record["settings"], name: value}})


_HUGE: Mapping[str, Any] = {"d_model": 10**7, "encoder_layers": 10**5, "vocab_size": 10**9, "encoder_ffn_dim": 10**9}
_CHOOSES_CODE: Mapping[str, Any] = {
    "attn_implementation": "somebody/kernel",
    "_attn_implementation": "somebody/kernel",
    "_experts_implementation": "somebody/kernel",
    "auto_map": {"AutoModel": "somebody--module.Class"},
    "trust_remote_code": True,
}


def hostile_models(arena: Arena, tally: Tally) -> Iterator[None]:
    """Saved models with a valid checksum whose config asks for code or for sizes that the weights do not have."""
    best = arena.whole("translation") / "best"
    undamaged = arena.server.call(f"{__name__}:load", str(best)).output
    cases: list[tuple[str, dict[str, Any]]] = [
        *((f"class {name}", {"transformers": name}) for name in ("os.system", "pipeline", "Trainer", "BertModel")),
        *((f"{name} = {value}", {"config": {name: value}}) for name, value in {**_CHOOSES_CODE, **_HUGE}.items()),
    ]
    for what, change in cases:
        record, tensors = files.read(best)
        model = {**record["model"], **change, "config": {**record["model"]["config"], **change.get("config", {})}}
        folder = arena.scratch / "hostile-model"
        shutil.rmtree(folder, ignore_errors=True)
        del record["digest"]
        files.write(folder, {**record, "model": model}, tensors)
        ended = arena.server.call(f"{__name__}:load", str(folder), timeout=30)
        _judge(tally, ended, ended.output != undamaged, f"a model with {what}", is_editable=False)
        yield
