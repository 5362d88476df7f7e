"""TensorBoard's event files are read like its exported CSV, by the library itself."""

import sys

import numpy as np
import pytest

from paceline.simulator.errors import InputError
from paceline.simulator.inputs import log_table
from paceline.simulator.objectives.learning_curve import curve
from paceline.validate.logs import tables


def written(folder):
    """A file of losses in the form of torch's writer, and of step times in that of TensorFlow 2."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step in range(1, 41):
        old = Summary.Value(tag="loss", simple_value=2 + 3 * step**-0.5)
        writer.add_event(
            Event(step=step, wall_time=1e9 + 0.25 * step, summary=Summary(value=[old]))
        )
        new = scalar_pb("step_seconds", 0.25)
        writer.add_event(Event(step=step, wall_time=1e9 + 0.25 * step, summary=new))
    writer.close()
    (file,) = folder.glob("*tfevents*")
    return file


def test_an_event_file_is_a_table_of_its_scalars(tmp_path):
    pytest.importorskip("tensorboard")
    file = written(tmp_path)
    names, rows = log_table.read(file, "", "loss")
    assert names == ["step", "wall time", "loss", "step_seconds"]
    assert [cells[0] for _, cells in rows()] == [*range(1, 41)]
    tokens, loss, *_ = curve.points(file, {"tokens": 10, "workers": 2})
    np.testing.assert_array_equal(tokens, 20 * np.arange(1, 41))
    np.testing.assert_allclose(loss, 2 + 3 * np.arange(1, 41) ** -0.5, rtol=1e-6)
    log = tables.read(file)
    np.testing.assert_array_equal(log.step, np.arange(1, 41))
    np.testing.assert_allclose(log.seconds, 0.25)


def test_an_event_file_that_is_cut_short_keeps_its_first_rows(tmp_path):
    pytest.importorskip("tensorboard")
    file = written(tmp_path)
    file.write_bytes(file.read_bytes()[:-100])
    _, rows = log_table.read(file, "", "loss")
    assert 30 < len([*rows()]) <= 40


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"\0" * 64)
    with pytest.raises(InputError, match=r'pip install "paceline\[tensorboard\]"'):
        tables.read(file)
