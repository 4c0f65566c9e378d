# SPDX-License-Identifier: Apache-2.0
"""CUDA source compiled by the real NVRTC, which needs no GPU; and where that library is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedrate.errors import GpuError, MissingExtra
from feedrate.kernel.cuda.nvrtc import Nvrtc, list_candidates, load_first
from support.cuda_sources import SAXPY


def put(folder: Path, *names: str) -> list[str]:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return [str(folder / name) for name in names]


def find(site: Path, cuda_major: int, **environ: str) -> list[str]:
    """Return the candidates below a folder, without what this machine has."""
    found = list_candidates(cuda_major, search_path=[str(site)], environ=environ)
    return [path for path in found if path.startswith(str(site.parent))]


def test_a_kernel_becomes_machine_code_for_the_gpu_that_was_named(nvrtc: Nvrtc) -> None:
    code = nvrtc.compile(SAXPY, "sm_90")
    assert code.startswith(b"\x7fELF")
    assert b"saxpy" in code


def test_a_kernel_becomes_text_for_the_driver_where_ptx_was_named(nvrtc: Nvrtc) -> None:
    code = nvrtc.compile(SAXPY, "compute_90")
    assert b".target sm_90" in code
    assert code.endswith(b"\0")  # the driver reads a C string


def test_options_reach_the_compiler(nvrtc: Nvrtc) -> None:
    source = 'extern "C" __global__ void fill(int* out) { *out = VALUE; }'
    assert b"4711" in nvrtc.compile(source, "compute_90", ("-DVALUE=4711",))


def test_a_source_that_does_not_compile_is_explained_by_the_first_error_of_the_log(nvrtc: Nvrtc) -> None:
    source = f"#warning no error yet\n{SAXPY}" + "__device__ int a = lng;\n" * 50
    with pytest.raises(GpuError, match=r'for sm_90: feedrate.cu.*error: identifier "lng"') as caught:
        nvrtc.compile(source, "sm_90")
    assert "no error yet" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 8


def test_an_option_that_nvrtc_does_not_know_is_named(nvrtc: Nvrtc) -> None:
    with pytest.raises(GpuError, match=r"NVRTC_ERROR_INVALID_OPTION\n.*--nonsense"):
        nvrtc.compile(SAXPY, "sm_90", ("--nonsense",))


def test_a_gpu_that_is_known_gets_machine_code_and_a_newer_one_ptx(nvrtc: Nvrtc) -> None:
    newest = nvrtc.capabilities[-1]
    assert nvrtc.choose_architecture((9, 0)) == "sm_90"
    assert nvrtc.choose_architecture((99, 0)) == f"compute_{newest}"


def test_a_gpu_that_is_too_old_is_refused_with_the_oldest_that_is_known(nvrtc: Nvrtc) -> None:
    oldest = "{}.{}".format(*divmod(nvrtc.capabilities[0], 10))
    with pytest.raises(GpuError, match=rf"compute capability 3\.0, the oldest it knows is {oldest}"):
        nvrtc.choose_architecture((3, 0))


def test_the_wheels_of_cuda_12_and_13_are_found_and_the_one_of_torch_comes_first(tmp_path: Path) -> None:
    site = tmp_path / "site"
    twelve = put(site / "nvidia/cuda_nvrtc/lib", "libnvrtc.so.12")
    thirteen = put(site / "nvidia/cu13/lib", "libnvrtc.so.13")
    assert find(site, 12) == twelve + thirteen
    assert find(site, 13) == thirteen + twelve


def test_an_older_nvrtc_is_tried_before_a_newer_one(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (old,) = put(site / "nvidia/cu11/lib", "libnvrtc.so.11.2")
    (new,) = put(site / "nvidia/cu13/lib", "libnvrtc.so.13")
    assert find(site, 12) == [old, new]


def test_libraries_beside_the_compiler_are_not_taken_for_it(tmp_path: Path) -> None:
    site = tmp_path / "site"
    names = ("libnvrtc-builtins.so.12.9", "libnvrtc.alt.so.12", "libnvrtc-672ee683.so.11.2")
    assert find(site, 12) == []
    paths = put(site / "nvidia/cuda_nvrtc/lib", *names)
    assert find(site, 12) == [paths[2]]


def test_a_toolkit_that_the_environment_names_is_found(tmp_path: Path) -> None:
    paths = put(tmp_path / "toolkit/lib64", "libnvrtc.so.12")
    assert find(tmp_path / "site", 12, CUDA_HOME=str(tmp_path / "toolkit")) == paths


def test_without_wheels_the_dynamic_linker_is_asked(tmp_path: Path) -> None:
    found = list(list_candidates(12, search_path=[str(tmp_path)], environ={}))
    names = [path for path in found if "/" not in path]
    assert names == ["libnvrtc.so.12", "libnvrtc.so.11", "libnvrtc.so.13"]


@pytest.mark.parametrize(
    ("major", "package"), [(12, "nvidia-cuda-nvrtc-cu12"), (13, r"'nvidia-cuda-nvrtc==13\.\*'")]
)
def test_without_any_nvrtc_the_line_to_install_it_is_given(major: int, package: str) -> None:
    with pytest.raises(MissingExtra, match="no NVRTC was found") as caught:
        load_first(iter(["libnvrtc.so.0"]), major)
    assert caught.value.hint is not None
    assert caught.value.hint.replace("pip install ", "") == package.replace("\\", "")


def test_a_library_that_does_not_load_is_passed_over_and_named_if_it_was_the_only_one(tmp_path: Path) -> None:
    broken = tmp_path / "libnvrtc.so.12"
    broken.write_bytes(b"no library")
    with pytest.raises(MissingExtra, match=rf"\({broken}: .*file too short"):
        load_first(iter([str(broken), "libnvrtc.so.0"]), 12)


def test_a_library_that_is_no_nvrtc_is_passed_over() -> None:
    with pytest.raises(MissingExtra, match="no NVRTC was found"):
        load_first(iter(["libc.so.6"]), 12)
