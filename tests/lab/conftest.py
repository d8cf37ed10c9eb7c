"""The toy as a recipe, for the tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import toy as toys


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers of tests are not kept where the user's are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def toy() -> Iterator[None]:
    """accelerate keeps one state for a process, which other tests must not find."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    toys.register()
    yield
    toys.unregister()
    AcceleratorState._reset_state(reset_partial_state=True)
