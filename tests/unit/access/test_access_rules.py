"""The permissions that rules grant, and the weights and priorities that shares grant."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.access.rules import (
    ANONYMOUS,
    HEALTH,
    RULE_OPERATIONS,
    STATE_CHANGING,
    AccessRule,
    AccessRules,
    ClientShare,
    claim_values,
    matcher,
)
from infergate.core.messages import (
    OPERATION_NAMES,
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelIndexRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    SharedMemoryRegisterRequest,
    TraceSettingsRequest,
)


def allowed(rules: list[AccessRule], identity: str, operation: type, model: str = "m") -> bool:
    return AccessRules(rules).permit_for(identity).allows(operation, model)


def test_every_operation_has_a_name_in_rules() -> None:
    assert RULE_OPERATIONS.keys() == OPERATION_NAMES.keys()


def test_operations_without_a_rule_are_rejected() -> None:
    rules = [AccessRule(("key:a",), ("bert-*",), frozenset({"infer"}))]
    assert allowed(rules, "key:a", InferRequest, "bert-1")
    assert not allowed(rules, "key:a", InferRequest, "gpt")
    assert not allowed(rules, "key:a", ModelMetadataRequest, "bert-1")
    assert not allowed(rules, "key:b", InferRequest, "bert-1")
    assert not allowed([], "key:a", InferRequest)


@pytest.mark.parametrize(
    ("patterns", "matching", "other"),
    [
        (("key:a",), "key:a", "key:ab"),
        (("key:*",), "key:a", "jwt:x:a"),
        (("/key:(a|b)/",), "key:b", "key:abc"),
        (("x", "/(.)\\1/", "y?"), "zz", "zy"),
        (("cert:spiffe://example/*",), "cert:spiffe://example/ns/a", "cert:spiffe://examples/a"),
        (("[ab]",), "a", "A"),
    ],
)
def test_identities_match_names_globs_and_regular_expressions(
    patterns: tuple[str, ...], matching: str, other: str
) -> None:
    assert matcher(patterns)(matching)
    assert not matcher(patterns)(other)


def test_no_wildcard_matches_a_slash_except_the_pattern_of_all_models() -> None:
    for model, matching, other in (
        ("pub-x/../secret", (), ("pub-*", "pub-x?..?secret", "pub-x[/]..[!a]secret")),
        ("team-a/bert", ("*", "team-?/*", "/team-.*/"), ("team-*", "team-a/bert/*")),
    ):
        for models in (*matching, *other):
            rules = [AccessRule(("key:a",), (models,))]
            assert allowed(rules, "key:a", InferRequest, model) is (models in matching)


def test_wildcards_match_authenticated_clients_only() -> None:
    for pattern in ("*", "/.*/", "a*", "anonymou?", "[a]nonymous"):
        assert not allowed([AccessRule((pattern,))], ANONYMOUS, InferRequest)
        assert AccessRules([AccessRule((pattern,))]).anonymous_permit() is None
    guests = AccessRules([AccessRule(("anonymous",), ("demo",))]).anonymous_permit()
    assert guests is not None
    assert guests.allows(InferRequest, "demo")
    assert not guests.allows(InferRequest, "m")
    assert allowed([AccessRule(("*",))], "key:a", InferRequest)


def test_a_key_named_anonymous_is_not_anonymous() -> None:
    assert not allowed([AccessRule(("anonymous",))], "key:anonymous", InferRequest)


def test_server_wide_changes_need_a_rule_for_all_models() -> None:
    narrow, wide = ([AccessRule(("*",), (models,), STATE_CHANGING)] for models in ("bert-*", "*"))
    for operation in (LogSettingsRequest, TraceSettingsRequest, ModelLoadRequest):
        assert not allowed(narrow, "key:a", operation, "")
        assert allowed(wide, "key:a", operation, "")
    assert allowed(narrow, "key:a", TraceSettingsRequest, "bert-1")
    assert allowed(narrow, "key:a", SharedMemoryRegisterRequest, "")


def test_the_model_index_needs_permission_for_any_model() -> None:
    assert allowed([AccessRule(("*",), ("bert-*",))], "key:a", ModelIndexRequest, "")
    assert not allowed([AccessRule(("*",), ("bert-*",))], "key:a", ServerLiveRequest, "")


def test_an_empty_model_name_needs_a_rule_for_all_models() -> None:
    """A legacy request may omit the name, and a route for any model accepts the request."""
    narrow, wide = ([AccessRule(("*",), (models,))] for models in ("bert-*", "*"))
    for operation in (InferRequest, ModelMetadataRequest, ModelConfigRequest, ModelReadyRequest):
        assert not allowed(narrow, "key:a", operation, "")
        assert allowed(wide, "key:a", operation, "")


@pytest.mark.parametrize(
    ("claims", "required", "is_allowed"),
    [
        ({"groups": ["ml-eu", "x"]}, {"groups": ("ml-*",)}, True),
        ({"groups": ["x"]}, {"groups": ("ml-*",)}, False),
        ({}, {"groups": ("*",)}, False),
        ({"groups": []}, {"groups": ("*",)}, False),
        ({"groups": "ml-eu"}, {"groups": ("ml-*",)}, True),
        ({"groups": "x ml-eu"}, {"groups": ("ml-eu",)}, False),
        ({"scope": "read infer"}, {"scope": ("infer",)}, True),
        ({"scope": "read inferior"}, {"scope": ("infer",)}, False),
        ({"realm": {"roles": ["a"]}}, {"realm.roles": ("a",)}, True),
        ({"realm.roles": ["b"], "realm": {"roles": ["a"]}}, {"realm.roles": ("a",)}, False),
        ({"groups": {"a": 1}}, {"groups": ("*",)}, False),
        ({"groups": [1, None, True]}, {"groups": ("*",)}, False),
        ({"admin": True}, {"admin": ("*",)}, False),
        ({"a": "1", "b": "2"}, {"a": ("1",), "b": ("2",)}, True),
        ({"a": "1", "b": "3"}, {"a": ("1",), "b": ("2",)}, False),
    ],
)
def test_a_rule_requires_all_its_claims(
    claims: dict[str, Any], required: dict[str, tuple[str, ...]], is_allowed: bool
) -> None:
    rules = AccessRules([AccessRule(("*",), claims=required)])
    assert rules.permit_for("jwt:x:a", claims).allows(InferRequest, "m") is is_allowed
    assert not rules.permit_for("key:a").allows(InferRequest, "m")  # a key has no claims


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text("ab ", max_size=3),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_claims_of_any_type_are_read_as_texts(value: Any) -> None:
    for each in claim_values({"c": value}, "c"):
        assert isinstance(each, str)


_NAMES = st.sampled_from(["a", "b", "ab", "*", "a*", "?"])
_RULES = st.builds(
    AccessRule,
    st.tuples(_NAMES),
    st.tuples(_NAMES),
    st.frozensets(st.sampled_from(sorted(set(RULE_OPERATIONS.values())))),
)


@given(
    st.lists(_RULES, max_size=5),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(list(RULE_OPERATIONS)),
    st.sampled_from(["", "a", "b", "c"]),
    st.randoms(use_true_random=False),
)
def test_rule_order_is_irrelevant_and_rules_only_add_permissions(
    rules: list[AccessRule], identity: str, operation: type, model: str, order: random.Random
) -> None:
    is_allowed = allowed(rules, identity, operation, model)
    shuffled = list(rules)
    order.shuffle(shuffled)
    assert allowed(shuffled, identity, operation, model) is is_allowed
    assert is_allowed is any(allowed([each], identity, operation, model) for each in rules)
    permit = AccessRules(rules).permit_for(identity)
    assert permit.allows(operation, model) is permit.allows(operation, model) is is_allowed


def test_the_cache_of_models_is_bounded() -> None:
    rules = AccessRules([AccessRule(("*",), ("m*",))])
    for client in range(10):
        permit = rules.permit_for(f"key:{client}")
        for number in range(1000):
            assert permit.allows(InferRequest, f"m{client}-{number}")
            assert not permit.allows(InferRequest, f"x{client}-{number}")
        assert permit.allows(InferRequest, "m" * 1000)
    assert 0 < len(rules._decisions) <= 8192, "all clients share the cache"
    assert max(len(model) for _, _, model in rules._decisions) <= 256


def test_cached_decisions_do_not_grow_with_the_number_of_rules() -> None:
    rules = AccessRules([AccessRule(("*",), (f"m{number}",)) for number in range(1000)])
    tracemalloc.start()
    try:
        for client in range(1000):
            assert not rules.permit_for(f"key:{client}").allows(InferRequest, f"x{client}")
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(rules._decisions) == 1000
    assert allocated < 1000 * 2000, "a decision takes less than 2 kB"


def test_clients_with_different_rules_do_not_share_cached_decisions() -> None:
    rules = AccessRules([AccessRule(("key:a",), ("m",)), AccessRule(("key:b",), ("n",))])
    for _ in range(2):
        for identity, model in (("key:a", "m"), ("key:b", "n")):
            assert rules.permit_for(identity).allows(InferRequest, model)
        for identity, model in (("key:a", "n"), ("key:b", "m"), ("key:c", "m")):
            assert not rules.permit_for(identity).allows(InferRequest, model)


def test_health_and_state_changing_operations_are_fixed() -> None:
    health = {each for each, name in RULE_OPERATIONS.items() if name == HEALTH}
    assert health == {ServerLiveRequest, ServerReadyRequest}
    assert sorted(STATE_CHANGING) == ["repository", "settings", "shared_memory"]


def test_the_first_share_that_matches_a_client_applies() -> None:
    shares = [
        ClientShare(("key:a",), 2.0, 3),
        ClientShare(("key:*",), 0.5),
        ClientShare(("*",), 1.5, 7),
    ]
    rules = AccessRules([AccessRule(("*", "anonymous"))], shares)
    anonymous = rules.anonymous_permit()
    assert anonymous is not None
    permits = [*map(rules.permit_for, ("key:a", "key:b", "jwt:idp:x")), anonymous]
    weights = [(permit.weight, permit.highest_priority) for permit in permits]
    assert weights == [(2.0, 3), (0.5, 1), (1.5, 7), (1.5, 7)]
    permit = AccessRules([]).permit_for("key:a")
    assert (permit.weight, permit.highest_priority) == (1.0, 1)
