import pytest

from infergate.backends.builtin import BuiltinBackend


@pytest.fixture
def backend() -> BuiltinBackend:
    return BuiltinBackend("demo")
