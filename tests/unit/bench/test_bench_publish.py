import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from bench import PROJECT, __main__
from bench import comparisons as work
from bench.publish import (
    PAGES_WITH_BLOCKS,
    blocks,
    filled,
    format_size,
    missing_parts,
    plots,
    publish,
)
from bench.results import Account, Bench, Peak, Result, as_json
from bench_kit import runs


@pytest.fixture
def bench() -> Bench:
    own, compat = runs("us", "own", cpus=[40, 50]), runs("us too", "compat", cpus=[80, 90])
    peer = runs("them", cpus=[30, 35])
    rows = [Result(name, (own, compat, peer, peer)) for name in (work.GRPC_TINY, work.GRPC_IMAGE)]
    delays = [Result(name, (own, compat, peer)) for name in (work.JSON_LATENCY, work.GRPC_LATENCY)]
    sizes = [
        Result(name, (own, compat), size)
        for name in (work.BINARY_SIZES, work.GRPC_SIZES)
        for size in (1024, 2**20, 2**28)
    ]
    routes = [
        Result(name, (own,), count)
        for name in (work.JSON_ROUTES, work.GRPC_ROUTES)
        for count in (1, 10_000)
    ]
    workers = [Result(work.WORKERS, (own,), count) for count in (1, 2)]
    return Bench(
        "somewhere", [*rows, *delays, *sizes, *routes, *workers], [Peak("own", "a → b", 1.9)],
        {"own": 60_000_000}, [Account(work.GRPC_TINY, "own", {"log, metrics": 4.0})],
    )  # fmt: skip


def test_publishing_is_complete_and_repeatable(bench: Bench, tmp_path: Path) -> None:
    for path in PAGES_WITH_BLOCKS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("before\n<!-- bench: targets -->\nold\n<!-- /bench -->\nafter")
    publish(bench, tmp_path)
    contents = {path: path.read_text() for path in tmp_path.rglob("*.*")}
    publish(bench, tmp_path)
    assert {path: path.read_text() for path in tmp_path.rglob("*.*")} == contents
    readme = (tmp_path / "README.md").read_text()
    assert work.GRPC_TINY in readme
    assert "old" not in readme
    assert readme.startswith("before\n")
    assert readme.endswith("\nafter")
    page = (tmp_path / "docs/benchmarks.md").read_text()
    for name, _ in plots(bench):
        assert f"benchmarks/{name}" in page


def test_every_plot_is_valid_xml(bench: Bench) -> None:
    documents = dict(plots(bench))
    assert len(documents) == 5
    for document in documents.values():
        ET.fromstring(document)


def test_a_block_without_an_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="targets"):
        filled("<!-- bench: targets -->\n", {"targets": "x"})


def test_the_pages_have_only_generated_blocks(bench: Bench) -> None:
    generated = blocks(bench)
    for path in PAGES_WITH_BLOCKS:
        text = (PROJECT / path).read_text()
        names = [line.split()[2] for line in text.splitlines() if line.startswith("<!-- bench: ")]
        assert names
        assert set(names) <= set(generated)
        assert text.count("<!-- /bench -->") == len(names)


def test_sizes_are_formatted_with_their_unit() -> None:
    assert [format_size(1024 * 8**power) for power in (0, 3, 6)] == ["1 KiB", "512 KiB", "256 MiB"]


def test_a_partial_run_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Result(work.JSON_TINY, (runs("a", "own", cpus=[1]), runs("b", cpus=[1])))
    partial = Bench(results=[row])
    assert work.JSON_TINY not in missing_parts(partial)
    assert {work.GRPC_ROUTES, "memory", "stages"} <= set(missing_parts(partial))
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(as_json(partial)))
    monkeypatch.setattr(__main__, "publish", lambda *_: pytest.fail("published"))
    assert __main__.main(["--again", "--publish", f"--json={path}"]) == 1
    assert "not published, because the run did not measure " in capsys.readouterr().err
