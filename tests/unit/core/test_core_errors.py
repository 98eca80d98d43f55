from infergate.core.errors import GatewayError, Kind, Origin, bad_request, garbage


def test_defaults() -> None:
    error = GatewayError(Kind.NOT_FOUND, "unknown model 'x'")
    assert (error.origin, error.detail, error.retry_after) == (Origin.GATEWAY, "", None)
    assert str(error) == error.public == "unknown model 'x'"


def test_detail_stays_out_of_what_is_shown() -> None:
    error = GatewayError(Kind.CONNECT, "no answer", detail="10.0.0.7:8000 refused", retry_after=2.5)
    assert error.retry_after == 2.5
    assert "10.0.0.7" not in str(error)
    assert repr(error) == "GatewayError(CONNECT, 'no answer', origin=GATEWAY)"


def test_shorthands() -> None:
    client = bad_request("field 'x'")
    assert (client.kind, client.origin) == (Kind.BAD_REQUEST, Origin.GATEWAY)
    backend = garbage("not JSON", "<html>")
    assert (backend.kind, backend.origin) == (Kind.BACKEND_GARBAGE, Origin.BACKEND)
    assert backend.detail == "<html>"
