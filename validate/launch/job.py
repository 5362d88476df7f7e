"""A job as it goes to the processes that do it, with what a user's script has defined.

Programs, models and data sets may be functions of a script: as multiprocessing does, its module is
then imported there, so that it must start its work under `if __name__ == "__main__":`.

Pickles run code when they are read. So only the user who started a run can have written its job:
it is a file that nobody else may write or read, made anew by every command, and of another owner
or mode it is not opened. Nothing that a scenario, profile, trace or run directory holds is one.
"""

import os
import pickle
from multiprocessing import spawn
from pathlib import Path

from paceline.simulator.errors import InputError
from paceline.validate.torch_objective.data import DATA
from paceline.validate.torch_objective.models import MODELS
from paceline.validate.training.task import Job

JOB = "job"
READING = "PACELINE_READING"  # set while a script is imported to read a job
SCRIPT = ("init_main", "sys_path")  # what of multiprocessing's preparation is about a script


def write_job(job: Job) -> Path:
    """Write a job into its folder; return the file. Raises InputError for what cannot go there."""
    path = job.folder / JOB
    own = job.programs, MODELS.added, DATA.added
    about = spawn.get_preparation_data("rank") if any(own) else {}
    script = {key: value for key, value in about.items() if key.startswith(SCRIPT)}
    try:
        rest = pickle.dumps((MODELS.added, DATA.added, job))
        data = pickle.dumps((script, rest))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"programs, models and data sets of a real run must be functions of a module: {error}"
        ) from None
    path.unlink(missing_ok=True)  # or links would lead elsewhere
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(data)
    return path


def read_job(path: Path | str) -> Job:
    """Read a job, and let this process know what it needs. Raises InputError for others' files."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise InputError(f"{path}: others can write or read it; run in a folder of your own")
        script, rest = pickle.loads(file.read())
    os.environ[READING] = "yes"
    try:
        spawn.prepare(script)
    finally:
        del os.environ[READING]
    makes, loads, job = pickle.loads(rest)
    MODELS.added.update(makes)
    DATA.added.update(loads)
    found: Job = job
    return found
