"""The pytest plugin of infergate (docs/testing-clients.md). pytest loads it at every start, so this
module imports nothing from infergate before a fixture is used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from infergate.backends.builtin.model import Model
    from infergate.testing.background_gateway import BackgroundGateway

_MARKER: Final = "infergate"


class GatewayFactory(Protocol):
    """Starts gateways that run until the end of the test."""

    def __call__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        models: Sequence[Model] = (),
        recordings: Sequence[str | os.PathLike[str]] = (),
    ) -> BackgroundGateway:
        """Start a ``BackgroundGateway`` with these arguments. Relative paths are relative to the
        folder of the test's file."""
        ...


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Exempt infergate from assertion rewriting. pytest rewrites all modules of a distribution that
    has a plugin, which would double the time that the first import of infergate takes. pytest has
    no public option for this; without the private attribute, only the import is slower."""
    rewritten = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(rewritten, set):
        rewritten.discard(__name__.partition(".")[0])


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(config=None, *, models=(), recordings=()): the arguments of the gateway that "
        "the fixture infergate_gateway starts",
    )


@pytest.fixture
def infergate_gateway_factory(request: pytest.FixtureRequest) -> Iterator[GatewayFactory]:
    """A function that starts gateways, which run until the end of the test."""
    from infergate.testing.background_gateway import BackgroundGateway  # noqa: PLC0415

    with ExitStack() as stack:

        def start(*arguments: Any, **options: Any) -> BackgroundGateway:
            gateway = BackgroundGateway(*arguments, **options, folder=request.path.parent)
            return stack.enter_context(gateway)

        yield start


@pytest.fixture
def infergate_gateway(
    request: pytest.FixtureRequest, infergate_gateway_factory: GatewayFactory
) -> BackgroundGateway:
    """Until the end of the test, run the gateway that the marker ``infergate`` configures. Without
    the marker, the gateway serves the models embedded in infergate."""
    marker = request.node.get_closest_marker(_MARKER)
    if marker is None:
        return infergate_gateway_factory()
    return infergate_gateway_factory(*marker.args, **marker.kwargs)
