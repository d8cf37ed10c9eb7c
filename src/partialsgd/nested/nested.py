"""`nest` and `Nested`: networks of several sizes that share weights, of which one runs at a time."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import nn
from torch.optim import Optimizer

from partialsgd._util import shards
from partialsgd._util.plain_copy import gathered_copy
from partialsgd._util.snapshots import Buffers, RandomState
from partialsgd.masks import Mask
from partialsgd.nested import example_inputs
from partialsgd.nested.example_inputs import Call, Example
from partialsgd.nested.extract.hf_config import refuse_saving
from partialsgd.nested.extract.level import check_extracted, extract_level
from partialsgd.nested.inspect import summary
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.layers.base import NestedModule, exact_arithmetic, extracted_size, level_parameters
from partialsgd.nested.layers.batch_norm import Norms, recalibrate
from partialsgd.nested.layers.separate import SeparateLevels
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.planning.build import fill_plan
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.specs import Levels, Spec, require_choice, resolve_levels
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters, parameters_of, unwrap

if TYPE_CHECKING:
    from partialsgd.nested.inspect.profile import Profile

Metrics: TypeAlias = Mapping[str, Mapping[str, float]]
"""Numbers for each level, by name."""

_SAVE_HINT = (
    "save all levels with nested.save_pretrained(directory), or one with "
    "nested.extract(level).save_pretrained(directory)"
)

_TRAINER_QUESTION = "accepts_loss_kwargs"
"""The attribute that the Trainer of Hugging Face asks of a model when it is built, and nothing else asks for."""

_TRAINER_HINT = (
    "a Hugging Face Trainer was given a nested model: it would find no columns and no labels, and train the full level "
    "alone. Use PartialTrainer(model=nested, method=ps.methods.alternating(), …) from partialsgd.integrations, or "
    "PartialTrainerMixin before another Trainer's class; methods.plain() there trains the full level alone. To "
    "fine-tune one size, give the Trainer nested.extract(level)"
)

_LOAD_HINT = (
    "The weights of a plain model are loaded before nest: model.load_state_dict(…), then nest(model, …). "
    "All levels of a nested model are saved by partialsgd.export.save and read by partialsgd.export.load"
)


def nest(
    model: nn.Module,
    spec: Spec | Sequence[Spec] | None = None,
    *,
    levels: Mapping[str, Spec | Sequence[Spec]] | None = None,
    norms: Norms = "separate",
    seed: int = 0,
    example: Any = None,
    optimizer: Optimizer | None = None,
) -> Nested:
    """Turn the model, in place, into a nested model: networks of several sizes that share their weights.

    A spec with one ratio gives the levels `core` and `full`, one with several ratios gives a level for each ratio and
    `full`; a list of specs is applied together. `levels={"small": [...], "medium": [...]}` names the levels, smallest
    first, and lists what each has less of than the full network; `levels={}` gives `full` alone. A model that contains
    an `OutputSum` needs no spec. `norms="separate"` gives each level its own BatchNorm, `"shared"` one to all. `seed`
    decides the weights that are drawn. `example` is an input of the model, a tuple of arguments or a dict of named
    ones: `Width` runs the model once to find its hidden units. It may be left out for Hugging Face models and for
    models that take one tensor.

    If it raises, the model is unchanged. The parameters are new: build the optimizer afterwards, or give the one that
    has trained the model as `optimizer`: it then holds the new parameters, in the same groups, with the moments of the
    weights that they came from. W of a low-rank layer keeps the moments of the weight, and U and V begin anew.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the first argument of nest must be an nn.Module, got {type(model).__name__}")
    if unwrap(model) is not model:
        raise ValueError("nest the model first, then wrap it in DistributedDataParallel or torch.compile")
    nested_modules = [module for module in model.modules() if isinstance(module, (NestedModule, Nested))]
    if any(not isinstance(module, OutputSum) or module.switch.levels != (FULL,) for module in nested_modules):
        raise ValueError("the model is nested already; nest it once, with `levels` for several sizes")
    if spec is None and levels is None and not nested_modules:
        raise ValueError("nest needs a spec, as in nest(model, LowRank(1/32)): LowRank, Width, Depth or LayerSum")
    require_choice("norms", norms, ("separate", "shared"))
    level_specs = resolve_levels(spec, levels)
    plan = NestPlan(model, Switch((*level_specs, FULL)), seed)
    plan.example = None if example is None else example_inputs.as_example(example)
    with exact_arithmetic(model):
        fill_plan(plan, level_specs, norms)
        plan.require_registered()
    if optimizer is None:
        return Nested(plan.carry_out(), plan, level_specs, norms)
    from partialsgd.nested.optimizer_state import carry_into, require_carriable

    require_carriable(plan.replacements.values())
    before = dict(model.named_parameters())
    nested = Nested(plan.carry_out(), plan, level_specs, norms)
    carry_into(nested, before, optimizer)
    return nested


@final
class Nested(nn.Module):
    """A network with smaller networks inside: `nested(x)` runs the current level, `with nested.at("core"):` another.

    Backward belongs inside the same `at`. `nested.model` is the model that was given to `nest`. It answers for public
    names that a nested model does not have itself, so that `nested.config` is the model's, and `nested.generate(…)`
    generates at the current level.
    """

    def __init__(self, model: nn.Module, plan: NestPlan, specs: Levels, norms: Norms) -> None:
        super().__init__()
        self.model, self.specs, self.norms, self._switch = model, specs, norms, plan.switch
        self.nested_by = {name: module.spec_name for name, module in plan.replacements.items()}
        self.skipped = plan.skipped
        """The spec that nested each layer, and for the other layers the reason why they are not nested."""
        self.training = model.training
        self._example: Example | None = None
        self._compiled: dict[str, Any] = {}
        self._fast_path_flags = fast_paths.disable_where_unsafe(model)
        model.register_forward_hook(self._switch.after_forward)
        if self.nested_modules():
            refuse_saving(model, "the layers of a nested model have other parameters", _SAVE_HINT)

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels, smallest first; the last is the full network."""
        return self._switch.levels

    @property
    def level(self) -> str:
        """The level that runs now."""
        return self._switch.level

    def at(self, level: str, *, teacher: str | None = None) -> AbstractContextManager[None]:
        """Run this level inside the `with` block; a teacher runs before it at each call, without a gradient.

        Like `torch.no_grad`, it applies to its own thread (and asyncio task): a new thread begins at the full level.
        """
        return self._switch.at(level, teacher)

    @property
    def teacher(self) -> Any:
        """The teacher's outputs for the last inputs, or None if `at` named no teacher."""
        state = self._switch.state
        if state.teacher is not None and state.teacher_outputs is None:
            raise RuntimeError("the teacher has not run yet: call the nested model, nested(x), before nested.teacher")
        return state.teacher_outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._example is None and not torch.compiler.is_compiling():
            self._example = example_inputs.recorded(self.model, args, kwargs)
        if self._switch.teacher is not None:
            self._run_teacher(self._switch.teacher, *args, **kwargs)
        if not self._compiled:
            return self.model(*args, **kwargs)
        self._switch.put(self._switch.state)  # another asyncio task of this thread may have entered a level since
        outputs = self._compiled[self.level](*args, **kwargs)
        self._switch.watch(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "model" not in self.__dict__.get("_modules", {}):
                raise
            if name == _TRAINER_QUESTION:
                raise TypeError(_TRAINER_HINT) from None
        try:
            return getattr(self.model, name)
        except AttributeError:
            pass
        hint = f"; run the level in `with nested.at({name!r}):`, or take it out by nested.extract({name!r})"
        raise AttributeError(
            f"neither Nested nor the {type(self.model).__name__} inside it has {name!r}{hint * (name in self.levels)}"
        )

    def mask(self, level: str, parameters: Parameters | None = None) -> Mask:
        """Return p of the level: True for the parameters that it uses.

        If the level is a mask, it is the full network with all other parameters at zero.
        """
        named = parameters_of(self) if parameters is None else parameters
        used, own = set(self.parameters(level=level)), set(super().parameters())
        if not own <= set(named.values()):
            raise ValueError("these parameters are not those of this nested model; give PartialSGD the same model")
        # Parameters of a module around the nested model belong to every level.
        return Mask(named, {name: p in used or p not in own for name, p in named.items()})

    def parameters(self, recurse: bool = True, *, level: str | None = None) -> Iterator[nn.Parameter]:
        """Yield the parameters that a level uses, or all."""
        if level is None:
            return super().parameters(recurse)
        return level_parameters(self.model, self._switch.require(level))

    def extract(self, level: str, *, example: Any = None) -> nn.Module:
        """Return the level as a plain module without anything of this package, checked to compute the same.

        `example` is an input for the check: a tensor, a tuple of arguments or a dict of named ones. It may be left
        out once the nested model was called, and for Hugging Face models. Of a sharded model every rank gets a whole
        copy, so all of them must call it.
        """
        if any(map(shards.is_sharded, super().parameters())):
            whole = gathered_copy(self)  # on every rank: all of them must call this
            assert isinstance(whole, Nested)
            return whole.extract(level, example=example)
        with exact_arithmetic(self.model), self.at(level):
            plain = extract_level(self.model, level, self._fast_path_flags)
            check_extracted(self.model, plain, level, self.example(example), partial(self.inputs_of, level))
        return plain

    def part_ways(self, *, example: Any = None) -> Nested:
        """Return a nested model with the same levels that share nothing: each is the level as `extract` gives it.

        It is trained, saved and used as any other; this one stays as it is. `example` is that of `extract`.
        """
        return self.with_separate([self.extract(level, example=example) for level in self.levels])

    def with_separate(self, networks: Sequence[nn.Module]) -> Nested:
        """Return a nested model of networks that share nothing, one for each level."""
        switch = Switch(self.levels)
        plan = NestPlan(SeparateLevels(networks, switch).train(self.training), switch)
        separate = Nested(plan.model, plan, self.specs, self.norms)
        separate._example = self._example
        return separate

    def example(self, inputs: Any = None) -> Example:
        """Return example inputs: those given, those of the first call, or some that fit a Hugging Face config."""
        if inputs is not None:
            return example_inputs.as_example(inputs)
        example = self._example.moved(self.model) if self._example else example_inputs.from_config(self.model)
        if example is None:
            raise ValueError("an extracted level is checked on an input: call the nested model once, or give example=x")
        return example

    def inputs_of(self, level: str, call: Call) -> Call:
        """Return the arguments of the extracted level; the core of an OutputSum takes its own ones alone."""
        if isinstance(self.model, OutputSum) and level != FULL:
            return self.model.arguments_of("core", *call)
        return call

    def save_pretrained(self, directory: str | PathLike[str], *, metrics: Metrics | None = None) -> None:
        """Write all levels to a directory that `from_pretrained` reads: weights, config.json and a model card.

        It is `partialsgd.export.save`, and README.md with a row for each level, unless there is one of your own.
        """
        import partialsgd

        partialsgd.export.save_pretrained(self, directory, metrics=metrics)

    @staticmethod
    def from_pretrained(
        source: str | PathLike[str], model: nn.Module | None = None, *, revision: str | None = None, **options: Any
    ) -> Nested:
        """Return the nested model in a directory, or in a repository of the Hugging Face Hub.

        A model that is not of `transformers` has to be given freshly built, and `spec` or `levels` for a LayerSum, as
        `partialsgd.export.load` takes them. Nothing in the files is run.
        """
        import partialsgd

        return partialsgd.export.from_pretrained(source, model, revision=revision, **options)

    def push_to_hub(self, repository: str, *, metrics: Metrics | None = None, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face Hub, and return the address of the commit.

        The options are `private`, `revision`, `commit_message` and `token`.
        """
        import partialsgd

        return partialsgd.export.push_to_hub(self, repository, metrics=metrics, **options)

    def recalibrate(self, level: str, batches: Iterable[Any]) -> None:
        """Replace the BatchNorm statistics of a level by their average over batches of inputs."""
        with self.at(level):
            recalibrate(self.model, level, map(example_inputs.as_call, batches))

    def profile(self, example: Any, *, repeats: int = 5) -> Profile:
        """Measure the parameters, FLOPs and latency of each level on the example; print the result."""
        from partialsgd.nested.inspect.profile import profile

        return profile(self, example_inputs.as_call(example), repeats)

    def summary(self) -> str:
        """Return which layers are nested, which are not, and why; print it."""
        return summary.summary(self)

    def draw(self) -> str:
        """Return a drawing of the levels in text, like the paper's Figure 1; print it."""
        return summary.draw(self)

    def compile(self, **options: Any) -> None:
        """Compile each level separately, so that any number of levels stays within torch's limit of graphs."""
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            options = {"isolate_recompiles": True, **options}

        def run(*args: Any, **kwargs: Any) -> Any:
            return self.model(*args, **kwargs)

        self._compiled = {level: torch.compile(run, **options) for level in self.levels}

    def nested_modules(self) -> dict[str, NestedModule]:
        """Return the modules that differ between levels, by name."""
        return {name: m for name, m in self.model.named_modules() if isinstance(m, NestedModule)}

    def size(self, level: str) -> int:
        """Count the parameters of the extracted level; the nested model may hold more, which are merged then."""
        return extracted_size(self.model, self._switch.require(level))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load the state of a model that was nested in the same way; that of a plain model is loaded before `nest`."""
        try:
            return super().load_state_dict(state_dict, strict, assign)
        except RuntimeError as error:
            raise RuntimeError(f"{error}\n\t{_LOAD_HINT}") from None

    def extra_repr(self) -> str:
        return f"levels={self.levels}, level={self.level!r}"

    def _replicate_for_data_parallel(self) -> nn.Module:
        raise RuntimeError("nn.DataParallel runs threads that have no level; use DistributedDataParallel instead")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": {}}  # a copy compiles for itself

    def _run_teacher(self, teacher: str, *args: Any, **kwargs: Any) -> None:
        """Run the teacher without a trace in BatchNorm statistics or in the random state."""
        with ExitStack() as after:
            after.callback(Buffers(self.model).restore)
            after.callback(RandomState(self.model).restore)
            with torch.no_grad(), self.at(teacher):
                outputs = self(*args, **kwargs)
        self._switch.state.teacher_outputs = outputs


def unwrap_nested(model: nn.Module) -> Nested:
    """Return the nested model inside DistributedDataParallel or torch.compile."""
    nested = unwrap(model) if isinstance(model, nn.Module) else model
    if not isinstance(nested, Nested):
        raise TypeError(f"a nested model is needed, as ps.nest(model, …) returns it; got a {type(nested).__name__}")
    return nested
