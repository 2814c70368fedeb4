import re
from pathlib import Path

import pytest
import torch
import torch_xla.distributed.spmd as xs
from hypothesis import given, settings
from jaxlib import _hlo  # the tests may: what XLA itself makes of a sharding

import spmd
from spmd import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._pjrt import client as pjrt
from spmd._program.hlo_proto import HloModuleProto, entry_computation
from spmd._program.stablehlo import hlo_to_stablehlo, module_text
from spmd._program.value import Value
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import trace as torch_xla_trace
from spmd._trace.module import finish_module, write_sharding
from spmd._trace.scopes import Sites
from tests.on_device import on_device
from tests.spmd import tracing
from tests.spmd.strategies import meshes_and_specs
from tests.spmd.tracing import MESH, traced, wrapped

SHAPE = (8, 16)


def raw(step, *, sites=None):
    """What torch_xla writes for a function of two placeholders."""
    a, b = (torch_xla_trace.placeholder(SHAPE, torch.float32) for _ in range(2))
    sites = sites or Sites(None)
    with sites.recording():
        out = step(a, b)
    inputs = torch_xla_graph.traced_inputs([out])
    order = ["a" if inputs.handles[0] == torch_xla_graph.handles([a])[0] else "b"]
    names = [*order, "b" if order == ["a"] else "a"][: len(inputs.values)]
    proto = torch_xla_trace.hlo_proto([out])
    torch_xla_graph.forget_traced()
    values = [Value(n, "input", SHAPE, "float32", ("fsdp", None)) for n in names]
    return proto, sites, values


def finished(step, mesh=MESH, name="step", **options):
    proto, sites, inputs = raw(step, **options)
    data = finish_module(proto, name=name, sites=sites, inputs=inputs, mesh=mesh)
    return HloModuleProto.FromString(data)


def instructions(module, opcode):
    found = [i for c in module.computations for i in c.instructions]
    return [i for i in found if i.opcode == opcode]


def plus(a, b):
    return a.exp() @ b.t()


def test_places_are_written():
    module = finished(plus)
    (product,) = instructions(module, "dot")
    (exponent,) = instructions(module, "exponential")
    line = plus.__code__.co_firstlineno + 1
    for instruction, name in ((product, "mm"), (exponent, "exp")):
        assert instruction.metadata.op_name == f"forward/{name}"
        assert instruction.metadata.op_type == name
        assert instruction.metadata.source_file == __file__
        assert instruction.metadata.source_line == line
        assert not instruction.metadata.stack_frame_id


def test_whole_stacks_are_dropped():
    proto, _, _ = raw(plus)
    assert HloModuleProto.FromString(proto).stack_frame_index
    assert Path(torch.__file__).parent.as_posix().encode() in proto
    module = finished(plus)
    assert not module.stack_frame_index
    assert "site-packages" not in str(module)


def test_parameters_have_their_name_and_sharding():
    module = finished(plus, name="other")
    assert module.name == "other"
    parameters = [
        i for i in entry_computation(module).instructions if i.opcode == "parameter"
    ]
    assert sorted(p.metadata.op_name for p in parameters) == ["a", "b"]
    for parameter in parameters:
        assert list(parameter.sharding.tile_assignment_dimensions) == [8, 1]
        assert list(parameter.sharding.iota_reshape_dims) == [8]
        assert not parameter.sharding.tile_assignment_devices


@pytest.mark.parametrize("mesh", [MESH, None])
def test_parameters_without_a_spec(mesh):
    proto, sites, inputs = raw(plus)
    inputs = [Value(v.name, v.role, v.shape, v.dtype) for v in inputs]
    data = finish_module(proto, name="step", sites=sites, inputs=inputs, mesh=mesh)
    found = instructions(HloModuleProto.FromString(data), "parameter")
    assert not any(p.HasField("sharding") for p in found)


def test_what_no_mode_sees_has_only_its_operation():
    def step(a, b):
        c = a + b
        spmd._torch_xla.seam.mark(c, MESH, ("fsdp", None))
        return c

    module = finished(step)
    (mark,) = instructions(module, "custom-call")
    assert mark.metadata.op_name == "custom_sharding"
    assert not mark.metadata.source_file


def test_annotations_become_compact():
    mesh = Mesh({"fsdp": 4, "tensor": 2})
    wanted = {
        ("fsdp", "tensor"): ([4, 2], False),
        ("tensor", None): ([2, 1, 4], True),
        (("fsdp", "tensor"), None): ([8, 1], False),
    }
    for spec, (tiles, replicates) in wanted.items():

        def step(a, b, spec=spec):
            c = a + b
            spmd._torch_xla.seam.mark(c, mesh, spec)
            return c

        (mark,) = instructions(finished(step, mesh), "custom-call")
        assert list(mark.sharding.tile_assignment_dimensions) == tiles
        assert not mark.sharding.tile_assignment_devices
        assert mark.sharding.iota_reshape_dims
        assert mark.sharding.replicate_on_last_tile_dim == replicates


def test_annotations_of_another_mesh_stay():
    theirs = xs.Mesh([3, 1, 2, 0, 7, 5, 6, 4], (8,), ("x",))

    def step(a, b):
        c = a + b
        xs.mark_sharding(c, theirs, ("x", None))
        return c

    (mark,) = instructions(finished(step), "custom-call")
    assert list(mark.sharding.tile_assignment_devices) == [3, 1, 2, 0, 7, 5, 6, 4]


def test_numbers_are_small_where_they_repeat():
    def step(a, b):
        return (a.sum(0) + b.amax(0)).prod()

    proto, sites, inputs = raw(step)
    data = finish_module(proto, name="step", sites=sites, inputs=inputs, mesh=MESH)
    module = HloModuleProto.FromString(data)
    entry = entry_computation(module)
    ids = [i.id for c in module.computations for i in c.instructions]
    assert sorted(ids) == list(range(1, len(ids) + 1))
    small = [c for c in module.computations if c.id != entry.id]
    assert len(small) == 3
    assert max(i.id for c in small for i in c.instructions) == 9
    assert min(i.id for i in entry.instructions) == 10
    # The names of the operations aside, XLA reads the same.
    texts = [module_text(hlo_to_stablehlo(d)) for d in (proto, data)]
    plain = [re.sub(r"module @\S+", "", text) for text in texts]
    assert plain[0] == re.sub(r' \{mhlo.sharding = "[^"]*"\}', "", plain[1])


def test_the_same_bytes_each_time():
    one, two = (finished(plus).SerializeToString(deterministic=True) for _ in range(2))
    assert one == two


@given(meshes_and_specs())
@settings(deadline=None, max_examples=60)
def test_shardings_are_what_xla_makes_of_their_text(drawn):
    mesh, spec = drawn
    sharding = to_hlo(mesh, spec)
    module = HloModuleProto()
    target = module.computations.add().instructions.add().sharding
    target.tile_assignment_devices.append(9)  # to be dropped
    write_sharding(target, sharding)
    theirs = _hlo.OpSharding()
    theirs.ParseFromString(target.SerializeToString())
    read = _hlo.HloSharding.from_proto(theirs)
    assert read == _hlo.HloSharding.from_string(str(sharding))


def test_replicated():
    target = HloModuleProto().computations.add().instructions.add().sharding
    write_sharding(target, HloSharding())
    theirs = _hlo.OpSharding()
    theirs.ParseFromString(target.SerializeToString())
    assert _hlo.HloSharding.from_proto(theirs).is_replicated()


def test_places_survive_the_way_to_stablehlo_and_back():
    program = traced(wrapped(dropout=0.1))
    text = module_text(program.module, locations=True)
    module = HloModuleProto.FromString(pjrt.hlo_from_stablehlo(text))
    products = instructions(module, "dot")
    assert len(products) == 15
    placed = [
        i
        for i in products
        if re.fullmatch(r"(forward|backward)/[\w.]+/dot_general", i.metadata.op_name)
        and i.metadata.source_file == tracing.__file__
        and i.metadata.source_line
    ]
    assert len(placed) >= 0.99 * len(products)


def test_collectives_inherit_places():
    hlo = traced(wrapped()).runner("cpu").compile().hlo_text()
    lines = [x for x in hlo.splitlines() if re.search(r" (all-gather|all-reduce)\(", x)]
    assert lines
    named = [
        x for x in lines if re.search(r'op_name="\(?(forward|backward|update)/', x)
    ]
    assert len(named) >= 0.9 * len(lines)
    assert any('op_name="forward/layers.0.up/dot_general"' in x for x in lines)


def test_a_device_is_no_part_of_it():
    on_device(1)  # the device of this process has eight; the mesh may have any number
    module = finished(plus, Mesh({"fsdp": 4096}))
    (first, *_) = instructions(module, "parameter")
    assert list(first.sharding.iota_reshape_dims) == [4096]
