"""`shard_batch` on 8 devices: values, pieces, annotations and refusals."""

import dataclasses
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import spmd
from spmd import Mesh
from spmd._batches import hosts as hosts_module
from spmd._batches.batch import plan_batch, send, shard_batch
from spmd._batches.leaf import cut
from spmd._batches.rows import host_tiles, place
from spmd._marking.mark import Annotation, get_sharding
from spmd._meshes.sharding import to_hlo
from spmd._meshes.spec import shard_slices
from spmd._torch_xla import seam

FSDP = Mesh({"fsdp": 8})
TWO_AXES = Mesh({"replica": 2, "fsdp": 4})
TENSOR = Mesh({"fsdp": 4, "tensor": 2})
SHUFFLED = Mesh([3, 2, 1, 0, 7, 6, 5, 4], (2, 4), ("replica", "fsdp"))
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    tokens: Any
    name: str = "sample"


def assert_on_devices(tensor, whole, mesh, spec):
    """The tensor has the values, the annotations, and each device its piece."""
    assert tensor.device.type == "xla"
    assert tensor.dtype == whole.dtype
    assert get_sharding(tensor) == Annotation(mesh, spec)
    split = seam.sharding_of(tensor)
    assert split is not None
    np.testing.assert_array_equal(split.tiles(), to_hlo(mesh, spec).tiles())
    assert torch.equal(tensor.cpu(), whole)
    for device, piece, _, part in seam.local_shards(tensor):
        wanted = shard_slices(whole.shape, mesh, spec, device=device)
        assert part == wanted
        assert torch.equal(
            piece[tuple(slice(0, s.stop - s.start) for s in part)], whole[part]
        )


@pytest.mark.parametrize("rank", range(1, 6))
@pytest.mark.parametrize(
    ("mesh", "axes"),
    [
        (FSDP, "fsdp"),
        (TWO_AXES, ("replica", "fsdp")),
        (TENSOR, "fsdp"),
        (SHUFFLED, ("replica", "fsdp")),
    ],
)
def test_every_rank_is_split_by_rows(mesh, axes, rank):
    whole = torch.arange(16 * 3 ** (rank - 1)).reshape(16, *[3] * (rank - 1))
    sharded = shard_batch(whole, mesh)
    assert_on_devices(sharded, whole, mesh, (axes, *[None] * (rank - 1)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    whole = torch.tensor([0, 1] * 4).to(dtype)
    assert_on_devices(shard_batch(whole, FSDP), whole, FSDP, ("fsdp",))


@pytest.mark.parametrize("shape", [(8, 4), (8, 5), (8, 1), (8, 0), (8, 5, 3)])
def test_other_dims_need_not_divide(shape):
    mesh = Mesh({"fsdp": 4, "seq": 2})
    whole = torch.randn(shape)
    spec = ("fsdp", "seq", None)[: len(shape)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sharded = shard_batch({"x": whole}, mesh, ("fsdp", "seq"))["x"]
    assert torch.equal(sharded.cpu(), whole)
    if shape[1] == 5:
        assert "batch['x']" in str(caught[0].message)
        assert_on_devices(sharded, whole, mesh, spec)


def test_results_are_right_over_an_uneven_dim():
    mesh = Mesh({"fsdp": 2, "seq": 4})
    whole = torch.arange(30.0).reshape(6, 5)
    with pytest.warns(UserWarning, match="dim 1 of size 5 does not divide"):
        sharded = shard_batch(whole, mesh, ("fsdp", "seq"))
    assert torch.equal((sharded.sum(dim=1) * 2).cpu(), whole.sum(dim=1) * 2)
    assert sharded.max().item() == 29


def test_non_contiguous_and_conjugated_tensors():
    for whole in (torch.arange(64).reshape(8, 8).t(), torch.full((8,), 1j).conj()):
        assert torch.equal(shard_batch(whole, FSDP).cpu(), whole)


def test_the_source_may_be_overwritten_at_once():
    buffer = torch.zeros(64, 1000)
    for step in range(5):
        sharded = shard_batch(buffer.fill_(step), FSDP)
        buffer.fill_(-1)
        assert (sharded.cpu() == step).all()


def test_containers_and_other_leaves():
    batch = {
        "pair": Pair(torch.ones(8, 2), [np.arange(8), None]),
        "sample": Sample(torch.zeros(8)),
        "step": torch.tensor(3),
        "n": 5,
        "text": ["a", "b"],
    }
    sharded = shard_batch(batch, FSDP)
    assert type(sharded["pair"]) is Pair
    assert sharded["pair"].x.device.type == "xla"
    assert sharded["pair"].y[0].cpu().tolist() == list(range(8))
    assert sharded["pair"].y[1] is None
    assert type(sharded["sample"]) is Sample
    assert sharded["sample"].name == "sample"
    assert get_sharding(sharded["sample"].tokens) == Annotation(FSDP, ("fsdp",))
    assert sharded["step"].item() == 3
    assert (sharded["n"], sharded["text"]) == (5, ["a", "b"])
    assert batch["step"].device.type == "cpu"


def test_batch_encoding():
    transformers = pytest.importorskip("transformers")
    ids = torch.arange(32).reshape(8, 4)
    batch = transformers.BatchEncoding({"input_ids": ids, "labels": ids})
    sharded = shard_batch(batch, FSDP)
    assert type(sharded) is transformers.BatchEncoding
    assert torch.equal(sharded.input_ids.cpu(), ids)
    assert sharded["labels"] is sharded["input_ids"]


def test_model_output():
    transformers = pytest.importorskip("transformers")
    output = transformers.modeling_outputs.CausalLMOutput(
        loss=torch.tensor(1.0), logits=torch.ones(8, 3)
    )
    sharded = shard_batch(output, FSDP)
    assert type(sharded) is type(output)
    assert get_sharding(sharded.logits) == Annotation(FSDP, ("fsdp", None))
    assert sharded.loss.item() == 1.0


def test_what_is_left_whole_is_named_once():
    batch = {
        "ids": torch.ones(8, 4),
        "position_ids": torch.arange(4)[None],
        "weights": torch.ones(3),
    }
    with pytest.warns(UserWarning) as caught:
        sharded = shard_batch(batch, FSDP)
    assert len(caught) == 1
    assert "batch['position_ids'] [1, 4], batch['weights'] [3]" in str(
        caught[0].message
    )
    assert caught[0].filename == __file__
    assert_on_devices(sharded["weights"], torch.ones(3), FSDP, (None,))


def test_none_keeps_an_entry_whole_without_a_warning():
    batch = {"ids": torch.ones(8, 4), "position_ids": torch.arange(4)[None]}
    sharded = shard_batch(batch, FSDP, {"position_ids": None})
    whole = batch["position_ids"]
    assert_on_devices(sharded["position_ids"], whole, FSDP, (None, None))


def test_padding():
    batch = {"ids": torch.arange(10).reshape(5, 2), "labels": torch.arange(5)}
    sharded = shard_batch(batch, FSDP, pad=True, pad_values={"labels": -100})
    assert sharded["ids"][5:].cpu().tolist() == [[8, 9]] * 3
    assert sharded["labels"].cpu().tolist() == [0, 1, 2, 3, 4, -100, -100, -100]
    assert plan_batch(batch, FSDP, pad=True).rows_added == 3


def test_nothing_is_sent_unless_all_is_right(monkeypatch):
    sent = []
    monkeypatch.setattr(seam, "from_local_shards", lambda *a, **k: sent.append(a))
    batch = {"x": torch.ones(8), "y": torch.ones(8), "z": torch.ones(9)}
    with pytest.raises(ValueError, match=r"batch\['z'\] \[9\]: 9 rows do not divide"):
        shard_batch(batch, FSDP, {"z": "fsdp"})
    assert sent == []


def test_tensors_on_the_device_are_annotated():
    spmd.init()
    whole = torch.arange(8.0)
    tensor = whole.to(seam.device())
    assert shard_batch([tensor], FSDP)[0] is tensor
    assert_on_devices(tensor, whole, FSDP, ("fsdp",))
    assert shard_batch(shard_batch(whole, FSDP), FSDP).cpu().tolist() == whole.tolist()
    scalar = torch.tensor(1.0).to(seam.device())
    assert shard_batch(scalar, FSDP) is scalar


def test_another_annotation_is_refused_before_anything_is_sent(monkeypatch):
    tensor = shard_batch(torch.ones(8, 8), FSDP)
    monkeypatch.setattr(seam, "from_local_shards", None)
    with pytest.raises(ValueError, match=r"batch\[1\] \[8, 8\] is already split by"):
        shard_batch([torch.ones(8), tensor], FSDP, (None, "fsdp"))


def test_meta_tensors_remember_on_a_mesh_larger_than_the_machine():
    pod = Mesh({"fsdp": 512})
    tensor = torch.ones(1000, 4, device="meta")
    sharded = shard_batch({"x": tensor}, pod, pad=True)["x"]
    assert (sharded.shape, sharded.device.type) == ((1024, 4), "meta")
    assert get_sharding(sharded) == Annotation(pod, ("fsdp", None))


def test_gradients_reach_a_leaf():
    whole = torch.ones(8, requires_grad=True)
    sharded = shard_batch(whole, FSDP)
    (sharded * 3).sum().backward()
    assert sharded.grad is not None
    assert sharded.grad.cpu().tolist() == [3.0] * 8


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(
        ValueError, match=r"batch\['x'\] \[8\]: Mesh\(fsdp=4\) has 4 dev"
    ):
        shard_batch({"x": torch.ones(8)}, Mesh({"fsdp": 4}))


def test_a_batch_smaller_than_the_mesh_is_refused():
    with pytest.raises(
        ValueError, match="a batch of 4 rows is smaller than the 8 shards"
    ):
        shard_batch(torch.ones(4, 2), FSDP)


def test_torch_xla_mesh_and_sharding_spec():
    xs = pytest.importorskip("torch_xla.distributed.spmd")
    mesh = xs.Mesh(list(range(8)), (8,), ("fsdp",))
    spec = xs.ShardingSpec(mesh, ("fsdp", None))
    batch = (torch.ones(8, 2), torch.ones(8))
    sharded = shard_batch(batch, mesh, spec)
    assert_on_devices(sharded[0], batch[0], FSDP, ("fsdp", None))
    assert_on_devices(sharded[1], batch[1], FSDP, ("fsdp",))


@pytest.mark.parametrize(
    "hosts",
    [
        ((0, 1, 2, 3), (4, 5, 6, 7)),
        ((0, 1), (2, 3), (4, 5), (6, 7)),
        ((0, 1, 4, 5), (2, 3, 6, 7)),
    ],
)
@pytest.mark.parametrize(
    ("mesh", "spec"),
    [
        (FSDP, ("fsdp", None)),
        (TWO_AXES, (("replica", "fsdp"), None)),
        (TENSOR, ("fsdp", "tensor")),
        (Mesh({"tensor": 2, "fsdp": 4}), ("fsdp", "tensor")),
        (SHUFFLED, (("replica", "fsdp"), None)),
        (Mesh({"fsdp": 2, "seq": 4}), ("fsdp", "seq")),
    ],
)
def test_pieces_of_faked_hosts_make_up_the_whole(mesh, spec, hosts, monkeypatch):
    """Each faked process cuts its rows; the devices of all of them get the pieces."""
    rows = {t: torch.arange(6 * t, 6 * t + 6).reshape(2, 3) for t in range(8)}
    pieces, shapes = {}, set()
    monkeypatch.setattr(hosts_module, "current_hosts", lambda: hosts)
    for host, devices in enumerate(hosts):
        monkeypatch.setattr(hosts_module, "host_index", lambda host=host: host)
        tiles = host_tiles(mesh, spec[0], hosts)[host]
        plan = plan_batch(torch.cat([rows[t] for t in tiles]), mesh, spec)
        leaf = plan.tensors[0]
        where = place(tuple(leaf.shape), mesh, leaf.spec, hosts=plan.hosts, host=host)
        shapes.add(where.shape)
        pieces.update(zip(devices, cut(leaf.tensor, where), strict=True))
    (shape,) = shapes
    whole = torch.cat([rows[t] for t in range(shape[0] // 2)])
    stitched = seam.from_local_shards(
        [pieces[d] for d in range(8)], mesh, spec, shape=shape
    )
    assert torch.equal(stitched.cpu(), whole)


def test_a_planned_batch_is_sent_as_it_was_planned():
    plan = plan_batch({"x": torch.arange(5)}, FSDP, pad=16)
    assert (plan.rows, plan.rows_added) == (16, 11)
    assert send(plan)["x"].cpu().tolist() == [0, 1, 2, 3, *[4] * 12]
