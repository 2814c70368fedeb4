"""The module of one TPU slice as that of all."""

from __future__ import annotations

import pytest

from profiling._collectives.axes import MeshAxes
from profiling._collectives.moved import result_of
from profiling._collectives.ops import collective_ops
from profiling._collectives.origins import leaf_shape
from profiling._compiling.slices import of_all_slices
from spmd import Mesh
from tests.profiling.hlo_files import SUM, entry

LISTED = (
    "{{100000,300000},{100001,300001},{200000,400000},{200001,400001}}"  # of 4 slices
)


def transfer(kind: str, to: str, *, of: str = "f32[8]", gives: str = "f32[8]") -> str:
    """What libtpu writes where x goes to other slices and y comes back."""
    said = (
        'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="m",'
        f'_xla_megascale_target={to},_xla_megascale_transfer_type="{kind}"}}'
    )
    return f"""
      x = {of} parameter(0), metadata={{op_name="backward/up/dot_general"}}
      t = token[] after-all()
      s = ({of}, u32[], token[]) send(x, t), channel_id=3, {said}
      r = ({gives}, u32[], token[]) recv(t), channel_id=2, {said}
      sd = token[] send-done(s), channel_id=3, is_host_transfer=true
      rd = ({gives}, token[]) recv-done(r), channel_id=2, is_host_transfer=true
      ROOT y = {gives} get-tuple-element(rd), index=0
    """


def lifted(body: str, *, own: int = 2, num_slices: int = 2, before: str = SUM):
    module = entry(body, header=f", num_partitions={own}", before=before)
    return of_all_slices(module, num_devices=own * num_slices, num_slices=num_slices)


def test_a_transfer_is_a_collective():
    module = lifted(transfer("ALL_REDUCE", '"{1,2}x{0:1}"'))
    (op,) = collective_ops(module)
    assert (op.kind, op.start.name, op.done.name) == ("all-reduce", "s", "rd")
    assert op.groups.groups == ((0, 2), (1, 3))
    assert (op.operand_bytes, op.output_bytes, op.wire_bytes) == (32, 32, 32)
    assert op.is_async
    assert op.instruction.metadata.op_name == "backward/up/dot_general"
    assert module.num_partitions == 4
    assert module.entry.root.opcode == "bitcast"
    assert not {"send", "recv"} & {i.opcode for i in module.instructions()}


@pytest.mark.parametrize(
    ("kind", "of", "gives", "wire"),
    [
        ("ALL_GATHER", "f32[8]", "f32[16]", 32),
        ("REDUCE_SCATTER", "f32[16]", "f32[8]", 32),
        ("ALL_TO_ALL", "f32[16]", "f32[16]", 32),
    ],
)
def test_its_kind_and_bytes(kind, of, gives, wire):
    (op,) = collective_ops(lifted(transfer(kind, '"{1,2}x{0:1}"', of=of, gives=gives)))
    assert op.kind.upper().replace("-", "_") == kind
    assert op.wire_bytes == wire
    start, index = result_of(op.start, 0)
    assert str(leaf_shape(start.shape, index)) == gives


def test_some_of_the_slices():
    """Four slices as two axes of two: the outer one connects 1 with 3 and 2 with 4."""
    (op,) = collective_ops(lifted(transfer("ALL_REDUCE", LISTED), num_slices=4))
    assert op.groups.groups == ((0, 4), (1, 5), (2, 6), (3, 7))
    mesh = Mesh.hybrid(ici={"tensor": 2}, dcn={"a": 2, "b": 2})
    assert MeshAxes(mesh).of_groups(op.groups) == ("a",)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[2,2]<=[4]", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("{}", ((0, 1, 2, 3), (4, 5, 6, 7))),
    ],
)
def test_what_stays_in_a_slice_is_done_in_each(given, found):
    body = (
        "x = f32[8] parameter(0)\nROOT y = f32[8] all-reduce(x), to_apply=sum, "
        f"channel_id=1, use_global_device_ids=true, replica_groups={given}"
    )
    (op,) = collective_ops(lifted(body, own=4))
    assert op.groups.groups == found


def test_permutes():
    body = (
        "x = f32[8] parameter(0)\nROOT y = f32[8] collective-permute(x), "
        "channel_id=1, source_target_pairs={{0,1},{1,0}}"
    )
    (op,) = collective_ops(lifted(body))
    assert op.pairs == ((0, 1), (1, 0), (2, 3), (3, 2))


def test_a_module_for_all_devices_is_left_alone():
    body = transfer("ALL_REDUCE", '"{1,2}x{0:1}"')
    module = entry(body, header=", num_partitions=4", before=SUM)
    for num_slices in (1, 2):
        given = {"num_devices": 4, "num_slices": num_slices}
        assert of_all_slices(module, **given) is module


def test_a_transfer_that_is_no_collective():
    with pytest.raises(ValueError, match="s goes to other slices as 'TELEPORT', which"):
        lifted(transfer("TELEPORT", '"{1,2}x{0:1}"'))


@pytest.mark.parametrize("to", ['"all"', "{{0,1}}", "{{100000,200007}}"])
def test_devices_in_another_form(to):
    with pytest.raises(ValueError, match="s goes to other slices, to the devices"):
        lifted(transfer("ALL_REDUCE", to))
