"""Communication graphs: what theory says of them and their mixing matrices."""

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from paceline.simulator.programs.pieces.graph import Complete, GraphOf, Ring, Torus
from tests.helpers.cases import looped

adapter = TypeAdapter(GraphOf)
read = adapter.validate_python
KINDS = {"ring": Ring(), "torus": Torus(), "complete": Complete()}


@st.composite
def worlds(draw):
    """A graph and a number of workers that it can be made for."""
    workers = draw(st.integers(1, 40))
    return draw(st.sampled_from([Ring(), Torus(), Complete()])), workers


def joined(graph, workers, ask):
    """The adjacency matrix of what `ask` (neighbours, partners) says."""
    matrix = np.zeros((workers, workers), dtype=int)
    for rank in range(workers):
        others = ask(rank, workers)
        assert list(others) == sorted(set(others) - {rank})
        matrix[rank, list(others)] = 1
    return matrix


def mixing(graph, workers):
    """The mixing matrix W."""
    matrix = np.zeros((workers, workers))
    for rank in range(workers):
        row = graph.weights(rank, workers)
        assert [other for other, _ in row] == sorted({*graph.neighbours(rank, workers), rank})
        for other, weight in row:
            matrix[rank, other] = weight
    return matrix


def connected(adjacency):
    return (np.linalg.matrix_power(np.eye(len(adjacency)) + adjacency, len(adjacency)) > 0).all()


def spectrum(graph, workers):
    return np.linalg.eigvalsh(mixing(graph, workers))


@given(worlds())
def test_a_graph_is_connected_and_undirected(world):
    graph, workers = world
    adjacency = joined(graph, workers, graph.neighbours)
    assert (adjacency == adjacency.T).all()
    assert connected(adjacency)


@given(worlds())
def test_mixing_keeps_the_mean_and_contracts_everything_else(world):
    graph, workers = world
    matrix = mixing(graph, workers)
    assert (matrix == matrix.T).all()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-15 * workers)
    moduli = np.sort(np.abs(np.linalg.eigvalsh(matrix)))
    assert moduli[-1] == pytest.approx(1)
    assert (moduli[:-1] < 1 - 1e-3).all()


@given(worlds())
def test_everybody_has_a_partner_of_the_other_colour(world):
    graph, workers = world
    active = np.array([graph.active(rank, workers) for rank in range(workers)])
    pairs = joined(graph, workers, graph.partners)
    crossing = active[:, None] != active[None, :]
    assert (pairs == joined(graph, workers, graph.neighbours) * crossing).all()
    assert connected(pairs)
    assert workers == 1 or pairs.sum(1).min() >= 1


def test_a_torus_is_coloured_as_a_chessboard():
    colours = [[Torus().active(4 * row + column, 12) for column in range(4)] for row in range(3)]
    assert colours == [[True, False] * 2, [False, True] * 2, [True, False] * 2]
    assert Torus().partners(0, 12) == (1, 3, 4)  # 8, above, is of its colour


def test_a_torus_is_as_near_to_a_square_as_can_be():
    for workers, columns in {16: 4, 12: 4, 40: 8, 7: 7, 2: 2}.items():
        for rank in range(workers):
            row, column = divmod(rank, columns)
            beside = {row * columns + (column + offset) % columns for offset in (-1, 1)}
            above = {(rank + offset * columns) % workers for offset in (-1, 1)}
            assert Torus().neighbours(rank, workers) == tuple(sorted((beside | above) - {rank}))
    assert Torus().neighbours(0, 12) == (1, 3, 4, 8)


@looped("workers", range(3, 20))
def test_the_eigenvalues_of_a_ring(workers):
    """W is circulant with rows (1/3, 1/3, 1/3); the least is -1/3 where `workers` is even."""
    angles = 2 * np.pi * np.arange(workers) / workers
    expected = np.sort(1 / 3 + 2 / 3 * np.cos(angles))
    np.testing.assert_allclose(spectrum(Ring(), workers), expected, atol=1e-14)


@looped(("rows", "columns"), [(3, 3), (3, 5), (4, 4), (4, 6)])
def test_the_eigenvalues_of_a_torus(rows, columns):
    down, right = (2 * np.cos(2 * np.pi * np.arange(size) / size) for size in (rows, columns))
    expected = np.sort((1 + down[:, None] + right[None, :]).ravel() / 5)
    np.testing.assert_allclose(spectrum(Torus(), rows * columns), expected, atol=1e-14)


@looped("workers", [1, 2, 3, 16, 40])
def test_the_complete_graph_takes_the_mean(workers):
    np.testing.assert_allclose(mixing(Complete(), workers), 1 / workers, rtol=1e-13)


@looped(("name", "graph"), KINDS.items())
def test_a_name_is_a_table_with_defaults_is_a_piece(name, graph):
    assert read(name) == read({"kind": name}) == read(graph) == graph


def test_the_json_schema_agrees():
    schema = adapter.json_schema()
    tables = [{"kind": name} for name in KINDS]
    for right in (*KINDS, *tables):
        jsonschema.validate(right, schema)
    wrong = [{"kind": "star"}, {"kind": "ring", "rows": 2}, {"kind": "torus", "rows": 4}]
    for table in ("star", 3, None, ["ring"], {}, *wrong):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(table, schema)


@looped("rank", [-1, 4])
@looped("graph", KINDS.values())
def test_a_rank_outside_is_refused(graph, rank):
    with pytest.raises(ValueError, match="choose 0 to 3"):
        graph.neighbours(rank, 4)
