import pytest
from builtin_requests import infer, int32, rejection, strings
from hypothesis import given
from hypothesis import strategies as st

from infergate.backends.builtin import BuiltinBackend
from infergate.backends.builtin.arithmetic import Simple, SimpleString
from infergate.core.messages import InferRequest

NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=16, max_size=16)
ROWS = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(NUMBERS, min_size=n, max_size=n), st.lists(NUMBERS, min_size=n, max_size=n)
    )
)


def wrapped(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


@given(ROWS)
def test_simple_adds_and_subtracts_like_c(rows: tuple[list[list[int]], list[list[int]]]) -> None:
    left, right = rows
    request = InferRequest("simple", inputs=(int32("INPUT0", left), int32("INPUT1", right)))
    total, difference = (output.numpy().tolist() for output in Simple().infer(request).outputs)
    pairs = [list(zip(a, b, strict=True)) for a, b in zip(left, right, strict=True)]
    assert total == [[wrapped(a + b) for a, b in row] for row in pairs]
    assert difference == [[wrapped(a - b) for a, b in row] for row in pairs]


@given(ROWS)
def test_simple_string_computes_the_results_of_simple(
    rows: tuple[list[list[int]], list[list[int]]],
) -> None:
    left, right = ([[str(n).encode() for n in row] for row in half] for half in rows)
    request = InferRequest(
        "simple_string", inputs=(strings("INPUT0", left), strings("INPUT1", right))
    )
    numeric = InferRequest("simple", inputs=(int32("INPUT0", rows[0]), int32("INPUT1", rows[1])))
    texts = SimpleString().infer(request).outputs
    numbers = Simple().infer(numeric).outputs
    for text, number in zip(texts, numbers, strict=True):
        assert text.shape == number.shape
        assert [int(e) for e in text.numpy().ravel()] == number.numpy().ravel().tolist()


@pytest.mark.parametrize("element", [b"+5", b"-0", b"0005", b"0" * 5000 + b"7"])
async def test_decimal_spellings_are_accepted(backend: BuiltinBackend, element: bytes) -> None:
    left = strings("INPUT0", [[element] * 16])
    right = strings("INPUT1", [[b"0"] * 16])
    response = await infer(backend, InferRequest("simple_string", inputs=(left, right)))
    assert response.outputs[0].numpy()[0, 0] == str(int(element[-10:])).encode()


@pytest.mark.parametrize(
    "element",
    [
        b"",
        b"one",
        b"1.0",
        b"1e3",
        b" 1",
        b"1\n",
        b"1_000",
        b"--1",
        b"0x10",
        "٣".encode(),
        b"\xff",
        b"2147483648",
        b"-2147483649",
        b"9" * 5000,
    ],
)
async def test_non_int32_strings_are_rejected(backend: BuiltinBackend, element: bytes) -> None:
    left = strings("INPUT0", [[b"1"] * 16])
    right = strings("INPUT1", [[b"1"] * 3 + [element] + [b"1"] * 12])
    error = await rejection(backend, InferRequest("simple_string", inputs=(left, right)))
    assert error == "input 'INPUT1': element 3 is not a decimal INT32 number"
