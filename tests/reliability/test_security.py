"""Files of others are read, and do nothing else. See docs/concepts/trust.md."""

import ast
import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import paceline
import paceline.command_line
from paceline.simulator.errors import InputError
from paceline.simulator.inputs.messages import CONTROL_CHARACTERS, show, visible
from paceline.simulator.load.load import load, parse
from paceline.simulator.results import store
from tests.command_line.test_command_line import ROOT, SCENARIO
from tests.helpers.cases import beside
from tests.helpers.waiting import PATIENCE

pytestmark = pytest.mark.long

OURS = [
    ROOT / "paceline/command_line.py",
    *(ROOT / "simulator").rglob("*.py"),
    *(ROOT / "validate").rglob("*.py"),
]
CLEAR = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e"


def toml(**changes):
    """A scenario with a line replaced by others."""
    text = SCENARIO
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    return text


SAMPLES = (
    'compute = { dist = "exponential", mean = "100 ms" }',
    'compute = { dist = "empirical", file = "%s" }',
)


@pytest.fixture
def folder(tmp_path):
    """A folder with a scenario's own folder in it, and a secret beside that."""
    (tmp_path / "secret.csv").write_text("0.1\n0.2\n")
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def write(folder, file, name="test.toml"):
    text = SCENARIO.replace(SAMPLES[0], SAMPLES[1] % file)
    (folder / name).write_text(text)
    return folder / name


# nothing runs


@pytest.fixture(scope="module")
def texts():
    """Our modules, parsed, by name."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in OURS}


def calls(tree):
    """Dotted names of all that a module calls, with the keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield (
                ast.unparse(node.func),
                {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords},
            )


UNPICKLING = {"validate/training/messages.py", "validate/launch/job.py"}
"""Between processes of one run: docs/concepts/trust.md says why that is within what is trusted."""
IMPORTING = {  # by a name that our own text has, or that an installed package offers
    "paceline/__init__.py", "paceline/command_line.py", "simulator/load/document.py",
    "simulator/studies/display.py",
    "validate/torch_objective/models.py",
}  # fmt: skip


def test_nothing_that_reads_files_runs_code(texts):
    for name, tree in texts.items():
        for called, keywords in calls(tree):
            last = called.split(".")[-1]
            assert called not in ("eval", "exec", "compile", "__import__", "os.system"), name
            assert keywords.get("shell", "False") == "False", f"{name}: {called}"
            assert "yaml" not in called, name
            assert not called.startswith(("marshal.", "shelve.", "joblib.", "dill.")), name
            if called.startswith("pickle.") and last in ("load", "loads", "Unpickler"):
                assert name in UNPICKLING, name
            if called in ("np.load", "numpy.load"):
                assert keywords["allow_pickle"] == "False", name
            if called == "torch.load":
                assert keywords["weights_only"] == "True", name
            if last == "import_module":
                assert name in IMPORTING, name


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_in_a_run_directory_is_no_run(folder, tmp_path):
    import numpy as np

    bomb = np.array([Bomb(tmp_path / "boom")], dtype=object)
    np.savez(folder / "kept.npz", header=bomb, curve=bomb, staleness=bomb)
    np.save(folder / "bare.npy", bomb, allow_pickle=True)
    (folder / "plain.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    for path in folder.glob("*.np*"):
        with pytest.raises(ValueError, match=r"."):
            store.decode(path.read_bytes())
    assert not (tmp_path / "boom").exists()


def test_programs_are_not_found_by_a_modules_name(folder):
    for name in ("os:system", "os.system", "tests.helpers.programs", "../../evil"):
        (folder / "test.toml").write_text(toml(a=('name = "ssgd"', f'name = "{name}"')))
        with pytest.raises(InputError, match="unknown"):
            load(folder / "test.toml")


# files that files name


@pytest.mark.parametrize("how", ["..", "absolute", "link", "folder link", "sideways"])
def test_samples_elsewhere_need_leave(folder, how):
    secret = folder.parent / "secret.csv"
    names = {"..": "../secret.csv", "absolute": str(secret), "sideways": "x/../../secret.csv",
             "link": "samples.csv", "folder link": "data/secret.csv"}  # fmt: skip
    (folder / "samples.csv").symlink_to(secret)
    (folder / "data").symlink_to(folder.parent)
    (folder / "x").mkdir()
    path, name = write(folder, names[how]), names[how]
    with pytest.raises(InputError) as error:
        load(path)
    refusal = str(error.value)
    assert refusal.startswith(f"{path}: cluster.compute.file = {show(name)}: outside the folder")
    assert "--allow-paths" in refusal
    assert "allow_paths=True" in refusal
    assert load(path, allow_paths=True).cluster.compute.expectation == pytest.approx(0.15)
    assert parse(load(path, allow_paths=True).table, file=str(path), folder=folder)
    own = write(folder, "beside.csv")
    assert load(own, [f"cluster.compute.file={secret}"])  # the user's own word


def test_files_beside_and_below_need_none(folder):
    (folder / "data").mkdir()
    shutil.copy(folder.parent / "secret.csv", folder / "data" / "own.csv")
    for name in ("data/own.csv", str(folder / "data" / "own.csv"), "data/../data/own.csv"):
        assert load(write(folder, name)).cluster.workers == 4


NAMING = {
    "regions": ('latency = "20 ms"', 'regions = "../secret.csv"'),
    "platform": ('latency = "20 ms"', 'model = "flows"\nplatform = "../secret.csv"'),
    "folder": ('kind = "quadratic"\ndimension = 10',
               'kind = "torch"\nmodel = "mlp"\ndata = "mnist"\nfolder = ".."'),
    "extends": ('title = "A test"', 'extends = "../secret.csv"'),
    "membership": ('workers = 4', 'workers = 4\nmembership = "../secret.csv"'),
    "trace": ('workers = 4', 'workers = 4\nmembership = { file = "../secret.csv" }'),
    "profile of a worker": ('workers = 4', 'workers = 4\nprofile = { file = "../secret.csv" }'),
}  # fmt: skip


@pytest.mark.parametrize("key", NAMING)
def test_every_key_that_names_a_file(folder, key):
    path = folder / "test.toml"
    path.write_text(toml(one=NAMING[key]))
    with pytest.raises(InputError, match=r"outside the folder of that file; .*--allow-paths"):
        load(path)


def test_every_module_that_opens_a_scenarios_files_is_known():
    """A module that is new here names files by keys which belong into `paths.NAMING`."""
    actual = {
        path.relative_to(ROOT / "simulator").as_posix()
        for path in (ROOT / "simulator").rglob("*.py")
        if '.get("folder"' in path.read_text("utf-8")
    }
    times = {"distributions/time_profile.py", "distributions/empirical.py"}
    assert actual == times | {"scenario/fields.py"}


PROFILE = '[calibration]\nsd = {}\n[cluster]\ncompute = { dist = "empirical", file = "%s" }\n'


def test_a_profile_stays_in_its_folder(folder):
    inner = folder / "profiles"
    inner.mkdir()
    (folder / "beside.csv").write_text("0.1\n")
    (inner / "p.toml").write_text(PROFILE % "../beside.csv")
    text = toml(t=('title = "A test"', 'extends = "profiles/p.toml"'), c=(SAMPLES[0], ""))
    (folder / "test.toml").write_text(text)
    for overrides in ([], [f"extends={inner / 'p.toml'}"]):
        with pytest.raises(
            InputError, match=r'p\.toml: cluster\.compute\.file = "\.\./beside\.csv"'
        ):
            load(folder / "test.toml", overrides)
    assert load(folder / "test.toml", allow_paths=True)
    (inner / "p.toml").write_text(PROFILE % "own.csv")
    (inner / "own.csv").write_text("0.1\n")
    assert load(folder / "test.toml").cluster.compute.expectation == pytest.approx(0.1)


def test_a_profile_is_not_looked_for_in_the_current_folder(folder, monkeypatch):
    (folder / "p.toml").write_text("[calibration]\nsd = {}\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "test.toml").write_text(toml(t=('title = "A test"', 'extends = "p.toml"')))
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="no such file"):
        load("sub/test.toml")
    assert load("sub/test.toml", ["extends=p.toml"])  # as the command line says


def test_the_command_line_says_how(folder, capsys, monkeypatch):
    path = str(write(folder, "../secret.csv"))
    monkeypatch.chdir(folder)
    short = ["--set", "run.steps=5", "--seeds", "1", "--figure", "svg"]
    assert paceline.command_line.run(["simulate", path, *short]) == 2
    assert "--allow-paths" in capsys.readouterr().err
    assert paceline.command_line.run(["simulate", path, *short, "--allow-paths"]) == 0
    assert paceline.command_line.run(["theory", path]) == 2
    assert paceline.command_line.run(["theory", path, "--allow-paths"]) == 0


def test_calibrate_copies_no_file_from_elsewhere(folder):
    profile = pytest.importorskip("paceline.validate.calibration.profile")
    (folder / "p.toml").write_text(PROFILE % "../secret.csv")
    with pytest.raises(InputError, match="outside the folder of that file; put a copy beside it"):
        profile.read(folder / "p.toml")


# what is shown


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("title", ('title = "A test"', 'title = "%s"')),
        ("algorithm[0].label", ('name = "ssgd"', 'name = "ssgd"\nlabel = "%s"')),
        (
            "cluster.group[0].name",
            ("[network]", '[[cluster.group]]\nname = "%s"\nworkers = 1\n[network]'),
        ),
    ],
)
def test_control_characters_are_refused(folder, capsys, where, change):
    written = "".join(f"\\u{ord(character):04x}" for character in CLEAR)
    (folder / "test.toml").write_text(toml(one=(change[0], change[1] % written)))
    assert paceline.command_line.run(["simulate", str(folder / "test.toml")]) == 2
    output = capsys.readouterr().err
    assert f"{where} = " in output
    assert "control characters" in output
    assert not CONTROL_CHARACTERS.search(output)


def test_nothing_reaches_the_terminal_raw(folder, capsys, monkeypatch):
    """Control characters of a run directory, an XML file, a folder's name or a wrong key."""
    monkeypatch.chdir(folder)
    (folder / "test.toml").write_text(SCENARIO)
    short = ["--set", "run.steps=20", "--out", "run"]
    assert paceline.command_line.run(["simulate", "test.toml", *short]) == 0
    for name in ("run.json", "curves.csv"):
        text = (folder / "run" / name).read_text()
        escaped = "".join(f"\\u{ord(item):04x}" for item in CLEAR) if name == "run.json" else CLEAR
        (folder / "run" / name).write_text(text.replace("local-sgd tau=10", f"local {escaped}"))
    document = json.loads((folder / "run/run.json").read_text())
    (folder / "run/run.json").write_text(json.dumps(document | {"parts": []}))
    capsys.readouterr()
    assert paceline.command_line.run(["compare", "run", "run", "--as-measured"]) == 0
    assert paceline.command_line.run(["simulate", f"no{CLEAR}.toml"]) == 2
    assert paceline.command_line.run(["simulate", "test.toml", "--set", f"run.{CLEAR}=3"]) == 2
    shown = capsys.readouterr()
    assert "local " in shown.out
    assert not CONTROL_CHARACTERS.search(shown.out)
    assert not CONTROL_CHARACTERS.search(shown.err)
    assert visible(f"a\n\tb{CLEAR}") == r"a{}\u001b[2J\u001b]0;owned\u0007\u009b31m\u202e".format(
        "\n\tb"
    )


def test_markup_of_terminals_and_formulas_is_text(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    label = r"[bold red]$\\frac{1$ <b>%{x}[/]"
    (folder / "test.toml").write_text(
        toml(one=('name = "ssgd"', f'name = "ssgd"\nlabel = "{label}"'))
    )
    arguments = ["--set", "run.steps=20", "--set", "title=$\\bad{", "--figure", "svg,png"]
    assert paceline.command_line.run(["simulate", "test.toml", *arguments]) == 0
    shown = capsys.readouterr().out.replace("\n", "")
    assert "[bold red]" in shown


def test_the_explorers_labels_are_text():
    pytest.importorskip("dash")
    from paceline.simulator.reports.explore import explorer
    from paceline.simulator.results.figures.interactive import literal

    bad = "<b>%{x}&lt;<a href='javascript:alert(1)'>"
    scenario = load("adacomm/figure3")
    table = scenario.table | {
        "algorithm": [scenario.table["algorithm"][0] | {"label": bad}],
        "run": scenario.table["run"] | {"seeds": 1},
    }
    named = parse(table, file=scenario.file, folder=Path(scenario.file).parent)
    result = explorer.Explorer(named).result({})
    drawn = explorer.figures(result)
    entries = drawn["error"].pop("lines")  # figures.js writes their names as text
    assert [entry["name"] for entry in entries.values()] == [bad]
    assert bad not in repr(drawn)
    assert "<a" not in repr(drawn)
    assert bad not in literal(bad)
    assert "<" not in literal(bad)
    assert "%{" not in literal(bad)
    assert [*result.groups] == [bad]


# who else may come in


def listening(process):
    """Addresses at which a process and its children take connections."""
    actual = set()
    with_children = [process, *process.children(recursive=True)]
    for child in with_children:
        try:
            sockets = child.net_connections(kind="inet")
        except AttributeError:  # psutil before 6
            sockets = child.connections(kind="inet")
        except psutil.NoSuchProcess:
            continue
        actual |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return actual


def loopback(address):
    return address in ("::1", "::ffff:127.0.0.1") or address.startswith("127.")


def test_the_explorer_listens_to_this_machine_alone():
    from paceline.simulator.reports.explore import serve

    me, before = psutil.Process(), listening(psutil.Process())
    with serve._listen(0):
        assert listening(me) - before <= {"127.0.0.1"}
        assert "127.0.0.1" in listening(me)


TRAINING = beside(__file__, "training.toml")


def test_a_real_run_is_private(folder):
    """Its processes meet on loopback, in a folder and by files that no other user can read."""
    pytest.importorskip("torch")
    (folder / "test.toml").write_text(TRAINING)
    started = subprocess.Popen(
        [sys.executable, "-m", "paceline", "validate", "test.toml", "--out", "out"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, umask=0,
    )  # fmt: skip
    try:
        process, seen, parts = psutil.Process(started.pid), set(), folder / "out/measured/.parts"
        end = time.monotonic() + PATIENCE
        while not (seen and (parts / "job").exists()) and time.monotonic() < end:
            assert started.poll() is None
            seen |= listening(process)
            time.sleep(0.02)
        assert seen
        assert all(map(loopback, seen)), seen
        assert stat.S_IMODE((parts / "job").stat().st_mode) == 0o600
        assert stat.S_IMODE(parts.stat().st_mode) == 0o700
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_a_job_that_others_may_have_written_is_not_opened(folder):
    job = pytest.importorskip("paceline.validate.launch.job")
    bomb = folder / "job"
    bomb.write_bytes(pickle.dumps(Bomb(folder / "boom")))
    bomb.chmod(0o666)
    with pytest.raises(InputError, match="other users can write or read it"):
        job.read_job(bomb)
    bomb.chmod(0o600)
    (folder / "link").symlink_to(bomb)
    with pytest.raises(OSError, match=r"."):
        job.read_job(folder / "link")
    assert not (folder / "boom").exists()


def test_a_job_is_written_anew(folder, monkeypatch):
    """Whatever lies there, a link to somewhere else for instance."""
    job = pytest.importorskip("paceline.validate.launch.job")
    from paceline.validate.training.task import Job

    elsewhere = folder.parent / "secret.csv"
    (folder / "job").symlink_to(elsewhere)
    scenario = load("quickstart")
    path = job.write_job(Job(scenario, (), folder, "cpu"))
    assert elsewhere.read_text() == "0.1\n0.2\n"
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert job.read_job(path).scenario == scenario


def test_a_rank_hands_in_nothing_elsewhere(folder):
    rendezvous = pytest.importorskip("paceline.validate.training.rendezvous")
    from paceline.simulator.errors import RunError

    class Store(dict):
        def get(self, key):
            return {"files 1": b'{"../../evil": 3}'}.get(key, b"bad")

    with pytest.raises(RunError, match="outside"):
        rendezvous.collect(Store(), 1, folder)
    assert not (folder.parent / "evil").exists()


def test_ranks_on_several_machines_come_with_a_warning(monkeypatch):
    launch = pytest.importorskip("paceline.validate.launch.launch")
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}.items():
        monkeypatch.setenv(key, value)
    (message,) = launch.exposure_warnings()
    assert "a network that you trust" in message
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert launch.exposure_warnings() == []


def test_nothing_has_a_place_in_tmp_that_others_can_foresee(texts):
    for name, tree in texts.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = node.value == "/dev/shm"  # in a message, without anything in it
                foreseen = node.value.startswith(("/tmp", "/var/tmp", "/dev/shm"))
                assert named or not foreseen, name
        for called, _ in calls(tree):
            assert called.split(".")[-1] not in ("mktemp", "gettempdir"), name


# Dask


def certificates(folder):
    """An authority, and a certificate of its own for who is admitted."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")

    def run(*arguments):
        done = subprocess.run(
            [openssl, *arguments], check=False, cwd=folder, capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for name in ("ca", "stranger"):
        files = "-keyout", f"{name}.key", "-out", f"{name}.pem"
        run("req", "-x509", *curve, *files, "-subj", "/CN=x")
    run("req", *curve, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    run("x509", "-req", "-in", "node.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", "node.pem")  # fmt: skip
    return {key: str(folder / key) for key in ("ca.pem", "node.pem", "node.key")}


def admitted(host, port, files):
    """Return whether a client with a certificate (or without: None) can talk to a scheduler."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files:
        context.load_cert_chain(files["node.pem"], files["node.key"])
    try:
        with (
            socket.create_connection((host, port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain) as secure,
        ):
            return bool(secure.recv(1))  # it says hello first
    except OSError:
        return False


def test_a_dask_cluster_with_tls(folder):
    """As docs/how-to/sweep-on-dask.md shows it; a client without a certificate is refused."""
    dask = pytest.importorskip("dask")
    distributed = pytest.importorskip("distributed")
    files = certificates(folder)
    node = {"tls_ca_file": files["ca.pem"], "require_encryption": True}
    for role in ("scheduler", "worker", "client"):
        node |= {f"tls_{role}_cert": files["node.pem"], f"tls_{role}_key": files["node.key"]}
    client = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": files["ca.pem"],
        "distributed.comm.tls.client.cert": files["node.pem"],
        "distributed.comm.tls.client.key": files["node.key"],
    }
    points = {"cluster.workers": [2]}
    scenario = parse(store_table())
    cluster = distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
        protocol="tls", host="127.0.0.1", security=distributed.Security(**node),
    )  # fmt: skip
    with cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1")
        with dask.config.set(client):
            there = paceline.sweep(scenario, points, seeds=1, dask=address)
        host, port = address.removeprefix("tls://").split(":")
        assert admitted(host, int(port), files)
        assert not admitted(host, int(port), None)
    assert there.records() == paceline.sweep(scenario, points, seeds=1).records()


def store_table():
    import tomllib

    return tomllib.loads(SCENARIO.replace("steps = 200", "steps = 5"))


def test_a_named_pipe_does_not_block(tmp_path):
    """Wherever a file belongs, a pipe is refused at once, by every reader."""
    from paceline.simulator.inputs import csv_files, units, untrusted
    from paceline.simulator.load.document import read_toml
    from paceline.simulator.results import store
    from paceline.simulator.scenario import network, simgrid
    from paceline.validate.calibration import calibrate, profile
    from paceline.validate.training import events

    pipe = tmp_path / "run.json"
    os.mkfifo(pipe)
    for read in (
        read_toml, profile.read, network.read_regions, simgrid.read, events.read,
        lambda path: [*csv_files.rows(path, [units.seconds], "one time")],
        lambda path: store.read(path.parent), untrusted.text,
        lambda path: calibrate.read_runs([path.parent]),
    ):  # fmt: skip
        with pytest.raises((InputError, ValueError, OSError), match=r"regular|whole|run"):
            read(pipe)


def test_only_one_function_opens_what_others_wrote():
    """Every other place that reads a file is listed here, with what it reads."""
    allowed = {
        "simulator/load/listing.py",  # shipped scenarios
        "simulator/network/fabric/records.py",  # its own source
        "simulator/reports/page/page.py",  # shipped style and script
        "simulator/studies/papers/reproduce.py",  # a shipped template, and claims
        "simulator/studies/execution.py",  # source files
        "simulator/results/store.py",  # parts that this version has kept
        "simulator/studies/size.py",  # the kernel's limit
    }
    opens = re.compile(r"(?<!def )(?<![.\w])open\(|\.open\(\"|read_text\(|read_bytes\(|np\.load\(")
    actual = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "simulator").rglob("*.py")
        if opens.search(path.read_text("utf-8"))
    }
    assert actual - allowed == {"simulator/inputs/untrusted.py"}
