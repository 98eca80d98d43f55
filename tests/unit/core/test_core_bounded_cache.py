import pickle

from infergate.core.bounded_cache import BoundedCache, GenerationalCache


def test_a_cache_never_exceeds_its_limit() -> None:
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


def test_an_entry_in_use_survives_later_entries() -> None:
    cache = GenerationalCache[str, int](10, 1000)
    cache.add("used", 1, 10)
    for number in range(100):
        cache.add(str(number), number, 10)
        if cache.get("used") is None:
            assert cache.revive("used") == 1
    assert cache.revive("0") is None
    assert cache.revive("99") is None  # the entry is in the newer generation
    assert cache["99"] == 99


def test_generations_are_bounded_by_weight() -> None:
    cache = GenerationalCache[int, int](1000, 100)
    for number in range(100):
        cache.add(number, number, 20)
        entries = {**cache, **{each: 0 for each in range(100) if each in cache._older}}
        assert 20 * len(entries) <= 100
    cache.add(-1, -1, 51)
    assert -1 not in cache
    cache.clear()
    assert cache.revive(98) is None
