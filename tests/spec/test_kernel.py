"""tunefa/spec/kernel.py: what is found in the folder, and what if a file does not import."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.support.own_kernels import OwnKernels
from tests.support.sample_space import TINY
from tests.support.tree import TREE
from tunefa.cli import main
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

SM90 = archs.load("sm90")
WORKLOAD = Workload.parse("q4096_d64")
GLUON = "attention_fwd_gluon_sm90", "attention_bwd_two_pass_gluon_sm90"
SPACE = TINY.replace("kernel: tiny", "kernel: NAME")


def test_a_kernel_is_a_file_with_a_space(own_kernels: OwnKernels) -> None:
    assert kernels.names() == []
    own_kernels.add("kernel_b", "", SPACE)
    own_kernels.add("kernel_a", "", SPACE)
    (own_kernels.folder / "kernels" / "no_space.py").touch()
    (own_kernels.folder / "kernels" / "README.md").touch()
    (own_kernels.folder / "search_spaces" / "kernel_c.yaml").write_text(SPACE)
    assert kernels.names() == ["kernel_a", "kernel_b"]
    kernel = kernels.load("kernel_a")
    assert (kernel.name, kernel.op, kernel.language) == ("kernel_a", "fwd", "triton")
    assert kernel.source == own_kernels.folder / "kernels" / "kernel_a.py"


@pytest.mark.parametrize("name", ["kernel_d", "no_space", "", "../kernel_a", "kernel_a.py"])
def test_an_unknown_kernel_suggests_the_nearest(own_kernels: OwnKernels, name: str) -> None:
    own_kernels.add("kernel_a", "", SPACE)
    (own_kernels.folder / "kernels" / "no_space.py").touch()
    with pytest.raises(TunefaError, match=rf"unknown kernel '{name}'.*\(known: kernel_a\)"):
        kernels.load(name)


def test_the_source_hash_covers_every_source_file_and_nothing_else(own_kernels: OwnKernels) -> None:
    folder = own_kernels.folder / "kernels"
    first = own_kernels.add("hashed", "a = 1", SPACE).source_hash
    assert len(first) == 16 and int(first, 16) >= 0
    assert kernels.load("hashed").source_hash == first
    (folder / "hashed_too.py").write_text("b")
    own_kernels.add("hashed", "a = 1", SPACE + "# another comment\n")
    assert kernels.load("hashed").source_hash == first
    (folder / "hashed.cu").write_text("// beside it")
    with_cuda = kernels.load("hashed").source_hash
    (folder / "hashed.cu").write_text("// changed")
    other_cuda = kernels.load("hashed").source_hash
    (folder / "hashed.cu").unlink()
    (folder / "hashed.py").write_text("a = 2")
    assert len({first, with_cuda, other_cuda, kernels.load("hashed").source_hash}) == 4


def test_what_a_kernel_serves_is_known_without_importing_it(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add("never_imported", "raise SystemError('imported')", SPACE)
    assert kernel.why_not(WORKLOAD, SM90) is None
    assert kernel.why_not(Workload.parse("q8_w4"), SM90) == "it knows no window"
    assert kernel.default(WORKLOAD, SM90) == {"BLOCK": 64, "num_stages": 2}
    assert kernel.refusal({"BLOCK": 64, "num_stages": 2}, WORKLOAD, SM90) is None
    assert kernel.refusal({"BLOCK": 64}, WORKLOAD, SM90) == "parameter num_stages is missing"


def test_a_module_is_imported_once_by_path(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add("imported_once", "made = object()", SPACE)
    assert kernel.module.made is kernels.load("imported_once").module.made
    assert kernel.module.__name__ == "tunefa.kernels.imported_once"
    assert kernel.module.__file__ == str(kernel.source)


def test_what_a_kernel_needs_and_is_not_there(own_kernels: OwnKernels) -> None:
    kernel = own_kernels.add("needs_more", "import no_such_module", SPACE)
    for _ in range(2):
        with pytest.raises(TunefaError, match=r"needs_more cannot be imported.*no_such_module"):
            _ = kernel.module


@pytest.mark.parametrize(
    ("name", "source", "error"),
    [
        ("wrong_syntax", "a = = 1", SyntaxError),
        ("wrong_name", "half = 1\nundefined", NameError),
        ("interrupted", "raise KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_a_module_that_failed_is_not_taken_for_imported(
    own_kernels: OwnKernels, name: str, source: str, error: type[BaseException]
) -> None:
    kernel = own_kernels.add(name, source, SPACE)
    for _ in range(2):
        with pytest.raises(error):
            _ = kernel.module
    kernel.source.write_text("half = 2")
    assert kernel.module.half == 2


def test_those_that_serve(own_kernels: OwnKernels) -> None:
    own_kernels.add("serves", "", SPACE)
    own_kernels.add("serves_not", "", SPACE.replace("window_left == None", "head_dim > 64"))
    assert [k.name for k in kernels.serving(WORKLOAD, SM90)] == ["serves"]
    assert [k.name for k in kernels.serving(WORKLOAD, SM90, ["serves"])] == ["serves"]
    wide = Workload.parse("q8_d96")
    assert [k.name for k in kernels.serving(wide, SM90)] == ["serves", "serves_not"]
    only = kernels.serving(wide, SM90, ["serves_not", "serves"])
    assert [k.name for k in only] == ["serves_not", "serves"]


def test_a_priority_may_depend_on_the_workload(own_kernels: OwnKernels) -> None:
    for name, priority in (
        ("short", "priority: 0 if seqlen_k <= 512 and compute_capability == 90 else 2"),
        ("long", "priority: 1\npriority_on: {sm80: 3}"),
    ):
        own_kernels.add(name, "", SPACE.replace("op: fwd", f"op: fwd\n{priority}"))
    for text, arch, names in (
        ("q512_d64", "sm90", ["short", "long"]),
        ("q512_k513_d64", "sm90", ["long", "short"]),
        ("q512_d64", "sm80", ["short", "long"]),
    ):
        serving = kernels.serving(Workload.parse(text), archs.load(arch))
        assert [each.name for each in serving] == names


def test_none_that_serves_says_why_for_each(own_kernels: OwnKernels) -> None:
    own_kernels.add("serves", "", SPACE)
    product = (TREE / "search_spaces" / "matmul_triton.yaml").read_text()
    own_kernels.add("product", "", product.replace("kernel: matmul_triton", "kernel: product"))
    with pytest.raises(TunefaError) as caught:
        kernels.serving(Workload.parse("q8_w4"), SM90)
    message = str(caught.value)
    assert "no kernel serves fwd_" in message and "_w4 on sm90" in message
    assert "serves: it knows no window" in message
    assert "product" not in message, "a kernel of another op is no answer"
    with pytest.raises(TunefaError, match="product: it computes matmul, not fwd"):
        kernels.serving(Workload.parse("q8"), SM90, ["product"])
    with pytest.raises(TunefaError, match="unknown kernel 'serve': did you mean serves"):
        kernels.serving(WORKLOAD, SM90, ["serve"])


def test_listing_and_loading_import_no_compiler() -> None:
    code = (
        "import sys; from tunefa.spec import kernel; [kernel.load(n).source_hash for n in "
        "kernel.names()]; sys.exit(str({'torch', 'triton', 'numpy'} & sys.modules.keys() or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=TREE, capture_output=True, text=True)
    assert done.stderr.strip() == ""


def test_the_sources_of_a_gluon_kernel_are_all_that_it_runs() -> None:
    every = [kernels.load(name) for name in kernels.names() if "gluon" in name]
    forward, backward = map(kernels.load, GLUON)
    folder = forward.source.parent
    before = ("pack_tiles", "transpose_v")  # each runs before some kernels
    assert {path for kernel in every for path in kernel.sources} == {
        *(kernel.source for kernel in every),
        *folder.glob("gluon/**/*.py"),
        *{*folder.glob("hopper/*.py")} - {folder / "hopper/first_tiles.py"},  # of CUDA C++
        *(folder / "triton" / f"{name}.py" for name in before),
    }
    assert not [path for path in forward.sources if "gradients" in path.name]
    assert folder / "gluon" / "key_step.py" in backward.sources


@pytest.mark.parametrize("language", ["triton", "ascend"])
def test_device_code_belongs_to_the_sources(language: str) -> None:
    made = kernels.load(f"attention_fwd_{language}")
    device_code = made.source.parent / language / "attention_forward.py"
    assert set(made.sources) == {made.source, device_code}


def test_a_change_of_what_is_imported_inside_a_function_changes_the_hash(
    own_kernels: OwnKernels,
) -> None:
    folder = own_kernels.folder / "kernels"
    (folder / "device").mkdir()
    (folder / "device" / "code.py").write_text("from tunefa.kernels.device.deeper import x")
    (folder / "device" / "deeper.py").write_text("x = 1")
    source = "def variant():\n    from tunefa.kernels.device.code import (\n        x,\n    )\n"
    kernel = own_kernels.add("lazy_source", source, SPACE)
    assert {path.name for path in kernel.sources} == {"lazy_source.py", "code.py", "deeper.py"}
    hashes = {kernel.source_hash}
    for name in ("code", "deeper"):
        path = folder / "device" / f"{name}.py"
        path.write_text(path.read_text() + "\n")
        hashes.add(kernels.load("lazy_source").source_hash)
    assert len(hashes) == 3


def test_what_two_folders_share_is_found_when_it_is_imported_late(
    own_kernels: OwnKernels,
) -> None:
    folder = own_kernels.folder / "kernels"
    (folder / "late_device").mkdir()
    (folder / "late_device" / "code.py").write_text("made = 'late'")
    lazy = "def made():\n    from tunefa.kernels.late_device.code import made\n    return made\n"
    kernel = own_kernels.add("imports_late", lazy, SPACE)
    assert kernel.module is not None
    kernels._open_folder(TREE / "kernels")  # as a kernel of another folder does
    assert kernel.module.made() == "late"


def test_the_sources_of_a_cuda_kernel_are_all_that_it_includes() -> None:
    made = kernels.load("attention_fwd_cuda_sm90")
    folder = made.source.parent
    included = ("attention_consumer.cuh", "attention_producer.cuh", "cache_hints.cuh",
                "dependent_launch.cuh", "e4m3.cuh", "numbers.cuh", "ptx.cuh",
                "transpose_e4m3.cuh", "two_level_sums.cuh", "warpgroup_rows.cuh", "wgmma.cuh",
                "widen_e4m3.cuh")  # fmt: skip
    assert set(made.sources) == {
        made.source, made.source.with_suffix(".cu"), *folder.glob("hopper/t*.py"),
        folder / "hopper/first_tiles.py", *(folder / "cuda" / name for name in included),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source", "space", "says"),
    [
        ("bad_space", "", "schema: 2\nkernel: [\n", r"bad_space\.yaml:3: "),
        ("bad_syntax", "a = = 1", SPACE, r"bad_syntax\.py:1: kernel bad_syntax .*: SyntaxError: "),
        ("bad_name", "a = 1\nundefined", SPACE, r"bad_name\.py:2: kernel bad_name .*: NameError: "),
        ("bad_import", "import no_such_module", SPACE, "kernel bad_import cannot be imported: "),
    ],
)
def test_a_broken_kernel_costs_that_kernel_only(
    own_kernels: OwnKernels, name: str, source: str, space: str, says: str
) -> None:
    good = own_kernels.add(f"good_beside_{name}", "", SPACE)
    (own_kernels.folder / "kernels" / f"{name}.py").write_text(source)
    (own_kernels.folder / "search_spaces" / f"{name}.yaml").write_text(space.replace("NAME", name))
    for line in (["space", "-w", str(WORKLOAD)], ["doctor"]):
        result = CliRunner().invoke(main, [*line, "--arch", "sm90", "--json"])
        assert result.exit_code == 0, result.output
        said = str(json.loads(result.stdout).get("problems", result.stderr))
        assert re.search(says, said), said
    with pytest.warns(UserWarning, match=f"kernel {name} is left out: .*{says}"):
        assert [each.name for each in kernels.serving(WORKLOAD, SM90)] == [good.name]
    with pytest.raises(TunefaError, match=says):
        kernels.serving(WORKLOAD, SM90, [name])
