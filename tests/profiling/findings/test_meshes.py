"""Arithmetic of meshes: what stays near, in which order, of which sizes."""

import dataclasses

import pytest

from profiling._findings.case import Case
from profiling._findings.meshes import (
    arranged,
    largest_near,
    mesh_code,
    mesh_fix,
    near_devices,
    stays_near,
    stride,
)
from spmd import Mesh
from tests.profiling import finding_pages


@pytest.mark.parametrize(
    ("sizes", "axes", "near", "is_near"),
    [
        ({"replica": 2, "fsdp": 8}, ["fsdp"], 8, True),
        ({"replica": 2, "fsdp": 8}, ["fsdp"], 4, False),
        ({"fsdp": 8, "replica": 2}, ["fsdp"], 8, False),
        ({"fsdp": 8, "replica": 2}, ["replica"], 8, True),
        ({"a": 3, "b": 2}, ["b"], 4, True),
        ({"a": 2, "b": 3}, ["b"], 4, False),  # 3, 4 and 5 stand on two hosts
    ],
)
def test_what_stays_near(sizes, axes, near, is_near):
    assert stays_near(Mesh(sizes), axes, near) is is_near


def test_between_hosts_is_said_only_where_it_is_just_that():
    mesh = Mesh({"tensor": 2, "fsdp": 8})
    assert arranged(mesh, ["fsdp", "tensor"], 8) == Mesh({"fsdp": 8, "tensor": 2})
    turned = arranged(mesh, ["fsdp", "tensor"], 2)
    assert turned == Mesh.hybrid(ici={"tensor": 2}, dcn={"fsdp": 8})
    assert arranged(mesh, ["tensor", "fsdp"], 16).dcn_axes == ()
    resized = arranged(mesh, ["fsdp", "tensor"], 4, fsdp=4, tensor=4)
    assert resized == Mesh.hybrid(ici={"tensor": 4}, dcn={"fsdp": 4})


def test_code_makes_the_same_mesh():
    for mesh in (
        Mesh({"fsdp": 8, "tensor": 2}),
        Mesh.hybrid(ici={"fsdp": 2, "tensor": 4}, dcn={"replica": 2}),
        Mesh.hybrid(ici={"tensor": 4}, dcn={"replica": 2, "fsdp": 2}),
    ):
        import spmd

        assert eval(mesh_code(mesh), {"spmd": spmd}) == mesh


def test_sizes_that_fit_beside_others():
    mesh = Mesh({"context": 2, "tensor": 12})
    assert largest_near(mesh, "tensor", [], 8) == 4
    assert largest_near(mesh, "tensor", ["context", "tensor"], 8) == 4
    assert largest_near(mesh, "tensor", ["context"], 2) == 1
    assert largest_near(Mesh({"tensor": 7}), "tensor", [], 4) == 1


def test_strides():
    mesh = Mesh({"a": 2, "b": 3, "c": 4})
    assert [stride(mesh, axis) for axis in "abc"] == [12, 4, 1]


def test_a_mesh_that_pads_an_input_is_no_fix():
    case = finding_pages.case("tensor-across-hosts")
    assert near_devices(case) == 8
    assert mesh_fix(case, case.mesh, "the same") is None
    assert mesh_fix(case, Mesh({"fsdp": 4, "tensor": 4}), "other sizes") is not None
    odd = Mesh({"fsdp": 3, "tensor": 5})
    assert mesh_fix(case, odd, "sizes that do not divide") is None


def test_what_no_spec_names_is_padded_by_no_mesh():
    program, schedule = finding_pages.compiled("tensor-across-hosts")
    inputs = tuple(dataclasses.replace(v, spec=None) for v in program.inputs)
    free = dataclasses.replace(program, inputs=inputs)
    case = Case(free, dataclasses.replace(schedule, compiled=None))
    assert mesh_fix(case, Mesh({"fsdp": 8, "tensor": 2}), "another order") is not None
