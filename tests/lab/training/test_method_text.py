"""A text is a method of the registry, and never code."""

from __future__ import annotations

import inspect
import re
import sys
import warnings

import pytest

from partialsgd import methods
from partialsgd.lab.training.method_text import describe_method, parse_method, signature
from tests.training import family

REFUSAL = re.compile("cannot be read|must be a number|there is no method")
OF_A_METHOD = ("compose", "guarded", "scaled_by_alpha")


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_a_bare_name_is_the_method_with_its_defaults(name: str) -> None:
    if name in OF_A_METHOD:
        with pytest.raises(ValueError, match=f"the method '{name}': missing .*; its form is {name}\\("):
            parse_method(name)
        return
    assert parse_method(f" {name}\n").name == getattr(methods, name)().name


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("sam(rho=0.1)", lambda: methods.sam(0.1)),
        ("sam(0.1, adaptive=True)", lambda: methods.sam(0.1, adaptive=True)),
        (
            "alternating(order=['full', 'core', 'core'])",
            lambda: methods.alternating(order=["full", "core", "core"]),
        ),
        ("alternating(lr={'core': 0.5})", lambda: methods.alternating(lr={"core": 0.5})),
        ("only('full')", lambda: methods.only("full")),
        ("dropout(keep=0.8, where=('*.weight', '0'))", lambda: methods.dropout(0.8, where=("*.weight", "0"))),
        ("compose(alternating, sam)", lambda: methods.compose(methods.alternating(), methods.sam())),
        (
            "guarded(scaled_by_alpha(alternating, every=3), bound=3.0, fallback=only('full'))",
            lambda: methods.guarded(
                methods.scaled_by_alpha(methods.alternating(), every=3), bound=3.0, fallback=methods.only("full")
            ),
        ),
        ("dropout(-0.5 + 1)", None),
    ],
)
def test_options_are_literals_or_methods(text: str, make) -> None:
    if make is None:
        with pytest.raises(ValueError, match="must be a number, a text, a list or a method"):
            parse_method(text)
    else:
        nested = family()
        assert parse_method(text).bind(nested).name == make().bind(nested).name


CODE = r"""
__import__('os').system('touch {}')
sam(rho=__import__('os').system('touch {}'))
sam(rho=open('{}', 'w'))
sam.__globals__
sam.__call__()
().__class__.__bases__[0].__subclasses__()
[open('{}', 'w') for _ in (1,)]
(lambda: open('{}', 'w'))()
sam(rho=(lambda: 1)())
sam(rho=f'{{open("{}", "w")}}')
sam(*[1])
sam(**{{'rho': 1}})
sam()()
sam(rho=2**3)
sam(rho=sam.__name__)
"""
CODE_LINES = [*CODE.strip().split("\n"), "x := 1", "import os", "sam; sam", "SUMMARIES", "sys", "_Methods"]
CODE_LINES += [
    "__getattr__('sam')",
    "",
    " ",
    "sam(",
    "'sam'",
    "3",
    "\0",
    "(" * 9_000,
    "-" * 9_000 + "1",
    "a." * 9_000 + "b",
]


@pytest.mark.parametrize("text", CODE_LINES, ids=lambda text: text[:40])
def test_code_is_refused_and_not_run(text: str, tmp_path) -> None:
    trace = tmp_path / "trace"
    with warnings.catch_warnings(), pytest.raises(ValueError, match=REFUSAL):
        warnings.simplefilter("ignore")
        parse_method(text.format(trace))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("smooth", r"there is no method 'smooth'; `partialsgd methods` lists them"),
        ("alternate", r"there is no method 'alternate'; did you mean alternating\?"),
        (
            "sam(roh=1)",
            r"the method 'sam\(roh=1\)': got an unexpected .* 'roh'; its form is sam\(rho=0.05, ",
        ),
        ("sam(1, 2)", r"takes from 0 to 1 positional arguments but 2 were given; its form is sam\(rho=0.05, "),
        ("sam(rho=-1)", r"rho must not be negative, got -1"),
        ("sam(rho='high')", r"the method .*'str'.*; its form is sam\(rho=0.05, "),
        ("compose(alternating, sam(rho=x))", r"there is no method 'x'"),
        ("only('core2')", r"there is no level 'core2'; there are 'core', 'full'"),
        ("alternating(nested=3)", r"unexpected keyword argument 'nested'; its form is alternating\(order=None"),
        ("compose(sam, 3)", r"second must be a Method, got 3"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text).bind(family())


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_the_signature_that_is_shown_without_torch_is_the_real_one(name: str) -> None:
    function = getattr(methods, name)
    real = list(inspect.signature(function).parameters.values())
    shown = eval(f"lambda {signature(name).partition('(')[2][:-1]}: None", vars(sys.modules[function.__module__]))
    parameters = list(inspect.signature(shown).parameters.values())
    assert [(p.name, repr(p.default)) for p in parameters] == [(p.name, repr(p.default)) for p in real]
    text = describe_method(name, 80)
    assert text.startswith(f"{name}(") and (inspect.getdoc(function) or "") in text
