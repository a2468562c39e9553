"""What pyproject.toml promises is what is imported, documented and tested."""

from __future__ import annotations

import ast
import re
import sys
import tomllib

import pytest
from helpers.source_tree import PACKAGE, ROOT, modules
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
ALL = [text for texts in (PROJECT["project"]["dependencies"], *EXTRAS.values()) for text in texts]
DECLARED = [Requirement(text) for text in dict.fromkeys(ALL)]  # two extras may need the same
PAGE = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
DISTRIBUTIONS = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
FROM_OTHERS = {"wandb", "mlflow"}  # loggers, imported where transformers has imported them already
BY_OTHERS = {"httptools", "uvloop"}  # uvicorn takes them where they are installed


def rows(head):
    """Return the cells of the table of docs/install.md whose first column has this head."""
    table = re.search(rf"^\| {head} +\|.*?\n\|[-| ]+\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    assert table, head
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


def pinned(version):
    """Return the versions of constraints.txt that hold for a version of Python on Linux."""
    found = {}
    environment = {"python_version": version, "python_full_version": f"{version}.0", "sys_platform": "linux"}
    environment |= {"platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython"}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            one = Requirement(text)
            if one.marker is None or one.marker.evaluate(environment | {"platform_python_implementation": "CPython"}):
                (specifier,) = one.specifier
                assert specifier.operator == "==" and canonicalize_name(one.name) not in found, line
                found[canonicalize_name(one.name)] = specifier.version
    return found


def lowest(requirement):
    return next(part.version for part in requirement.specifier if part.operator == ">=")


def pythons():
    return [
        last for one in PROJECT["project"]["classifiers"] if re.fullmatch(r"3\.\d+", last := one.rpartition(" :: ")[2])
    ]


def imported():
    found = set()
    for file in modules(ROOT).values():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - FROM_OTHERS - {PACKAGE}


def test_what_is_imported_is_declared_and_nothing_else():
    declared = {canonicalize_name(one.name) for one in DECLARED}
    assert {canonicalize_name(DISTRIBUTIONS.get(name, name)) for name in imported()} == declared - BY_OTHERS


def test_every_dependency_has_a_lowest_version():
    assert [one.name for one in DECLARED if not any(part.operator == ">=" for part in one.specifier)] == []


def test_the_table_of_versions_is_that_of_pyproject_and_constraints():
    newest = pinned("3.11")
    expected = [[f"`{one.name}`", lowest(one), newest[canonicalize_name(one.name)]] for one in DECLARED]
    assert rows("package") == expected


@pytest.mark.parametrize("version", pythons())
def test_the_constraints_are_within_what_is_promised(version):
    newest = pinned(version)
    outside = [one.name for one in DECLARED if newest[canonicalize_name(one.name)] not in one.specifier]
    assert outside == []
    tools = [Requirement(one) for name in ("dev", "test") for one in GROUPS[name] if isinstance(one, str)]
    assert [one.name for one in tools if newest[canonicalize_name(one.name)] not in one.specifier] == []


def test_the_versions_of_python_are_those_of_the_page():
    assert [row[0] for row in rows("Python")] == pythons()
    assert pythons()[0] in SpecifierSet(PROJECT["project"]["requires-python"])
    below = pythons()[0].replace(pythons()[0][2:], str(int(pythons()[0][2:]) - 1))
    assert below not in SpecifierSet(PROJECT["project"]["requires-python"])
    assert PAGE.splitlines()[2] == f"Python {pythons()[0]} or newer."
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{pythons()[0].replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == pythons()[0]


def test_the_tables_of_extras_and_groups_are_those_of_pyproject():
    expected = {name: {Requirement(one).name for one in texts} for name, texts in EXTRAS.items()}
    assert {row[0].strip("`"): set(re.findall(r"`([\w-]+)`", row[1])) for row in rows("extra")} == expected
    assert {row[0].strip("`") for row in rows("group")} == GROUPS.keys()


def test_a_pin_for_another_python_is_left_out():
    assert not Marker("python_version >= '3.12'").evaluate({"python_version": "3.11"})
    assert pinned("3.11")["torch"] == pinned("3.13")["torch"]


def test_the_small_distribution_has_the_version_and_the_bounds_of_the_large_one():
    import limbeck

    small = tomllib.loads((ROOT / "runtime" / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert small["version"] == limbeck.__version__
    bounds = {one.name: one.specifier for one in DECLARED}
    texts = [*small["dependencies"], *small["optional-dependencies"]["serve"]]
    assert {one.name: one.specifier for one in map(Requirement, texts)}.items() <= bounds.items()
    assert {Requirement(text).name for text in EXTRAS["serve"]} <= {Requirement(text).name for text in texts}
    linked = ROOT / "runtime" / "src" / "limbeck_runtime"
    assert (linked / "model.py").read_bytes() == (ROOT / "src" / PACKAGE / "runtime" / "model.py").read_bytes()
