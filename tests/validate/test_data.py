"""Data sets from files that the tests write, whole and broken."""

import gzip

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.simulator.errors import InputError
from paceline.simulator.objectives.softmax import load_data
from paceline.validate.torch_objective import data
from tests.helpers.cases import looped

PARTS = {"train": 30, "t10k": 20}


def load(name, folder=None):
    return data.load_named(name, None if folder is None else str(folder))


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, dtype=">u4").tobytes()
    return head + array.tobytes()


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return {
        part: (
            rng.integers(0, 256, (size, 28, 28), dtype=np.uint8),
            rng.integers(0, 10, size, dtype=np.uint8),
        )
        for part, size in PARTS.items()
    }


@pytest.fixture(params=["", ".gz"])
def mnist(request, tmp_path, images):
    """Make a folder with the four files, plain or compressed."""
    for part, (x, y) in images.items():
        for name, array in ((f"{part}-images-idx3-ubyte", x), (f"{part}-labels-idx1-ubyte", y)):
            content = idx(array)
            content = gzip.compress(content) if request.param else content
            (tmp_path / f"{name}{request.param}").write_bytes(content)
    return tmp_path


@looped("name", ["mnist", "fashion-mnist"])
def test_idx_files_hold_images_and_labels(name, mnist, images):
    loaded = load(name, mnist)
    assert loaded.shape == (1, 28, 28)
    assert loaded.train_x.dtype == np.uint8
    for part, x, y in (
        ("train", loaded.train_x, loaded.train_y),
        ("t10k", loaded.test_x, loaded.test_y),
    ):
        assert np.array_equal(x[:, 0], images[part][0])
        assert np.array_equal(y, images[part][1])


def spoil(path, change):
    """Rewrite the content of a file, compressed or not."""
    squeezed = path.suffix == ".gz"
    content = path.read_bytes()
    content = change(gzip.decompress(content) if squeezed else content)
    path.write_bytes(gzip.compress(content) if squeezed else content)


@looped(
    ("change", "words"),
    [
        (lambda content: content[:-5], "its header says"),
        (lambda content: content + b"more", "its header says"),
        (lambda content: content[:3], "not an IDX file"),
        (lambda content: b"PK\x03\x04" + content[4:], "not an IDX file"),
        (lambda content: b"", "not an IDX file"),
    ],
)
def test_a_broken_idx_file_is_named(mnist, change, words):
    (path,) = mnist.glob("t10k-images*")
    spoil(path, change)
    with pytest.raises(InputError, match=rf"objective.folder: .*{path.name}: .*{words}.* again"):
        load("mnist", mnist)


def test_a_truncated_archive_is_named(mnist):
    (path,) = mnist.glob("train-labels*")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=f"{path.name}: .* again"):
        load("mnist", mnist)


def test_labels_must_fit_the_images(mnist):
    (path,) = mnist.glob("train-labels*")
    spoil(path, lambda content: idx(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(InputError, match="30 train images but 29 labels"):
        load("mnist", mnist)
    spoil(path, lambda content: idx(np.full(30, 10, dtype=np.uint8)))
    with pytest.raises(InputError, match="a label of 10, but there are 10 classes"):
        load("mnist", mnist)


@looped(
    ("name", "remedy"),
    [
        ("fashion-mnist", "apt install dataset-fashion-mnist"),
        ("mnist", "four IDX files of mnist"),
        ("cifar-10", r"binary version of cifar-10 \(https://www.cs.toronto.edu/~kriz/cifar.html"),
    ],
)
def test_missing_files_are_named_and_where_to_get_them(name, remedy, tmp_path):
    with pytest.raises(InputError, match=rf"objective.folder: {tmp_path}.*no such file.*{remedy}"):
        load(name, tmp_path)


def cifar(folder, names, rng):
    """Write files of CIFAR's binary version; return its images and its labels."""
    folder.mkdir()
    images, labels = [], []
    for size, name in enumerate(names, start=3):
        y = rng.integers(0, 10, (size, 1), dtype=np.uint8)
        x = rng.integers(0, 256, (size, 3 * 32 * 32), dtype=np.uint8)
        (folder / name).write_bytes(np.hstack([y, x]).tobytes())
        images.append(x.reshape(-1, 3, 32, 32))
        labels.append(y[:, 0])
    return images, labels


TEN = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def test_cifar_files_hold_images_and_labels(tmp_path):
    inside = tmp_path / "cifar-10-batches-bin"
    images, labels = cifar(inside, TEN, np.random.default_rng(1))
    for place in (tmp_path, inside):
        loaded = load("cifar-10", place)
        assert loaded.classes == 10
        assert np.array_equal(loaded.train_x, np.concatenate(images[:-1]))
        assert np.array_equal(loaded.train_y, np.concatenate(labels[:-1]))
        assert np.array_equal(loaded.test_x, images[-1])
        assert np.array_equal(loaded.test_y, labels[-1])


@looped("content", [b"", b"x" * 3072])
def test_a_truncated_cifar_file_is_named(content, tmp_path):
    cifar(tmp_path / "files", TEN, np.random.default_rng(1))
    (tmp_path / "files" / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(InputError, match=r"data_batch_3.bin: .* not a whole number of images"):
        load("cifar-10", tmp_path / "files")


@looped(("name", "shape"), [("digits", (1, 8, 8)), ("random-classification", (20,))])
def test_sets_of_scikit_learn_are_those_of_softmax(name, shape):
    """Samples and parts equal the simulator's; the column of ones is left out."""
    actual, theirs = load(name), load_data(name)
    assert actual.shape == shape
    scale = 16 if name == "digits" else 1
    for ours, other in ((actual.train_x, theirs.train_x), (actual.test_x, theirs.test_x)):
        assert np.array_equal(ours.reshape(len(ours), -1) / scale, other[:, :-1])
    assert np.array_equal(actual.train_y, theirs.train_y)
    assert np.array_equal(actual.test_y, theirs.test_y)
    with pytest.raises(InputError, match=f"objective.folder: {name} has no files; remove it"):
        load(name, "somewhere")


@looped("dtype", [np.uint8, np.float32])
def test_training_samples_are_standardised_by_channel_or_feature(dtype):
    rng = np.random.default_rng(2)
    images = rng.integers(0, 256, (50, 3, 6, 5)).astype(dtype)
    images[:, 2] = 7  # always: it becomes zero, not nan
    y = np.zeros(50, dtype=np.int64)
    for x, axes in ((images, (0, 2, 3)), (images.reshape(50, -1).astype(float), 0)):
        made = data.Data(x, y, x, y, 1)
        standard = (x - made.centre) / made.spread
        constant = np.all(x == x[:1], axis=axes)
        np.testing.assert_allclose(standard.mean(axis=axes), 0, atol=1e-6)
        np.testing.assert_allclose(standard.std(axis=axes), np.where(constant, 0, 1), atol=1e-5)


def test_a_registered_set_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(data.DATA, "added", {})
    x, y = np.eye(4), np.arange(4)
    folders = []

    def mine(folder):
        folders.append(folder)
        return data.Data(x, y, x, y, 4)

    data.register_data("mine", mine)
    assert load("mine", "here").shape == (4,)
    assert load("mine", "here") is load("mine", "here")
    assert [str(folder) for folder in folders] == ["here"]
    with pytest.raises(InputError, match=r"objective.data: unknown; did you mean `mine`"):
        load("mime")
