"""Links between network namespaces take as long as they should, and leave nothing behind."""

import functools
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from multiprocessing import get_context
from pathlib import Path as Folder

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.validate.host import namespaces
from paceline.validate.host.namespaces import Links, Path, available, join
from paceline.validate.host.relay import MTU, QUEUE, RelayedPath, bare, marked
from tests.helpers.cases import looped
from tests.helpers.waiting import PATIENCE, wait_until

ROOT = Folder(__file__).parents[2]
PORT = 5000
PINGS = 10


@pytest.fixture
def linked():
    if reason := available():
        pytest.skip(reason)


def retried(test):
    """Retry up to three times, as machines are noisy."""

    @functools.wraps(test)
    def retry(*args, **kwargs):
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except AssertionError:
                pass
        return test(*args, **kwargs)

    return retry


# what a queue and a line do to packets


@given(
    latency=st.floats(0, 1),
    bandwidth=st.floats(1e3, 1e9) | st.just(math.inf),
    packets=st.lists(st.tuples(st.floats(0, 0.1), st.integers(20, 65000)), min_size=1),
)
def test_a_link_keeps_order_and_no_packet_beats_its_bandwidth_or_latency(
    latency, bandwidth, packets
):
    link = RelayedPath(1, Path(latency, bandwidth), latency)
    now, last, busy, start, sent = 0.0, 0.0, 0.0, 0.0, 0
    for gap, size in packets:
        now += gap
        release = link.release(size, now)
        if release < math.inf:
            assert release >= last
            assert release >= now + latency + size / bandwidth - 1e-12
            if now > busy:
                start, sent = now, 0
            sent += size
            busy = release - latency
            assert busy == pytest.approx(start + sent / bandwidth)  # works whenever it has work
            last = release
        else:
            assert busy - now > QUEUE / bandwidth * 0.999


def test_a_full_queue_drops_and_an_unlimited_link_never():
    link = RelayedPath(1, Path(0.0, 1e6), 0.0)
    burst = [link.release(1000, 0.0) for _ in range(2000)]
    assert sum(release < math.inf for release in burst) == pytest.approx(QUEUE / 1000, abs=2)
    link = RelayedPath(1, Path(0.1, math.inf), 0.1)
    assert {link.release(65000, 0.0) for _ in range(2000)} == {0.1}


def test_an_acknowledgement_goes_before_data_and_takes_its_time():
    link = RelayedPath(1, Path(0.5, 1000.0), 0.5)
    assert [link.release(1000, 0.0) for _ in range(3)] == [1.5, 2.5, 3.5]
    assert link.release(50, 0.25, first=True) == 0.25 + 0.05 + 0.5
    assert link.release(1000, 0.25) == pytest.approx(3 + 0.05 + 1 + 0.5)


@given(options=st.integers(0, 10), more=st.integers(0, 10), data=st.binary(max_size=9))
def test_acknowledgements_are_told_from_data_whatever_options_their_headers_have(
    options, more, data
):
    first, last = bytes([0x45 + options]), bytes([16 * (5 + more)])
    for protocol, is_tcp in ((6, True), (17, False)):
        head = first + bytes(8) + bytes([protocol]) + bytes(10 + 4 * options)
        packet = head + bytes(12) + last + bytes(7 + 4 * more) + data
        assert bare(packet) == (is_tcp and not data)


def ones_complement_sum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(rest=st.binary(min_size=18, max_size=40).filter(lambda rest: len(rest) % 2 == 0))
def test_a_mark_changes_two_bits_and_keeps_the_checksum_right(rest):
    header = bytearray(b"\x45\x02" + rest)
    header[10:12] = b"\0\0"
    header[10:12] = struct.pack("!H", 0xFFFF - ones_complement_sum(header[:20]))
    assert ones_complement_sum(header[:20]) == 0xFFFF
    packet = bytes(header)
    after = marked(packet)
    assert after[:2] == b"\x45\x03"
    assert after[2:10] + after[12:] == packet[2:10] + packet[12:]
    assert ones_complement_sum(after[:20]) == 0xFFFF
    for other in (b"\x45\x00", b"\x45\x01", b"\x45\x03"):  # not understood, or marked already
        assert marked(other + rest) == other + rest


@given(bandwidth=st.floats(1, 1e12), least=st.sampled_from([1500, 9000]))
def test_packets_pass_within_a_millisecond_or_are_smallest(bandwidth, least):
    size = Path(0.0, bandwidth, least).mtu
    assert least <= size <= MTU[1]
    assert size == least or size / bandwidth <= 1e-3


# nodes


def on_nodes(paths, *programs):
    """Run each program in a process on a node of its own; return what they return."""
    with ExitStack() as stack:
        links = stack.enter_context(Links(paths, len(programs)))
        pools = [ProcessPoolExecutor(1, get_context("spawn")) for _ in programs]
        futures = [
            stack.enter_context(pool).submit(_node, rank, links.socket, program)
            for rank, (pool, program) in enumerate(zip(pools, programs, strict=True))
        ]
        return [future.result() for future in futures]


def _node(rank, path, program):
    socket.setdefaulttimeout(PATIENCE)
    return program(*join(rank, path, timeout=PATIENCE))


def connect():
    """Connect to node 0 as soon as it listens."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("10.77.0.1", PORT))
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(0.005)


def answer(peers, address, interface):
    """Answer pings, by TCP and UDP, with when they arrived: one host has one monotonic clock."""
    with (
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.create_server((address, PORT)) as server,
    ):
        udp.bind((address, PORT))
        for _ in range(peers):
            tcp, peer = server.accept()
            with tcp:
                for _ in range(PINGS):
                    tcp.recv(1)
                    tcp.sendall(struct.pack("d", time.monotonic()))
                for _ in range(PINGS):
                    _, peer = udp.recvfrom(1)
                    udp.sendto(struct.pack("d", time.monotonic()), peer)


def ask(address, interface):
    """Return the least seconds there and back of TCP, and those of UDP."""
    with connect() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.connect(tcp.getpeername())
        return [_ping(protocol) for protocol in (tcp, udp)]


def _ping(connection):
    there, back = [], []
    for _ in range(PINGS):
        sent = time.monotonic()
        connection.sendall(b"?")
        (arrived,) = struct.unpack("d", connection.recv(8))
        there.append(arrived - sent)
        back.append(time.monotonic() - arrived)
    return min(there), min(back)


@pytest.mark.alone
@retried
def test_latencies_hold_within_a_percent_each_way_among_three_nodes(linked):
    latencies = {(0, 1): 0.01, (1, 0): 0.01, (0, 2): 0.02, (2, 0): 0.05}
    paths = {pair: Path(latency) for pair, latency in latencies.items()}
    _, *measured = on_nodes(paths, functools.partial(answer, 2), ask, ask)
    for rank, protocols in enumerate(measured, start=1):
        for there, back in protocols:
            for seconds, pair in ((there, (rank, 0)), (back, (0, rank))):
                # the nodes themselves need some 0.1 ms to wake
                assert abs(seconds - latencies[pair]) < 0.01 * latencies[pair] + 1.5e-4


def counters(interface):
    """Return bytes received and sent by this namespace's interface, with headers."""
    for line in Folder("/proc/net/dev").read_text("ascii").splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[0]), int(numbers.split()[8])
    raise ValueError(interface)


def swap(sizes, address, interface):
    """Receive, then send; twice, for the first time opens TCP's window."""
    with socket.create_server((address, PORT)) as server, server.accept()[0] as tcp:
        for _ in range(2):
            receive(tcp, sizes[0])
            tcp.sendall(b"!")
            tcp.sendall(bytes(sizes[1]))
            receive(tcp, 1)
    return counters(interface)


def time_swap(sizes, address, interface):
    """Return how many seconds each way took the second time."""
    with connect() as tcp:
        for _ in range(2):
            start = time.monotonic()
            tcp.sendall(bytes(sizes[0]))
            receive(tcp, 1)
            turn = time.monotonic()
            receive(tcp, sizes[1])
            tcp.sendall(b"!")
            end = time.monotonic()
    return turn - start, end - turn


def receive(connection, size):
    while size:
        size -= len(connection.recv(min(size, 1 << 20)))


@pytest.mark.alone
@retried
def test_each_way_has_its_own_bandwidth(linked):
    """10 and 100 Mbit/s; headers are the 4 % above 1."""
    rates, sizes = (1e7 / 8, 1e8 / 8), (1_000_000, 8_000_000)
    paths = {(1, 0): Path(0.002, rates[0]), (0, 1): Path(0.002, rates[1])}
    programs = [functools.partial(function, sizes) for function in (swap, time_swap)]
    (received, sent), seconds = on_nodes(paths, *programs)
    for size, rate, second in zip(sizes, rates, seconds, strict=True):
        assert 0.98 < second / (size / rate) < 1.1
    assert 1 < (received + sent) / (2 * sum(sizes)) < 1.1


# nothing stays behind

NODE = """
import os, sys
from paceline.validate.host.namespaces import join
join(int(sys.argv[1]), sys.argv[2])
print(os.readlink("/proc/self/ns/net"), flush=True)
sys.stdin.read()
"""
LAUNCHER = """
import json, os, subprocess, sys
from paceline.validate.host.namespaces import Links
with Links({}, 2) as links:
    nodes = [
        subprocess.Popen(
            [sys.executable, "-c", sys.argv[1], str(rank), links.socket],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]
    namespaces = [node.stdout.readline().strip() for node in nodes]
    pids = [links.relay.pid, *(node.pid for node in nodes)]
    print(json.dumps([pids, namespaces, os.path.dirname(links.socket)]), flush=True)
    sys.stdin.read()
    [node.communicate() for node in nodes]
"""


def left(pids, spaces, folder):
    """Return which of these still exist."""
    actual = {folder} if os.path.exists(folder) else set()
    for process in Folder("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is none of ours
            actual |= {int(process.name), os.readlink(process / "ns/net")}
    return actual & {*pids, *spaces, folder}


@looped("how", [None, signal.SIGTERM, signal.SIGKILL])
def test_nothing_remains_whatever_ends_the_launcher(linked, how):
    command = [sys.executable, "-c", LAUNCHER, NODE]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        all_of_it = json.loads(launcher.stdout.readline())
        pids, spaces, folder = all_of_it
        assert left(*all_of_it) == {*pids, *spaces, folder}
        assert os.readlink("/proc/self/ns/net") not in spaces
        if how:
            launcher.send_signal(how)
        launcher.stdin.close()
        launcher.wait(PATIENCE)
    wait_until(lambda: not left(*all_of_it))
    assert namespaces.INTERFACE not in Folder("/proc/net/dev").read_text()


# what is wrong


def refused(rank, path, timeout):
    with pytest.raises((ConnectionError, TimeoutError)) as error:
        join(rank, path, timeout)
    return str(error.value)


@looped(
    ("rank", "timeout", "sentence"),
    [
        (7, PATIENCE, "the relay refused node 7 or has ended; see its last lines"),
        (1, 0.1, "not all nodes joined within 0.1 s; see their logs"),
    ],
)
def test_a_node_that_cannot_join_says_why(linked, rank, timeout, sentence):
    with Links({}, 2) as links, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(refused, rank, links.socket, timeout).result() == sentence


def test_the_relay_lets_go_of_a_node_that_ends(linked):
    """Otherwise its network would remain, and its rank be refused."""
    with Links({}, 1) as links:
        for _ in range(2):
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                joined = pool.submit(join, 0, links.socket, PATIENCE).result()
                assert joined == ("10.77.0.1", namespaces.INTERFACE)


@looped(
    ("error", "sentence"),
    [
        (FileNotFoundError(2, "no file", "/dev/net/tun"), "no /dev/net/tun; run `modprobe tun`"),
        (PermissionError(13, "denied", "/dev/net/tun"), "no permission for /dev/net/tun; run as"),
        (PermissionError(1, "denied", "unshare"), "no permission for network namespaces; run as"),
        (OSError(22, "Invalid argument", "unshare"), "no network namespaces ([Errno 22] Invalid"),
    ],
)
def test_where_it_is_not_possible_a_sentence_says_why(monkeypatch, error, sentence):
    def isolate():
        raise error

    monkeypatch.setattr(namespaces, "_isolate", isolate)
    assert namespaces._try().startswith(sentence)


def test_links_load_neither_torch_nor_numpy():
    """Importing these would start threads before a node joins."""
    code = (
        "import sys, paceline.validate.host.namespaces; print({'torch', 'numpy'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
