"""Kills: at random moments of trainings, and before each operation on files, after which the run must go on."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from partialsgd.lab.runs import checkpoints
from studies.assault.processes import can_trace
from studies.assault.targets import COMMANDS, Arena, Tally, differences, fingerprint, refusal

SAME = "resumed to the same bits"
_KILLS = 12
"""Kills of one training, after which it may come to its end."""


def random_kills(arena: Arena, tally: Tally) -> Iterator[None]:
    """`kill -9` at moments uniform over the life of a training, again and again, until it ends."""
    lives: dict[str, float] = {}
    for recipe in COMMANDS:
        arena.whole(recipe)
        began = time.monotonic()
        arena.server.partialsgd("resume", arena.unfinished(recipe))
        lives[recipe] = time.monotonic() - began
    while True:
        for recipe, seconds in lives.items():
            place, kills = arena.scratch / "killed", 0
            shutil.rmtree(place, ignore_errors=True)
            for life in range(_KILLS + 1):
                started = (place / "config.json").exists()
                call = ["resume", place] if started else [*COMMANDS[recipe].split(), "--out", place]
                moment = None if life == _KILLS else arena.random.uniform(0, 1.5 * seconds)
                ended = arena.server.partialsgd(*call, kill_after=moment)
                if ended.code != -signal.SIGKILL:
                    break
                kills += 1
            _compare(arena, tally, recipe, place, ended.code, f"{kills} random kills of {recipe}", max(1, kills))
            yield


def kills_in_a_life(arena: Arena, tally: Tally) -> Iterator[None]:
    """A kill before each operation on files of a process that takes the last steps and finishes the run."""
    if not can_trace():
        return
    operations = arena.server.partialsgd("resume", arena.unfinished("images"), trace=True).operations
    for number in arena.random.sample(range(len(operations)), len(operations)):
        place = arena.unfinished("images")
        ended = arena.server.partialsgd("resume", place, kill_at=number)
        what = f"a kill before operation {number} ({operations[number]})"
        if ended.code != -signal.SIGKILL:
            tally.bad(f"it ended with code {ended.code}", what)
        else:
            again = arena.server.partialsgd("resume", place)
            _compare(arena, tally, "images", place, again.code, what)
        yield


def kills_in_a_save(arena: Arena, tally: Tally) -> Iterator[None]:
    """A kill before each operation on files of one checkpoint's save: the old state or the new one must be there."""
    if not can_trace():
        return
    save = f"{__name__}:save_again"
    source = arena.unfinished("images") / "checkpoints"
    before = checkpoints.latest(source)
    folder = arena.copy(source, "saved")
    operations = arena.server.call(save, str(folder), trace=True).operations
    after = checkpoints.latest(folder)
    assert before is not None and after is not None and after[0] == before[0] + 1
    for number, operation in enumerate(operations):
        folder = arena.copy(source, "saved")
        ended = arena.server.call(save, str(folder), kill_at=number)
        newest = checkpoints.latest(folder)
        what = f"a kill before operation {number} of a save ({operation})"
        position = None if newest is None else newest[0]
        is_whole = position in (before[0], after[0]) and _same_state(newest[1], before[1])
        again = arena.server.call(save, str(folder))
        if ended.code != -signal.SIGKILL or not is_whole:
            tally.bad("neither the old state nor the new one is there", what)
        elif again.code != 0 or any(path.suffix != ".safetensors" for path in folder.iterdir()):
            tally.bad("the next save fails or leaves something behind", what)
        else:
            tally.good("the old state is there" if position == before[0] else "the new state is there")
        yield


def save_again(folder: str) -> int:
    """Save the newest state once more, as that of one step later."""
    position, state = checkpoints.latest(Path(folder)) or (0, None)
    checkpoints.save(Path(folder), position + 1, state, keep=2)
    return 0


def _same_state(state: object, other: object) -> bool:
    (structure, tensors), (expected, others) = checkpoints.pack(state), checkpoints.pack(other)
    return structure == expected and all(tensors[name].equal(others[name]) for name in others)


def _compare(arena: Arena, tally: Tally, recipe: str, place: Path, code: int, what: str, count: int = 1) -> None:
    whole = arena.whole(recipe)
    if code != 0:
        tally.bad(f"the run does not go on (code {code})", what)
    elif changed := differences(place, fingerprint(whole)):
        tally.bad(f"{', '.join(changed)} of the run differ", what)
    elif left := sorted(_tree(place) - _tree(whole)):
        tally.bad(f"{', '.join(left)} is left behind", what)
    else:
        tally.outcomes[SAME] += count


def _tree(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*")}


def full_disk(arena: Arena, tally: Tally) -> Iterator[None]:
    """Files that cannot grow beyond a limit, as on a full disk; with room again, the run must go on."""
    expected = fingerprint(arena.whole("images"))
    sizes = sorted({path.stat().st_size for path in arena.whole("images").rglob("*") if path.is_file()})
    limits = [max(0, size - cut) for size in sizes for cut in (0, 1, 50, size // 2)]
    for limit in arena.random.sample(limits, len(limits)):
        place = arena.unfinished("images")
        ended = arena.server.partialsgd("resume", place, file_limit=limit)
        what = f"no room for files above {limit} bytes"
        if ended.code != 0 and (wrong := refusal(ended)):
            tally.bad(wrong, what)
            yield
            continue
        again = arena.server.partialsgd("resume", place)
        if again.code != 0 or differences(place, expected):
            tally.bad("the run does not go on to the same bits when there is room", what)
        else:
            tally.good("told in a sentence, then resumed to the same bits" if ended.code else "there was room enough")
        yield
