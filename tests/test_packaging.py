"""The wheel and the source archive, and the wheel in an environment that has nothing but what it asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import partialsgd
from partialsgd._util import extras

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "partialsgd"
OUTSIDE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

# What the first page of the documentation does, in a process that has only the wheel and its dependencies.
USE = """
import importlib.util, sys, tempfile
import partialsgd as ps
assert "torch" not in sys.modules
assert ps.__file__.startswith(sys.prefix), ps.__file__
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

nested = ps.nest(build(), ps.Width((1 / 4, 1 / 2)))
before = [parameter.detach().clone() for parameter in nested.parameters()]
sgd = ps.PartialSGD(nested, torch.optim.AdamW(nested.parameters(), lr=3e-3), ps.methods.alternating())
for x in torch.randn(3, 32, 20):
    def closure():
        loss = torch.nn.functional.cross_entropy(nested(x), (x.sum(dim=1) > 0).long())
        loss.backward()
        return loss

    sgd.step(closure)
assert not any(torch.equal(old, new) for old, new in zip(before, nested.parameters()))
small = nested.extract("1/4")
assert small[0].out_features == 16
with tempfile.TemporaryDirectory() as folder:
    ps.export.save(nested, folder)
    again = ps.export.load(folder, build())
with again.at("1/4"):
    assert torch.allclose(again(x), small(x), atol=1e-6)
assert all(torch.equal(old, new) for old, new in zip(nested.parameters(), again.parameters()))

for name in ("transformers", "accelerate", "lightning", "rich", "tyro", "matplotlib", "onnx", "pytest"):
    assert importlib.util.find_spec(name) is None, name
from partialsgd import integrations
for name, extra in (("PartialTrainer", "trainer"), ("PartialSGDCallback", "lightning")):
    try:
        getattr(integrations, name)
    except ImportError as error:
        assert f"[{extra}]" in str(error), error
    else:
        raise AssertionError(name)
"""


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run(command, env=OUTSIDE, text=True, stdout=-1, stderr=subprocess.STDOUT, timeout=900, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive; the wheel is built from the archive, as `make wheel` does."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as files:
        name = next(name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(files.read(name).decode())


def test_the_index_would_take_the_archives(archives: tuple[Path, Path]) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *archives)
    metadata = metadata_of(archives[0])
    assert metadata["Version"] == partialsgd.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.10"
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in metadata.get_all("Classifier", [])
    extras = {"lab", "trainer", "lightning", "elastic", "export", "docs", "dev"}
    assert extras <= set(metadata.get_all("Provides-Extra", []))


def test_the_archives_hold_every_file_of_the_package_and_the_wheel_nothing_else(archives: tuple[Path, Path]) -> None:
    wheel, sdist = archives
    sources = {f"partialsgd/{f.relative_to(SOURCE)}" for f in SOURCE.rglob("*") if f.is_file() and f.suffix != ".pyc"}
    assert {"partialsgd/py.typed", "partialsgd/lab/page/templates/page.html.j2"} <= sources
    with zipfile.ZipFile(wheel) as files:
        assert {name for name in files.namelist() if ".dist-info/" not in name} == sources
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {f"src/{name}" for name in sources} <= names
    tests = {str(f.relative_to(ROOT)) for f in (ROOT / "tests").rglob("*.py")}
    assert tests | {"LICENSE", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "constraints.txt"} <= names


def test_the_wheel_alone_nests_trains_extracts_saves_and_loads(archives: tuple[Path, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path)
    python = tmp_path / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path)}))
    for path in installed_by(metadata_of(archives[0]).get_all("Requires-Dist", [])):
        (packages / path.name).symlink_to(path)
    pip = (sys.executable, "-m", "pip", "--isolated", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", archives[0])
    run(*pip, "check")
    run(python, "-I", "-c", USE, cwd=tmp_path)
    command = tmp_path / "bin" / "partialsgd"
    assert partialsgd.__version__ in run(command, "--version", cwd=tmp_path)
    refused = subprocess.run([command, "train"], env=OUTSIDE, cwd=tmp_path, text=True, capture_output=True, timeout=900)
    assert refused.returncode != 0 and "[lab]" in refused.stderr, refused


def installed_by(requirements: list[str]) -> set[Path]:
    """Return what pip would put into site-packages for these requirements, without extras, from those of this one."""
    waiting = [Requirement(text) for text in requirements]
    seen: set[str] = set()
    paths: set[Path] = set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        package = distribution(requirement.name)
        waiting += [Requirement(text) for text in package.requires or []]
        tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
        paths |= {Path(str(package.locate_file(top))) for top in tops}
    return paths


@pytest.mark.parametrize("extra", ["lab", "export"])
def test_the_command_names_files_and_an_extra_of_the_clone(extra: str) -> None:
    error = extras.missing("to do this, that is needed", extra)
    assert isinstance(error, ImportError)
    need, command = str(error).split(": ")
    found = re.fullmatch(r'pip install -c (\S+) "\.\[(\w+)\]" in a clone of partialsgd', command)
    assert need == "to do this, that is needed" and found is not None
    assert (ROOT / found[1]).is_file() and f"\n{found[2]} = [" in (ROOT / "pyproject.toml").read_text()


def test_no_other_module_says_how_to_install_this_package() -> None:
    sources = {file: file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py")}
    telling = [file.name for file, text in sources.items() if re.search(r"pip install (-c|\.|\"|partialsgd)", text)]
    assert telling == ["extras.py"]
