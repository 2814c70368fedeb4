"""The steps that presets are judged by: FSDP decoders of real width, traced here."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

import profiling
import spmd
from flags import Workload
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy
from profiling import Schedule, Target
from profiling._tuning.workload import workload
from spmd import Mesh, Program
from tests.fsdpv2.decoder import Decoder
from tests.profiling.compilers import need

SEQ = 1024


@functools.cache
def program(num_devices: int, layers: int, rows: int) -> Program:
    """One SGD step of a decoder in bfloat16, with `rows` rows on each device."""
    mesh = Mesh({"fsdp": num_devices})
    return _traced((32000, 2048, 16, 5632, layers, SEQ), mesh, rows)


@functools.cache
def copied_program() -> Program:
    """The same of 2 layers four times as wide, with a copy on each of two hosts."""
    mesh = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
    return _traced((32000, 8192, 64, 28672, 2, SEQ), mesh, 1)


def _traced(sizes: tuple[int, ...], mesh: Mesh, rows: int) -> Program:
    with spmd.meta_parameters():
        model = Decoder(*sizes).to(torch.bfloat16)
    policy = transformer_auto_wrap_policy({"Block"})
    wrapped = FSDPv2(model, mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, labels = batch
        _, logits = wrapped(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(mesh.size * rows, SEQ, dtype=torch.int64, device="meta")
    return spmd.trace(step, (ids, ids), model=wrapped, optimizer=optimizer, mesh=mesh)


def judged(target: str, flags: dict[str, object]) -> Schedule:
    """That step compiled; kept in the user's cache between sessions."""
    return profiling.compile(_program(target), need(target), flags=flags)


def figures(target: str) -> Workload:
    """The figures of that step."""
    return workload(_program(target), Target.parse(target))


def _program(target: str) -> Program:
    found = Target.parse(target)
    layers, rows = (1, 2) if found.kind == "tpu" else (4, 4)
    return program(found.num_devices, layers, rows)
