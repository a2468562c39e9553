"""Build the distributions, install the wheel in a fresh environment, and use it as somebody does who has just come."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from helpers.paths import ROOT

import limbeck

pytestmark = pytest.mark.slow  # trains a teacher and three students
pytest.importorskip("build", reason="build is not installed: pip install --group dev")


def run(*words, cwd, **more):
    # nothing of the checkout may be found by the way
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=environment | more, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the source distribution, and the wheel from it."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    """Make an environment that has limbeck from the wheel, and all else from the one that runs the tests."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    words = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", built[0]]
    run(sys.executable, *words, cwd=home.parent)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home.parent).strip())
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (site / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    return home / "bin"


@pytest.fixture(scope="module")
def demo(environment, tmp_path_factory):
    """Run the demo where nothing of the checkout is; return the folder and what it printed."""
    folder = tmp_path_factory.mktemp("work")
    return folder, run(environment / "limbeck", "demo", "--quick", cwd=folder, COLUMNS="200", OMP_NUM_THREADS="1")


def test_every_file_of_the_package_is_in_both(built):
    package = ROOT / "src" / "limbeck"
    files = {
        str(file.relative_to(ROOT / "src")) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"
    }
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as source:
        assert {name for name in wheel.namelist() if name.startswith("limbeck/")} == files
        within = {name.partition("/")[2] for name in source.getnames()}
    assert {f"src/{name}" for name in files} <= within
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "Makefile"} <= within
    assert {"docs/install.md", "tests/conftest.py", "tests/integration/test_wheel.py"} <= within


def test_the_command_is_that_of_the_wheel(environment, tmp_path):
    assert run(environment / "limbeck", "--version", cwd=tmp_path) == f"limbeck {limbeck.__version__}\n"
    where = run(environment / "python", "-c", "import limbeck; print(limbeck.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)


def test_the_demo_runs(demo):
    folder, said = demo
    assert all(f" {name} " in said for name in ("ft", "kd", "fcd")) and "agrees with teacher" in said
    assert (folder / "demo-runs" / "reviews-scratch-s0-quick" / "teacher" / "student").is_dir()


def test_the_first_example_of_the_readme_runs_as_it_stands(environment, demo):
    folder, _ = demo
    home = folder / "demo-runs"
    (home / "reviews-scratch-s0").symlink_to(home / "reviews-scratch-s0-quick")  # where the whole demo puts its teacher
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    (folder / "example.py").write_text(block[1])
    run(environment / "python", "example.py", cwd=folder, HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
