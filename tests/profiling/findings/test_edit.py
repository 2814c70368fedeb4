"""Changes of a traced program."""

import dataclasses

import pytest
import torch

import spmd
from profiling import Change
from profiling._findings.edit import changed, noted
from profiling._step.ops import StepOps
from spmd import Mesh, Program
from spmd._program.program import MLIR_MAGIC
from tests.profiling import field_case, finding_pages, micro_batched


def annotations(program: Program) -> list[tuple[tuple[int, ...], str]]:
    """Shape and sharding of each annotation, the update's apart."""
    return [
        (op.shape, op.sharding)
        for op in StepOps(program).ops
        if op.sharding and op.scope.phase != "update"
    ]


def test_nothing_changes_without_a_change():
    program, _ = field_case.compiled()
    assert changed(program, Change()) is program
    assert changed(program, Change(flags=(("f", True),))) is program


def test_a_value_is_annotated_for_all_its_readers():
    program, _ = field_case.compiled()
    up = next(op for op in StepOps(program).ops if op.op_name == "forward/up/mm")
    made = changed(program, Change(values=((up.number, field_case.BATCH),)))
    assert made.fingerprint != program.fingerprint
    assert annotations(made) == [((1600, 9600), "{devices=[16,1]<=[2,8]T(1,0)}")]
    ops = StepOps(made)
    again = next(op for op in ops.ops if op.op_name == "forward/up/mm" and op.is_dot)
    assert [u.name for u in ops.users(again)] == ["custom_call"]


def test_an_input_is_annotated_for_the_passes_only():
    program, _ = finding_pages.compiled("weight-gathered-again")
    made = changed(program, Change(values=((0, (None, None)),)))
    ops = StepOps(made)
    (placed,) = (u for u in ops.users(ops.arguments[0]) if u.sharding)
    assert placed.sharding == "{replicated}" and len(ops.users(placed)) > 1


def test_a_spec_of_a_parameter_is_that_of_its_state_too():
    program, _ = finding_pages.compiled("large-replicated")
    made = changed(program, Change(inputs=(("embed.weight", ("fsdp", None)),)))
    mine = [v for v in (*made.inputs, *made.outputs) if "embed.weight" in v.name]
    wide = [v for v in mine if v.shape == (8192, 512)]
    assert len(wide) == 6 and {v.spec for v in wide} == {("fsdp", None)}


def test_another_annotation_and_one_before_it():
    program, _ = finding_pages.compiled("reshard-between-annotations")
    first, *_, last = [op for op in StepOps(program).ops if op.sharding]
    made = changed(program, Change(annotations=((first.number, ("a", None)),)))
    assert "devices=[2,1,4]" in annotations(made)[0][1]
    made = changed(program, Change(before=((last.number, ("b", None)),)))
    assert len(annotations(made)) == len(annotations(program)) + 1


def test_axes_in_another_order():
    program, _ = finding_pages.compiled("tensor-across-hosts")
    made = changed(program, Change(mesh=Mesh({"fsdp": 8, "tensor": 2})))
    assert made.mesh == Mesh({"fsdp": 8, "tensor": 2})
    before, after = annotations(program), annotations(made)
    assert ((8192, 2048), "{devices=[8,2]<=[2,8]T(1,0)}") in before
    assert ((8192, 2048), "{devices=[8,2]<=[16]}") in after
    assert len(before) == len(after)


def test_axes_of_other_sizes():
    program, _ = finding_pages.compiled("tensor-across-hosts")
    mesh = Mesh({"fsdp": 4, "tensor": 4})
    made = changed(program, Change(mesh=mesh))
    before, after = annotations(program), annotations(made)
    assert ((8192, 2048), "{devices=[8,2]<=[2,8]T(1,0)}") in before
    assert ((8192, 2048), "{devices=[4,4]<=[16]}") in after
    assert [v.spec for v in made.inputs] == [v.spec for v in program.inputs]


def test_a_mesh_that_an_annotation_does_not_divide_by():
    mesh = Mesh({"a": 4, "b": 2})

    def step(x: torch.Tensor) -> torch.Tensor:
        return spmd.mark_sharding(x * 2, mesh, ("a", None))

    x = torch.empty(4, 8, device="meta")
    program = spmd.trace(step, x, mesh=mesh, batch_spec=(None, None))
    words = r"splits \[4, 8\] \('a', None\), which Mesh\(a=8, b=1\) does not divide"
    with pytest.raises(ValueError, match=words):
        changed(program, Change(mesh=Mesh({"a": 8, "b": 1})))
    assert changed(program, Change(mesh=Mesh({"a": 2, "b": 4}))).mesh is not None


def test_a_product_comes_out_in_the_dtype_of_its_sum():
    case = micro_batched.layers(torch.bfloat16, num=2)
    cast = next(
        op
        for op in case.ops.ops
        if op.name == "convert"
        and op.dtype == "f32"
        and op.scope.phase == "backward"
        and case.ops.behind(op).is_dot
    )
    made = changed(case.program, Change(widened=(cast.number,)))
    ops = StepOps(made)
    again = ops.ops[cast.number]
    product = ops.behind(again)
    assert product.is_dot and product.dtype == "f32"
    assert {o.dtype for o in product.operands} == {"bf16"}
    with pytest.raises(ValueError, match=r"operation stablehlo\.transpose is no cast"):
        changed(case.program, Change(widened=(cast.operands[0].number,)))
    of_input = next(
        op
        for op in case.ops.ops
        if op.name == "convert"
        and not case.ops.behind(op).is_dot
        and op.operands[0].name != "argument"
        and op.shape
    )
    with pytest.raises(ValueError, match="only a matmul can widen it"):
        changed(case.program, Change(widened=(of_input.number,)))


def test_notes_of_modules():
    program, _ = field_case.compiled()
    (note,) = noted(program, {"up": field_case.BATCH}, {"up": (1600, 9600)})
    assert (note.module, note.shape, note.spec) == (
        "up",
        (1600, 9600),
        field_case.BATCH,
    )
    with_note = dataclasses.replace(program, annotations=(note,))
    (other,) = noted(with_note, {"up": (None, None)}, {"up": (1600, 9600)})
    assert other.spec == (None, None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change(values=((10**6, (None,)),)), "has no operation 1000000, it has"),
        (Change(annotations=((60, (None, None)),)), "operation 60 of the step is no"),
        (Change(inputs=(("none", (None,)),)), "has no input 'none'"),
    ],
)
def test_places_that_are_not_there(change, words):
    program, _ = field_case.compiled()
    with pytest.raises(ValueError, match=words):
        changed(program, change)


def test_a_program_without_a_mesh():
    program = Program(MLIR_MAGIC, None, (), ())
    with pytest.raises(ValueError, match="has no mesh to split over"):
        changed(program, Change(inputs=(("x", (None,)),)))
