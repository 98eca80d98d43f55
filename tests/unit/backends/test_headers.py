from __future__ import annotations

import pytest

from infergate.backends.headers import HeaderRule


def test_only_matching_names_pass() -> None:
    rule = HeaderRule(["traceparent", "X-Team-*"])
    assert rule.select({"traceparent": "00-a", "x-team-id": "7", "authorization": "secret"}) == {
        "traceparent": "00-a",
        "x-team-id": "7",
    }


@pytest.mark.parametrize(
    "name",
    ["host", "connection", "content-length", "content-encoding", "te", "grpc-timeout", "expect"],
)
def test_headers_of_one_connection_never_pass(name: str) -> None:
    assert HeaderRule(["*"]).select({name: "x", "x-other": "y"}) == {"x-other": "y"}


def test_no_globs_let_nothing_pass() -> None:
    assert HeaderRule([]).select({"traceparent": "00-a"}) == {}


def test_names_from_clients_do_not_fill_the_memory() -> None:
    rule = HeaderRule(["x-*"])
    for number in range(5000):
        assert rule.select({f"x-{number}": "1"})
    assert len(rule._known) <= 1024


def test_a_glob_that_happens_to_match_a_secret_does_not_hand_it_on() -> None:
    headers = {"authorization": "s", "x-api-key": "s", "cookie": "s", "x-team": "7"}
    assert HeaderRule(["*"]).select(headers) == {"x-team": "7"}
    assert HeaderRule(["x-*", "auth*", "cooki?"]).select(headers) == {"x-team": "7"}
    assert HeaderRule(["*", "Authorization"]).select(headers) == {
        "authorization": "s",
        "x-team": "7",
    }
