"""Write and read the job file: a pickled job with the user's functions.

Programs, models and data sets can be functions of a script. As with multiprocessing, its module is
imported in each process, so it must start its work under `if __name__ == "__main__":`.

Pickles run code when they are read. So only the user who started a run may have written its job.
Only the owner can read and write the file; every command makes a new one, and refuses another owner
or mode. No scenario, profile, trace or run directory contains a pickle.
"""

import os
import pickle
from multiprocessing import spawn
from pathlib import Path
from typing import cast

from paceline.simulator.errors import InputError

from ..torch_objective.data import DATA
from ..torch_objective.models import MODELS
from ..training.task import Job

JOB = "job"
READING = "PACELINE_READING"  # set while a script is imported to read a job
SCRIPT = ("init_main", "sys_path")  # keys for the script in multiprocessing's preparation data


def write_job(job: Job) -> Path:
    """Write a job to its folder. Raises InputError if it cannot be pickled."""
    path = job.folder / JOB
    registered = job.scenario.added, MODELS.added, DATA.added
    about = spawn.get_preparation_data("rank") if any(registered) else {}
    script = {key: value for key, value in about.items() if key.startswith(SCRIPT)}
    try:
        rest = pickle.dumps((MODELS.added, DATA.added, job))
        data = pickle.dumps((script, rest))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"programs, models and data sets of a real run must be functions of a module: {error}"
        ) from None
    path.unlink(missing_ok=True)  # an old link could point elsewhere
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(data)
    return path


def read_job(path: Path | str) -> Job:
    """Read a job; register its models and data. Raises InputError for others' files."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise InputError(f"{path}: other users can write or read it; use a folder of your own")
        script, rest = pickle.loads(file.read())
    os.environ[READING] = "yes"
    try:
        spawn.prepare(script)
    finally:
        del os.environ[READING]
    makes, loads, job = pickle.loads(rest)
    MODELS.added.update(makes)
    DATA.added.update(loads)
    return cast(Job, job)
