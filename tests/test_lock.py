"""What `make` installs: every version is pinned, hashed, and the one that we say we test with."""

import itertools
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import lock

ROOT = Path(__file__).parent.parent
PARTS = lock.parts()
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(*names):
    """Return the requirements of parts of the lock, each with its number of hashes, by package."""
    pins = {}
    for entry in itertools.chain.from_iterable(PARTS[name] for name in names):
        pinned, *hashes = re.split(r"\s+(?=--hash)", entry.replace("\\\n", " ").strip())
        assert all(SHA256.fullmatch(digest) for digest in hashes), entry
        requirement = Requirement(pinned)
        pins.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(hashes)))
    return pins


def declared(extras):
    """Return what pyproject.toml asks for, by package; `extras` that name extras are followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = project["optional-dependencies"]
    requirements = list(map(Requirement, project["dependencies"]))
    waiting = [*extras]
    while waiting:
        for requirement in map(Requirement, of_extras[waiting.pop()]):
            if requirement.name == "paceline":
                waiting.extend(requirement.extras)
            else:
                requirements.append(requirement)
    return {canonicalize_name(item.name): item for item in requirements}


def pinned_version(requirement):
    """Return the one version that a requirement of the lock allows."""
    ((operator, version),) = ((spec.operator, spec.version) for spec in requirement.specifier)
    assert operator == "==", requirement
    return version


def test_everything_is_pinned_and_hashed():
    assert [*PARTS] == ["core", "dev", "torch", "tools"]
    for pins in locked(*PARTS).values():
        for requirement, hashes in pins:
            assert pinned_version(requirement)
            assert hashes, requirement


@pytest.mark.parametrize(("names", "extras"), [(["core"], []), (["core", "dev", "torch"], ["dev"])])
def test_what_the_project_asks_for_is_locked(names, extras):
    pins = locked(*names)
    for package, requirements in declared(extras).items():
        assert package in pins, f"{package}: run make lock"
        for requirement, _ in pins[package]:
            version = pinned_version(requirement)
            assert requirements.specifier.contains(version), f"{requirements}: run make lock"


def test_tools_of_the_makefile_are_locked():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    pins = locked(*PARTS)
    for asked in map(Requirement, groups["tools"]):
        for requirement, _ in pins[canonicalize_name(asked.name)]:
            assert asked.specifier.contains(pinned_version(requirement)), f"{asked}: run make lock"


def test_a_package_has_one_version_in_all_parts():
    for package, pins in locked(*PARTS).items():
        by_marker = {}
        for requirement, _ in pins:
            by_marker.setdefault(str(requirement.marker), set()).add(pinned_version(requirement))
        everywhere = by_marker.get("None", set())
        versions = {version for actual in by_marker.values() for version in actual}
        assert len(everywhere) <= 1, package
        assert not everywhere or versions == everywhere, f"{package}: run make lock"


def test_what_locked_packages_need_is_locked():
    everything = locked(*PARTS)
    for package in everything:
        try:
            needs = requires(package) or ()
        except ModuleNotFoundError:  # This package is for another system.
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in everything, f"{package} needs {need}"
