"""A family of networks that share weights: one runs at a time, each can be taken out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn

from partialsgd._util.snapshots import Buffers, RandomState
from partialsgd.masks import Mask
from partialsgd.nested.extract import level as extraction
from partialsgd.nested.inspect import drawing as pictures
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.layers.arithmetic import exact
from partialsgd.nested.layers.base import NestedModule, level_parameters, level_size
from partialsgd.nested.layers.batch_norm import Norms, recalibrate
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.levels import Levels
from partialsgd.nested.planning import example_inputs as examples
from partialsgd.nested.planning.example_inputs import Call, Example
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters, parameters_of, unwrap

if TYPE_CHECKING:
    from partialsgd.nested.inspect.profile import Profile


@final
class Nested(nn.Module):
    """Networks inside a network. `nested(x)` runs the current level, `with nested.at("core"):` another one.

    Backward belongs inside the same `at`. `nested.model` is the model that was given, so that
    `nested.model.generate(…)` works at the current level too.
    """

    def __init__(
        self,
        model: nn.Module,
        switch: Switch,
        specs: Levels,
        norms: Norms,
        claimed: Mapping[str, str],
        skipped: Mapping[str, str],
    ) -> None:
        super().__init__()
        self.model = model
        self.specs, self.norms = specs, norms
        self.claimed, self.skipped = dict(claimed), dict(skipped)
        self.training = model.training
        self._switch = switch
        self._example: Example | None = None
        self._compiled: dict[str, Any] = {}
        self._fast_paths = fast_paths.leave(model)
        model.register_forward_hook(switch.after_forward)

    @property
    def levels(self) -> tuple[str, ...]:
        """Smallest first; the last is the whole network."""
        return self._switch.levels

    @property
    def level(self) -> str:
        """The level that runs now."""
        return self._switch.level

    def at(self, level: str, *, teacher: str | None = None) -> AbstractContextManager[None]:
        """Run this level inside the `with` block; a teacher is run before it at each call, without a gradient."""
        return self._switch.at(level, teacher)

    @property
    def teacher(self) -> Any:
        """What the teacher gave for the last inputs, or None where none was asked for."""
        if self._switch.teacher is not None and self._switch.taught is None:
            raise RuntimeError("the teacher has not run yet: call the family itself, nested(x), before you ask for it")
        return self._switch.taught

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._example is None and not torch.compiler.is_compiling():
            self._example = examples.recorded(self.model, args, kwargs)
        if self._switch.teacher is not None:
            self._teach(*args, **kwargs)
        if not self._compiled:
            return self.model(*args, **kwargs)
        outputs = self._compiled[self.level](*args, **kwargs)
        self._switch.watch(outputs)
        return outputs

    def mask(self, level: str, parameters: Parameters | None = None) -> Mask:
        """p of the level: True for what it uses. Everything else may be zero, and the full network is this level."""
        known = parameters_of(self) if parameters is None else parameters
        used, own = set(self.parameters(level=level)), set(super().parameters())
        if not own <= set(known.values()):
            raise ValueError("the parameters are not of this family: build the method for the family that is trained")
        # What lies around the family belongs to every level.
        return Mask(known, {name: p in used or p not in own for name, p in known.items()})

    def parameters(self, recurse: bool = True, *, level: str | None = None) -> Iterator[nn.Parameter]:
        """The parameters that a level uses, or all."""
        return super().parameters(recurse) if level is None else level_parameters(self.model, self._switch.known(level))

    def extract(self, level: str, *, example: Any = None) -> nn.Module:
        """The level as a plain network with no trace of this package, checked to compute the same.

        `example` is an input for the check: a tensor, a tuple of arguments or a dict of named ones. It may be left
        out once the family was called, and for Hugging Face models.
        """
        with exact(self.model), self.at(level):
            plain = extraction.extract(self.model, level, self._fast_paths)
            extraction.check(self.model, plain, level, self.example(example), partial(self.inputs_of, level))
        return plain

    def example(self, given: Any = None) -> Example:
        """Inputs to try a level with: those given, or of the first call, or as a Hugging Face configuration asks."""
        if given is not None:
            return examples.as_example(given)
        found = self._example.moved(self.model) if self._example else examples.from_config(self.model)
        if found is None:
            raise ValueError("to be checked, a network needs an input: call the family once, or give example=x")
        return found

    def inputs_of(self, level: str, call: Call) -> Call:
        """What the level, taken out, needs of the family's inputs: the core of an OutputSum has its own part."""
        return self.model.share(0, *call) if isinstance(self.model, OutputSum) and level != FULL else call

    def recalibrate(self, level: str, batches: Iterable[Any]) -> None:
        """Take the BatchNorm statistics of a level anew, as the average over batches of inputs."""
        with self.at(level):
            recalibrate(self.model, level, self._run, batches)

    def profile(self, example: Any, *, repeats: int = 5) -> Profile:
        """For each level its parameters, work and latency on the example; print it."""
        from partialsgd.nested.inspect.profile import profile

        return profile(self, examples.as_call(example), repeats)

    def summary(self) -> str:
        """Which layers were nested, which not, and why; print it."""
        return pictures.summary(self)

    def draw(self) -> str:
        """The family as a picture of text, like the paper's Figure 1; print it."""
        return pictures.draw(self)

    def compile(self, **options: Any) -> None:
        """torch.compile each level by itself, so that any number of levels stays within the limit of graphs."""
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            options = {"isolate_recompiles": True, **options}

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.model(*args, **kwargs)

        self._compiled = {level: torch.compile(run, **options) for level in self.levels}

    def nested_modules(self) -> dict[str, NestedModule]:
        """The modules that are another one at each level, by name."""
        return {name: m for name, m in self.model.named_modules() if isinstance(m, NestedModule)}

    def size(self, level: str) -> int:
        """How many parameters the level has when it is taken out; a family may hold more, which are merged then."""
        return level_size(self.model, self._switch.known(level))

    def extra_repr(self) -> str:
        return f"levels={self.levels}, level={self.level!r}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}  # a copy compiles for itself

    def _teach(self, *args: Any, **kwargs: Any) -> None:
        teacher = self._switch.teacher
        assert teacher is not None  # asked before
        with ExitStack() as after:  # a teacher leaves no trace, neither in BatchNorm's statistics nor in the noise
            after.callback(Buffers(self.model).restore)
            after.callback(RandomState(self.model).restore)
            with torch.no_grad(), self.at(teacher):
                taught = self(*args, **kwargs)
        self._switch.taught = taught

    def _run(self, batch: Any) -> Any:
        args, kwargs = examples.as_call(batch)
        return self.model(*args, **kwargs)


def family_of(nested: nn.Module) -> Nested:
    """The family itself, out of DistributedDataParallel and torch.compile."""
    family = unwrap(nested) if isinstance(nested, nn.Module) else nested
    if not isinstance(family, Nested):
        raise TypeError(f"a family is needed, as ps.nest(model, …) returns it; got a {type(family).__name__}")
    return family
