"""What `make` installs: every version is pinned, hashed, and the one that we say we test with."""

import itertools
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
LOCKS = {path.stem: path for path in sorted((ROOT / "requirements").glob("*.lock"))}
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(name):
    """Return the requirements of a lock, each with its number of hashes, by package."""
    found = {}
    for entry in LOCKS[name].read_text().replace("\\\n", " ").splitlines():
        pinned, *hashes = re.split(r"\s+(?=--hash)", entry.strip())
        assert all(SHA256.fullmatch(each) for each in hashes), entry
        requirement = Requirement(pinned)
        found.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(hashes)))
    return found


def declared(extras):
    """Return what pyproject.toml asks for, by package; `extras` that name extras are followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = project["optional-dependencies"]
    asked = list(map(Requirement, project["dependencies"]))
    waiting = [*extras]
    while waiting:
        for requirement in map(Requirement, of_extras[waiting.pop()]):
            if requirement.name == "paceline":
                waiting.extend(requirement.extras)
            else:
                asked.append(requirement)
    return {canonicalize_name(each.name): each for each in asked}


@pytest.mark.parametrize("name", LOCKS)
def test_everything_is_pinned_and_hashed(name):
    for pins in locked(name).values():
        for requirement, hashes in pins:
            assert [each.operator for each in requirement.specifier] == ["=="], requirement
            assert hashes, requirement


@pytest.mark.parametrize(("names", "extras"), [(["core"], []), (["dev", "torch"], ["dev"])])
def test_what_the_project_asks_for_is_locked(names, extras):
    pins = dict(itertools.chain.from_iterable(locked(name).items() for name in names))
    for package, asked in declared(extras).items():
        assert package in pins, f"{package}: run make lock"
        for requirement, _ in pins[package]:
            (version,) = (each.version for each in requirement.specifier)
            assert asked.specifier.contains(version), f"{asked}: run make lock"


def versions(pins):
    """Return each package's versions, which may depend on the system."""
    return {name: {str(each.specifier) for each, _ in found} for name, found in pins.items()}


def test_what_locked_packages_need_is_locked_alike():
    core, dev, torch = map(locked, ("core", "dev", "torch"))
    for name, found in (versions(core) | versions(torch)).items():
        assert versions(dev).get(name, found) == found, f"{name}: run make lock"
    everything = core | dev | torch
    for package in everything:
        try:
            needs = requires(package) or ()
        except ModuleNotFoundError:  # of another system
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert canonicalize_name(need.name) in everything, f"{package} needs {need}"


def test_constraints_are_what_is_locked():
    pins = locked("core") | locked("dev") | locked("torch")
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if not line.startswith("#"):
            wanted = Requirement(line)
            for requirement, _ in pins[canonicalize_name(wanted.name)]:
                assert requirement.specifier == wanted.specifier, f"{line}: run make lock"
