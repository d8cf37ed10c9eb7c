"""The methods as text are the methods, and names that are not there are refused."""

from __future__ import annotations

import inspect
import re
import sys

import pytest

from partialsgd import methods
from partialsgd.lab.training import registry


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_a_method_without_torch_is_the_method_with_it(name: str) -> None:
    function = getattr(methods, name)
    told = {p.name: p for p in inspect.signature(function).parameters.values()}
    defaults = {option: None if p.default is p.empty else repr(p.default) for option, p in told.items()}
    found = registry.options_of(name)
    assert list(found) == list(told)
    for option, default in defaults.items():
        same = (
            found[option] is None
            if default is None
            else repr(eval(str(found[option]), vars(sys.modules[function.__module__]))) == default
        )
        assert same, option
    text = registry.told(name, 80)
    assert text.startswith(f"{name}(") and (inspect.getdoc(function) or "") in text


def test_methods_in_methods_are_checked_too() -> None:
    registry.require_method("compose(alternating, guarded(sam(rho=0.1), fallback=plain))")
    for text, message in (
        ("compose(alternating, sma)", "there is no method 'sma'"),
        ("guarded(method=sam(rhoo=1))", "the method 'sam' has no option 'rhoo'"),
        ("alternating + sam", "cannot be read"),
        ("ps.sam()", "cannot be read"),
        ("sam(**x)", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            registry.require_method(text)
