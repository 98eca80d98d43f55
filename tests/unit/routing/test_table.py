"""Routes by model name and version, their order, and their rewrites."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infergate.routing import table
from infergate.routing.table import Rewrite, Route, RouteTable

NO_DEADLINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_a_name_matches_itself_only() -> None:
    routes = RouteTable([Route("resnet", "a")])
    assert routes.find("resnet", "") is routes.routes[0]
    for name in ("resnet50", "Resnet", ""):
        assert routes.find(name, "") is None


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("bert-*", ["bert-", "bert-base"], ["bert", "abert-", "BERT-x", "bert-a/b"]),
        ("team-?/b*", ["team-a/b", "team-a/bert"], ["team-a", "team-a/b/c", "team-a/c", "team-/b"]),
        ("t[!a]b", ["txb"], ["t/b", "tab"]),
        ("gpt-?", ["gpt-2", "gpt-é"], ["gpt-", "gpt-22"]),
        ("m[ab]", ["ma", "mb"], ["mc", "m[ab]"]),
        ("m[!ab]", ["mc"], ["ma"]),
        ("*", ["", "anything", "team-a/bert"], []),
        ("a.b*", ["a.b", "a.bc"], ["axb"]),
        ("/bert-(base|large)/", ["bert-base"], ["bert-base2", "xbert-base", "bert-small"]),
        ("/v\\d+/", ["v1", "v22"], ["v", "v1a"]),
        ("/a|ab/", ["a", "ab"], ["abc"]),
        ("/", ["/"], ["", "a"]),
    ],
)
def test_patterns_match_complete_names(pattern: str, hits: list[str], misses: list[str]) -> None:
    routes = RouteTable([Route(pattern, "a")])
    assert [name for name in hits + misses if routes.find(name, "")] == hits


def test_a_bad_regular_expression_is_reported() -> None:
    with pytest.raises(re.error):
        RouteTable([Route("/(/", "a")])


def test_the_first_match_wins() -> None:
    routes = RouteTable([Route("bert-base", "name"), Route("bert-*", "glob"), Route("*", "all")])
    assert [routes.find(name, "") for name in ("bert-base", "bert-large", "x")] == [*routes.routes]


def test_an_earlier_pattern_takes_precedence_over_a_name() -> None:
    routes = RouteTable([Route("bert-*", "glob"), Route("bert-base", "name")])
    assert [r.backend for r in routes.candidates("bert-base")] == ["glob", "name"]
    assert routes.find("bert-base", "") is routes.routes[0]


@pytest.mark.parametrize(("version", "index"), [("1", 0), ("2", 1), ("3", 2), ("", 2)])
def test_a_route_may_be_for_one_version(version: str, index: int) -> None:
    routes = RouteTable([Route("m", "one", "1"), Route("m", "two", "2"), Route("*", "any")])
    assert routes.find("m", version) is routes.routes[index]


def test_no_route_for_another_version() -> None:
    routes = RouteTable([Route("m", "one", "1")])
    assert routes.find("m", "2") is None
    assert routes.find("m", "") is None


def test_unknown_names_do_not_grow_memory() -> None:
    routes = RouteTable([Route("m", "a"), Route("/k.*/", "b")])
    for index in range(10_000):
        assert routes.find(f"unknown-{index}", "") is None
    assert not routes._candidates_cache


def test_cached_pattern_matches_are_bounded() -> None:
    routes = RouteTable([Route("*", "a")])
    for index in range(3 * table._MAX_CACHED_NAMES):
        assert routes.find(f"m{index}", "") is routes.routes[0]
        assert len(routes._candidates_cache) <= table._MAX_CACHED_NAMES
    assert routes.candidates("m0") is routes.candidates("m0")


def test_labels_have_the_model_and_the_version() -> None:
    assert Route("m", "a").label == "m"
    assert Route("m", "a", "2").label == "m@2"


@pytest.mark.parametrize(
    ("pattern", "rewrite", "model", "expected"),
    [
        ("m", "", "m", "m"),
        ("m", "n", "m", "n"),
        ("b-*", "n", "b-x", "n"),
        ("m", r"n\1", "m", r"n\1"),
        ("/b-(.*)/", r"c_\1", "b-x", "c_x"),
        ("/b-(?P<size>.*)/", r"c_\g<size>", "b-x", "c_x"),
        ("/b(-x)?/", r"c\1", "b", "c"),
        ("/b-(.*)/", r"c_\1", "other", r"c_\1"),
    ],
)
def test_a_rewrite_determines_the_backends_model(
    pattern: str, rewrite: str, model: str, expected: str
) -> None:
    assert Route(pattern, "a", rewrite=Rewrite(rewrite)).backend_model(model) == expected


def test_versions_are_rewritten_in_both_directions() -> None:
    plain = Route("m", "a")
    assert plain.backend_version("3") == "3"
    assert plain.client_version("3", "7") == "7"
    rewriting = Route("m", "a", version="2", rewrite=Rewrite(version="1"))
    assert rewriting.backend_version("2") == "1"
    assert rewriting.client_version("2", "1") == "2"
    assert rewriting.client_version("", "1") == "2"
    assert Route("m", "a", rewrite=Rewrite(version="1")).client_version("", "1") == "1"


def test_a_rewrite_renames_tensors_only_with_tensor_names() -> None:
    assert not Rewrite("n", "1").renames_tensors
    assert Rewrite(inputs={"a": "b"}).renames_tensors
    assert Rewrite(outputs={"a": "b"}).renames_tensors


NAMES = st.text("ab-", min_size=1, max_size=4)
GLOBS = st.text("ab-*?", min_size=1, max_size=4)
REGEXES = st.sampled_from(["/a.*/", "/[ab]+/", "/(a|b)-?/", "/.*/", "/b{2}/"])
ROUTES = st.lists(
    st.builds(
        Route,
        NAMES | GLOBS | REGEXES,
        st.sampled_from(string.ascii_lowercase),
        st.sampled_from(["", "1", "2"]),
    ),
    max_size=12,
)


def scan(routes: list[Route], model: str, version: str) -> Route | None:
    """Return the first route, in order, that matches."""
    for route in routes:
        matches = (
            route.pattern == model
            if route.is_exact
            else table.compile_pattern(route.pattern).fullmatch(model)
        )
        if matches and route.version in ("", version):
            return route
    return None


@NO_DEADLINE
@given(ROUTES, st.lists(st.tuples(NAMES, st.sampled_from(["", "1", "2", "3"])), max_size=12))
def test_the_first_matching_route_is_found(
    routes: list[Route], requests: list[tuple[str, str]]
) -> None:
    routing = RouteTable(routes)
    for model, version in requests + requests:  # the second time from the cache
        assert routing.find(model, version) is scan(routes, model, version)
