import pickle

from infergate.core.bounded_cache import BoundedCache


def test_never_exceeds_its_limit() -> None:
    cache = BoundedCache[int, str](3)
    for number in range(10):
        cache[number] = str(number)
        assert len(cache) <= 3
        assert cache[number] == str(number)


def test_replacing_an_entry_keeps_the_others() -> None:
    cache = BoundedCache[str, int](2)
    cache["a"], cache["b"] = 1, 2
    cache["a"] = 3
    assert cache == {"a": 3, "b": 2}


def test_a_pickled_copy_is_empty_and_bounded() -> None:
    cache = BoundedCache[int, int](1)
    cache[1] = 1
    copy = pickle.loads(pickle.dumps(cache))
    assert copy == {}
    copy[1], copy[2] = 1, 2
    assert copy == {2: 2}
