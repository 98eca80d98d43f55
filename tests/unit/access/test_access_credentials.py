"""Credentials in request headers: one well-formed credential, or none."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infergate.access.credentials import MAX_CREDENTIAL_CHARS, read_credential
from infergate.access.rejection import AccessRejected, RejectionReason
from infergate.core.errors import UnauthenticatedError

TOKEN = st.builds(
    lambda body, end: body + end,
    st.text(string.ascii_letters + string.digits + "-._~+/", min_size=1, max_size=200),
    st.text("=", max_size=2),
)
BLANKS = st.integers(1, 3).map(lambda n: " " * n)


def test_no_credential_without_a_header() -> None:
    assert read_credential({}) is None
    assert read_credential({"x-request-id": "1", "cookie": "a=b"}) is None


@given(TOKEN, st.sampled_from(["Bearer", "bearer", "BEARER", "bEaReR"]), BLANKS)
def test_the_bearer_scheme_is_case_insensitive(token: str, scheme: str, blanks: str) -> None:
    credential = read_credential({"authorization": f"{scheme}{blanks}{token}"})
    assert credential is not None
    assert credential.secret == token
    assert credential.may_be_token


@given(TOKEN)
def test_the_key_header_accepts_only_keys(key: str) -> None:
    credential = read_credential({"x-api-key": key})
    assert credential is not None
    assert credential.secret == key
    assert not credential.may_be_token


@given(st.text(max_size=100), st.sampled_from(["authorization", "x-api-key"]))
def test_arbitrary_text_is_parsed_or_rejected_and_never_repeated(text: str, header: str) -> None:
    credential, rejection = None, None
    try:
        credential = read_credential({header: text})
    except AccessRejected as error:
        rejection = error
    if rejection is None:
        assert credential is not None
        assert text.endswith(credential.secret)
        assert repr(credential) == f"Credential(may_be_token={credential.may_be_token})"
    else:
        assert rejection.reason is RejectionReason.MALFORMED
        assert isinstance(rejection.error, UnauthenticatedError)
        if len(text) > 20:
            assert text not in rejection.error.public + rejection.error.detail + repr(rejection)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic dTpw"},
        {"authorization": "Bearer a b"},
        {"authorization": "Bearer one, Bearer two"},  # two headers, joined
        {"authorization": "Bearer =="},
        {"authorization": "Bearer a=b"},
        {"authorization": "Bearer a\u00e9"},
        {"authorization": "Bearer\ta"},
        {"authorization": " Bearer a"},
        {"authorization": "Bearer " + "a" * (MAX_CREDENTIAL_CHARS + 1)},
        {"x-api-key": ""},
        {"x-api-key": "one, two"},
        {"x-api-key": "a" * (MAX_CREDENTIAL_CHARS + 1)},
        {"authorization": "Bearer a", "x-api-key": "a"},
    ],
)
def test_malformed_or_multiple_credentials_are_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(AccessRejected) as caught:
        read_credential(headers)
    assert caught.value.reason is RejectionReason.MALFORMED


def test_a_credential_of_the_maximum_length_is_accepted() -> None:
    secret = "a" * MAX_CREDENTIAL_CHARS
    credential = read_credential({"authorization": f"Bearer {secret}"})
    assert credential is not None
    assert credential.secret == secret
