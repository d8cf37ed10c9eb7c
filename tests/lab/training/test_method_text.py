"""A text is a method of the registry, and never code."""

from __future__ import annotations

import inspect
import re
import sys
import warnings

import pytest
from torch import nn

import partialsgd as ps
from partialsgd import methods
from partialsgd.lab.training.method_text import describe_method, parse_method, signature
from partialsgd.nested import Nested
from tests.families import family

REFUSAL = re.compile("cannot be read|must be a number|there is no method")
OF_A_METHOD = ("compose", "guarded", "scaled_by_alpha")


def one() -> Nested:
    return ps.nest(nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)), levels={})


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_a_bare_name_is_the_method_with_its_defaults(name: str) -> None:
    network = family()
    if name in OF_A_METHOD:
        with pytest.raises(ValueError, match=f"the method '{name}': missing .*; its form is {name}\\("):
            parse_method(name, network)
        return
    if name == "independent_subnets":  # it wants plain layers, and their names
        network, text = one(), "independent_subnets(hidden=('0', '2'))"
        assert parse_method(text, network).name == methods.independent_subnets(network, hidden=("0", "2")).name
        return
    network = one() if name == "meprop" else network
    make = getattr(methods, name)
    takes_network = {"model", "nested"} & inspect.signature(make).parameters.keys()
    assert parse_method(f" {name}\n", network).name == (make(network) if takes_network else make()).name


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("sam(rho=0.1)", lambda nested: methods.sam(0.1)),
        ("sam(0.1, adaptive=True)", lambda nested: methods.sam(0.1, adaptive=True)),
        (
            "alternating(order=['full', 'core', 'core'])",
            lambda n: methods.alternating(n, order=["full", "core", "core"]),
        ),
        ("alternating(lr={'core': 0.5})", lambda nested: methods.alternating(nested, lr={"core": 0.5})),
        ("only('full')", lambda nested: methods.only(nested, "full")),
        ("dropout(keep=0.8, where=('*.weight', '0'))", lambda n: methods.dropout(0.8, where=("*.weight", "0"))),
        ("compose(alternating, sam)", lambda nested: methods.compose(methods.alternating(nested), methods.sam())),
        (
            "guarded(scaled_by_alpha(alternating, every=3), bound=3.0, fallback=only('full'))",
            lambda n: methods.guarded(
                methods.scaled_by_alpha(methods.alternating(n), every=3), bound=3.0, fallback=methods.only(n, "full")
            ),
        ),
        ("dropout(-0.5 + 1)", None),
    ],
)
def test_options_are_literals_or_methods(text: str, make) -> None:
    nested = family()
    if make is None:
        with pytest.raises(ValueError, match="must be a number, a text, a list or a method"):
            parse_method(text, nested)
    else:
        assert parse_method(text, nested).name == make(nested).name


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch {}')",
        "sam(rho=__import__('os').system('touch {}'))",
        "sam(rho=open('{}', 'w'))",
        "sam.__globals__",
        "sam.__call__()",
        "().__class__.__bases__[0].__subclasses__()",
        "[open('{}', 'w') for _ in (1,)]",
        "(lambda: open('{}', 'w'))()",
        "sam(rho=(lambda: 1)())",
        'sam(rho=f\'{{open("{}", "w")}}\')',
        "sam(*[1])",
        "sam(**{{'rho': 1}})",
        "sam()()",
        "sam(rho=2**3)",
        "sam(rho=sam.__name__)",
        "x := 1",
        "import os",
        "sam; sam",
        "SUMMARIES",
        "sys",
        "_Registry",
        "__getattr__('sam')",
        "",
        " ",
        "sam(",
        "'sam'",
        "3",
        "\0",
    ],
)
def test_code_is_refused_and_not_run(text: str, tmp_path) -> None:
    trace = tmp_path / "trace"
    with warnings.catch_warnings(), pytest.raises(ValueError, match=REFUSAL):
        warnings.simplefilter("ignore")
        parse_method(text.format(trace), family())
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
        ("alternating(nested=3)", r"multiple values for argument 'nested'; its form is alternating\(order=None"),
        ("compose(sam, 3)", r"second must be a Method, got 3"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_method(text, family())


@pytest.mark.parametrize("name", methods.SUMMARIES)
def test_the_signature_that_is_shown_without_torch_is_the_real_one(name: str) -> None:
    function = getattr(methods, name)
    real = [p for p in inspect.signature(function).parameters.values() if p.name not in ("nested", "model")]
    shown = eval(f"lambda {signature(name).partition('(')[2][:-1]}: None", vars(sys.modules[function.__module__]))
    parameters = list(inspect.signature(shown).parameters.values())
    assert [(p.name, repr(p.default)) for p in parameters] == [(p.name, repr(p.default)) for p in real]
    text = describe_method(name, 80)
    assert text.startswith(f"{name}(") and (inspect.getdoc(function) or "") in text
