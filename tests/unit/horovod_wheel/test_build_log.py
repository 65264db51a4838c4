"""What a user sees of a failed build: the first error of the real compiler, and a hint that fits."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.horovod_wheel.toolchain import architecture_flags, compiler_version, find_compiler, python_headers
from hvdtrain.horovod_wheel.wheel_build import Progress, first_error, hint_for, percent_of


def compile_log(folder: Path, source: str, *options: str) -> str:
    """All that the C++ compiler prints for that source."""
    file = folder / "bad.cc"
    file.write_text(source, encoding="utf-8")
    command = [find_compiler(), "-Wall", *options, str(file), "-o", str(folder / "bad")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode != 0
    return run.stdout + run.stderr


def test_the_first_of_several_compiler_errors_is_found_among_warnings(tmp_path: Path) -> None:
    log = compile_log(tmp_path, "int f(int unused) { int idle; return first; }\nint g() { return second; }\n")
    before = "".join(f"[{percent:3d}%] Building CXX object errors.cc.o\n" for percent in range(100))
    error = first_error(before + log, context=3)
    assert error is not None
    lines = error.splitlines()
    assert "error:" in lines[0]
    assert "first" in lines[0]
    assert len(lines) <= 4


def test_a_missing_header_gets_the_hint_to_install_it(tmp_path: Path) -> None:
    error = first_error(compile_log(tmp_path, '#include "missing/Python.h"\n'))
    assert error is not None
    assert f"python{sys.version_info.major}.{sys.version_info.minor}-dev" in hint_for(error)


def test_of_an_error_that_cmake_reports_the_compilers_own_line_is_shown(tmp_path: Path) -> None:
    """CMake's message about its test program, as CMake 4.4 words it, around what the compiler really says."""
    compiler = compile_log(tmp_path, "int main() { return 0; }\n", "-include", "/missing/header.h")
    log = (
        "CMake Error at /cmake-4.4/Modules/CMakeTestCXXCompiler.cmake:71 (message):\n  The C++ compiler\n\n"
        '    "/usr/bin/g++"\n\n  is not able to compile a simple test program.\n\n'
        f"  It fails with the following output:\n\n{compiler}\nCMake will not be able to generate this project.\n"
    )
    error = first_error(log)
    assert error is not None
    assert "fatal error: /missing/header.h" in error.splitlines()[0]


def test_an_error_of_the_linker_is_found(tmp_path: Path) -> None:
    error = first_error(compile_log(tmp_path, "int missing();\nint main() { return missing(); }\n"))
    assert error is not None
    assert "undefined reference" in error


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "HVDTRAIN_BUILD_JOBS=1"),
        ("/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device", "HVDTRAIN_CACHE_DIR"),
        ("CMake Error at cmake/FindMPI.cmake:3: Could NOT find MPI_CXX", "mpicxx"),
        ("nccl_operations.cc:3:10: fatal error: nccl.h: No such file or directory", "HVDTRAIN_WITHOUT_NCCL=1"),
        ("x.cc:1:1: error: expected declaration", "see the log"),
    ],
)
def test_hints(line: str, hint: str) -> None:
    error = first_error(f"-- Looking for error.h - found\n[ 10%] Building error_handler.cc.o\n{line}\nmore\n")
    assert error == f"{line}\nmore"
    assert hint in hint_for(error)


def test_a_log_without_an_error_has_none() -> None:
    assert first_error("[100%] Built target pytorch\nx.cc:3: warning: unused\n") is None


def test_percentages_are_read_from_cmake_lines() -> None:
    assert percent_of("  [ 42%] Building CXX object a.cc.o") == 42
    assert percent_of("[100%] Built target pytorch") == 100
    assert percent_of("copying horovod/common [100%]") is None


def test_progress_off_a_terminal_is_a_line_at_every_tenth() -> None:
    out = io.StringIO()
    progress = Progress(out, "usually about 3 min on 2 cores")
    for percent in range(101):
        progress.feed(f"[{percent:3d}%] Building\n")
    progress.close()
    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert all("usually about 3 min" in line for line in lines)


def test_a_compiler_that_is_not_there_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="HINT: install one"):
        find_compiler()


def test_the_compiler_tells_its_version_and_target() -> None:
    assert compiler_version(find_compiler()).count(".") >= 1


def test_only_instructions_that_the_processor_has_are_used() -> None:
    assert architecture_flags("processor: 0\nflags\t\t: fpu avx f16c sse2\n") == "-mavx -mf16c"
    assert architecture_flags("processor: 0\nFeatures: fp asimd\n") == ""


def test_there_are_python_headers_to_compile_with(tmp_path: Path) -> None:
    source = tmp_path / "ok.cc"
    minor = sys.version_info.minor
    source.write_text(f"#include <Python.h>\n#if PY_MINOR_VERSION != {minor}\n#error\n#endif\n", encoding="utf-8")
    command = [find_compiler(), "-fsyntax-only", f"-I{python_headers()}", str(source)]
    subprocess.run(command, check=True, timeout=60)
