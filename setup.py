"""Which folder is which package: `simulator/` is installed as `paceline.simulator`, and so on."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("simulator", "validate", "scenarios")

setup(
    packages=[
        *find_namespace_packages(include=["paceline", "paceline.*"]),
        *(
            f"paceline.{package}"
            for folder in FOLDERS
            for package in find_namespace_packages(include=[folder, f"{folder}.*"])
            if "__pycache__" not in package
        ),
    ],
    package_dir={f"paceline.{folder}": folder for folder in FOLDERS},
)
