import subprocess
import sys
from pathlib import Path

import pytest
from bench import proc, variants
from bench.variants import Variant, available


def test_only_the_default_interpreter_uses_the_packages_of_this_process() -> None:
    environment = {"PATH": "/bin", "PYTHONPATH": "src"}
    assert Variant("own", "own").environment(environment) == environment
    assert Variant("own-system", "own", Path("/other")).environment(environment) == {"PATH": "/bin"}
    baseline = Variant("baseline", "own", source=Path("/baseline/src"))
    assert baseline.environment(environment)["PYTHONPATH"] == "/baseline/src"


def test_variants_that_cannot_run_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "SYSTEM_PYTHON", Path("/missing/python3"))
    monkeypatch.setattr(variants, "_COMPILE", "no such variable")
    usable, notes = available(variants.NAMES)
    assert [each.name for each in usable] == ["own", "compat"]
    assert notes == [
        "own-system was not measured: there is no /missing/python3",
        "own-compiled was not measured: the package has no compiled form",
        "own-compiled-system was not measured: the package has no compiled form",
    ]


def test_a_failed_installation_is_noted_and_its_output_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Variant:
        raise RuntimeError("`pip install` failed (1):\nno compiler")

    monkeypatch.setattr(variants, "_installed", fail)
    assert available(["own-compiled"]) == (
        [], ["own-compiled was not measured: its installation failed"]
    )  # fmt: skip
    assert "no compiler" in capsys.readouterr().err


def test_the_default_interpreter_is_not_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "SYSTEM_PYTHON", Path(sys.executable).resolve())
    assert "is the default interpreter" in available(["own-system"])[1][0]


def test_the_cpu_time_of_a_session_is_measured() -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=pipe, start_new_session=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        cpu_times = proc.cpu(process.pid), proc.main_thread_cpu(process.pid)
        process.communicate(b"\n")
    assert all(200_000 <= each < 400_000 for each in cpu_times)
    assert proc.cpu(0) == proc.cpu(process.pid) == 0
