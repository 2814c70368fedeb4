"""In the words of torch.distributed.checkpoint."""

import pickle

from spmd.checkpoint._dcp import metadata_file, read_plan
from spmd.checkpoint._manifest import Manifest, Piece, TensorEntry

ENTRY = TensorEntry(
    "bfloat16",
    (5, 4),
    (
        Piece((0, 0), (3, 4), "f", 0, 10, 1),
        Piece((3, 0), (2, 2), "f", 10, 10, 1),
        Piece((3, 2), (2, 2), "g", 0, 10, 1),
    ),
)


def test_what_to_read():
    plan = read_plan(ENTRY, [((2, 1), (2, 2)), ((0, 0), (1, 4))])
    found = {
        piece: [
            (
                i.dest_index.index,
                tuple(i.dest_offsets),
                tuple(i.storage_offsets),
                tuple(i.lengths),
            )
            for i in items
        ]
        for piece, items in plan.items()
    }
    assert found == {
        0: [(0, (0, 0), (2, 1), (1, 2)), (1, (0, 0), (0, 0), (1, 4))],
        1: [(0, (1, 0), (0, 1), (1, 1))],
        2: [(0, (1, 1), (0, 0), (1, 1))],
    }
    assert read_plan(ENTRY, [((5, 0), (0, 4))]) == {}


def test_the_file():
    manifest = Manifest(
        step=None,
        num_processes=1,
        token="t",
        tensors={"model.a": ENTRY},
        objects={"step": Piece((), (), "f", 20, 5, 1)},
        aliases={"model.b": "model.a"},
    )
    held = pickle.loads(metadata_file(manifest))
    assert set(held.state_dict_metadata) == {"model.a", "model.b", "step"}
    assert len(held.storage_data) == 7
    assert held.planner_data["model.a"] == ("model", "a")
    assert held.state_dict_metadata["model.b"].size == (5, 4)
