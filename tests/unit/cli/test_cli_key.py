"""Keys that ``infergate key`` prints, and access rules that ``--check`` prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infergate.access.keys import ApiKeys, digest_of, parse_file
from infergate.cli import main
from infergate.config.load import parse


def run_key(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["key", *argv]) == 0
    return capsys.readouterr().out


def test_printed_keys_are_valid_entries(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_key(capsys, "--name", "team/a")
    secret = text.partition("\n")[0]
    entry = re.search(r"^  (- \{.*\})$", text, re.MULTILINE)
    line = text.splitlines()[-1]
    assert entry is not None
    assert ApiKeys(parse_file(line.encode())).find_owner(secret) == "team/a"
    config = parse(
        "backends: {d: {protocol: builtin}}\nroutes: [{model: a, backend: d}]\n"
        f"access:\n  rules: [{{who: ['key:team/a']}}]\n  keys:\n    {entry[1]}\n",
        "f",
        {},
    )
    assert config.access is not None
    assert config.access.keys[0].sha256 == digest_of(secret)
    assert secret not in "".join(text.splitlines()[1:])


def test_keys_are_different(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_key(capsys) != run_key(capsys)


def test_an_invalid_name_is_rejected() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["key", "--name", "a b"])
    assert caught.value.code == 2


def test_check_prints_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "routes.yaml"
    file.write_text(
        "backends: {d: {protocol: builtin}}\nroutes: [{model: a, backend: d}]\n"
        "access:\n  rules: [{who: ['key:a', anonymous], models: [a]}]\n"
        f"  keys: [{{name: a, sha256: '{'a' * 64}'}}]\n"
        "  rates: [{requests: 10/m, each: []}, {bytes: 1MiB/s}]\n"
        "  shares: [{who: ['key:a'], weight: 2.5, highest_priority: 4}]\n"
    )
    assert main(["--config", str(file), "--check"]) == 0
    text = capsys.readouterr().out
    assert "access, everything else is rejected" in text
    assert re.search(r"key:a anonymous +- +a +infer metadata", text)
    assert "10/m requests together" in text
    assert "1MiB/s of bodies for each identity and route" in text
    assert re.search(r"key:a +- +\* +queue weight 2.5, priorities from 4", text)
