"""The clients' names of renamed models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.routing.table import Rewrite, Route


@pytest.mark.parametrize(
    ("pattern", "template", "backend_name", "client_name"),
    [
        (r"/x\.(.+)/", r"\1", "simple", "x.simple"),
        (r"/^x-(.*)-y$/", r"a\g<1>b", "asimpleb", "x-simple-y"),
        (r"/(bert|gpt)\-v2/", r"\1", "bert", "bert-v2"),
        (r"/x-(.+)/", r"ab\1ba", "aba", None),
        (r"/x-(.+)/", r"a\1", "b", None),
        ("exact", "real", "real", "exact"),
        ("exact", "real", "exact", None),
        ("exact", "", "exact", "exact"),
        ("glob-*", "", "glob-1", "glob-1"),
        # Without an inverse, there is no client name.
        (r"/x-(.+)/", r"\1\1", "aa", None),
        (r"/x-(.+)/", r"\g<0>", "x-a", None),
        (r"/x-(.+)-(.+)/", r"\1", "a", None),
        (r"/x-?(.+)/", r"\1", "a", None),
        (r"/[xy](.+)/", r"\1", "a", None),
        (r"/x|y(.+)/", r"\1", "a", None),
        (r"/x(.)+/", r"\1", "a", None),
        (r"/\dx(.+)/", r"\1", "a", None),
        (r"/x(?:a)(.+)/", r"\1", "a", None),
        (r"/x(?P<n>.+)/", r"\g<n>", "a", None),
        (r"/x-.+/", "real", "real", None),
        ("glob-*", "real", "real", None),
    ],
)
def test_client_names_of_backend_models(
    pattern: str, template: str, backend_name: str, client_name: str | None
) -> None:
    route = Route(pattern, "b", rewrite=Rewrite(template))
    assert route.client_model_lookup()(backend_name) == client_name
    if client_name is not None:
        assert route.backend_model(client_name) == backend_name


TEXT = st.text(st.characters(blacklist_characters="\\", blacklist_categories=("Cs",)), max_size=4)


@given(TEXT, TEXT, TEXT, TEXT, st.text("ab.-", min_size=1, max_size=4))
def test_a_client_name_maps_back_to_the_backend_name(
    before: str, after: str, prefix: str, suffix: str, group: str
) -> None:
    pattern = rf"/{before}([ab.-]+){after}/"
    route = Route(pattern, "b", rewrite=Rewrite(rf"{prefix}\1{suffix}"))
    client_name = route.client_model_lookup()(prefix + group + suffix)
    if client_name is not None:
        assert route.backend_model(client_name) == prefix + group + suffix
