"""`analyse`: from a module that was compiled to a `Schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profiling._collectives.collectives import collectives
from profiling._collectives.ops import collective_ops
from profiling._compiling.compiled import Compiled
from profiling._compiling.slices import of_all_slices
from profiling._dump import DumpedProgram
from profiling._hlo.binary import read_binary
from profiling._hlo.call_order import check_calls
from profiling._hlo.module import Module
from profiling._hlo.no_gc import no_gc
from profiling._memory.memory import memory_use
from profiling._schedule import Schedule
from profiling._step.flops import step_flops
from profiling._targets.target import Target
from profiling._timeline.simulate import timeline
from spmd._meshes.mesh import Mesh

if TYPE_CHECKING:
    from spmd._program.program import Program


def analyse(
    what: Module | DumpedProgram | Compiled,
    *,
    program: Program | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    target: Target | str | None = None,
) -> Schedule:
    """See what a compiler did with a step.

    Args:
        what: A module of one device, a program of a dump, or the `compiled` of a
            `CompileError`. Of a dumped program the best stage there is, which is the
            scheduled one.
        program: What was compiled: gives names, roles and specs of the inputs, and the
            mesh.
        mesh: Names the axes that collectives run over, e.g. ``{"fsdp": 8}``; None for
            the program's.
        target: What it runs on, or its text: gives links, capacity and a timeline. Of
            something compiled that is known.

    Returns:
        Memory, collectives and timeline. What is not known is None, and its `notes` say
        what would give it.

    Raises:
        TypeError: Something else, such as a program that is not compiled yet.
        ValueError: A mesh or target of another number of devices, a target other than
            the one it was compiled for, or a damaged file.
    """
    found = _Found.of(what)
    check_calls(found.module)
    target = _target(found, target)
    mesh = _mesh(found, mesh, program)
    try:
        with no_gc():
            return _schedule(found, program, mesh, target)
    except (ArithmeticError, LookupError) as error:
        # Well-formed lines that contradict each other, such as a dim that is not there.
        raise ValueError(
            f"{found.source or found.name}: its instructions do not fit together "
            f"({error!r}); the module is damaged or cut"
        ) from error


@dataclass(frozen=True, slots=True)
class _Found:
    """What there is to analyse."""

    module: Module
    name: str
    source: str = ""
    compiled: Compiled | None = None
    assignment: Path | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, what: Module | DumpedProgram | Compiled) -> _Found:
        if isinstance(what, Compiled):
            source = f"what was compiled for {what.target.text}"
            with no_gc():
                module = of_all_slices(
                    read_binary(what.hlo, source=source),
                    num_devices=what.target.num_devices,
                    num_slices=what.target.num_slices,
                )
            return cls(module, module.name, compiled=what)
        if isinstance(what, Module):
            return cls(what, what.name, what.source, notes=_order_notes(what))
        if isinstance(what, DumpedProgram):
            return cls._of_dumped(what)
        hint = ""
        if hasattr(what, "fingerprint"):
            hint = "; compile a program first: profiling.compile(program, target)"
        elif hasattr(what, "programs"):
            hint = "; analyse one program of a dump, e.g. its `largest`"
        raise TypeError(
            f"analyse: {what!r}; a Module, a DumpedProgram or a Compiled is needed"
            f"{hint}"
        )

    @classmethod
    def _of_dumped(cls, program: DumpedProgram) -> _Found:
        module = program.scheduled or program.partitioned or program.before
        if module is None:
            raise ValueError(
                f"{program.name}: no module in this dump; a dump by "
                f"--xla_dump_to=DIR holds NAME...after_optimizations.txt"
            )
        notes = _order_notes(module)
        if program.scheduled is None and program.partitioned is None:
            notes = (
                f"{program.name}: only the module before partitioning was dumped, "
                f"which has no collectives yet; give the file after_optimizations",
            )
        return cls(
            module,
            program.name,
            module.source,
            assignment=program.buffer_assignment,
            notes=notes,
        )


def _order_notes(module: Module) -> tuple[str, ...]:
    if module.is_scheduled:
        return ()
    return (
        f"{module.name}: this module is not scheduled, so there is no timeline; give "
        f"the one that XLA dumps last, after_optimizations",
    )


def _target(found: _Found, given: Target | str | None) -> Target | None:
    target = Target.parse(given) if isinstance(given, str) else given
    if found.compiled is not None:
        made_for = found.compiled.target
        if target is not None and target != made_for:
            raise ValueError(
                f"analyse: target {target.text}, but this was compiled for "
                f"{made_for.text}; leave target out"
            )
        return made_for
    number = num_devices(found.module)
    if target is not None and number not in (1, target.num_devices):
        raise ValueError(
            f"{found.name}: it is for {number} devices, {target.text} has "
            f"{target.num_devices}; give a target of {number} devices"
        )
    return target


def _mesh(
    found: _Found, given: Mesh | Mapping[str, int] | None, program: Program | None
) -> Mesh | None:
    number = num_devices(found.module)
    if given is None:
        return None if program is None else program.mesh
    if not isinstance(given, Mesh):
        given = Mesh(given, num_devices=number if -1 in given.values() else None)
    if number not in (1, given.size):
        raise ValueError(
            f"{found.name}: it is for {number} devices, {given!r} has {given.size}; "
            f"give the mesh that it was partitioned for"
        )
    return given


def num_devices(module: Module) -> int:
    """Devices that a module is for; 1 where a binary file does not say.

    Args:
        module: The module.

    Returns:
        Partitions times replicas.
    """
    return module.num_partitions * module.num_replicas


def _schedule(
    found: _Found, program: Program | None, mesh: Mesh | None, target: Target | None
) -> Schedule:
    module, compiled = found.module, found.compiled
    line = None
    if target is not None and module.is_scheduled:
        needs = None
        if program is not None:
            needs = step_flops(program).of_one(program.num_devices)
        line = timeline(module, target, collective_ops(module), model=needs)
    return Schedule(
        name=found.name if program is None else program.name,
        source=found.source,
        module=module,
        mesh=mesh,
        target=target,
        memory=memory_use(
            module,
            program=program,
            mesh=mesh,
            target=target,
            compiled=compiled,
            assignment=found.assignment,
        ),
        collectives=collectives(
            module, program=program, mesh=mesh, target=target, timeline=line
        ),
        timeline=line,
        flags={} if compiled is None else compiled.flags,
        versions={} if compiled is None else compiled.versions,
        compile_s=None if compiled is None else compiled.compile_s,
        warnings=() if compiled is None else compiled.warnings,
        notes=(*found.notes, *_missing(found, program, mesh, target)),
        compiled=compiled,
    )


def _missing(
    found: _Found, program: Program | None, mesh: Mesh | None, target: Target | None
) -> tuple[str, ...]:
    """What was not given, and what it would tell."""
    notes = []
    if target is None:
        notes.append(
            "no target: links, capacity and a timeline are not known; give the one it "
            "ran on (--target h100:2x8, target=...)"
        )
    if mesh is None and num_devices(found.module) > 1:
        notes.append(
            "no mesh: collectives are listed by their device groups; name the axes "
            "(--mesh fsdp=4,tensor=2, mesh=...)"
        )
    if program is None:
        notes.append(
            "no program: names and roles are those that the module tells, and MFU "
            "counts causal attention in full; a step traced with spmd.trace has all of "
            "them (analyse(..., program=...))"
        )
    return tuple(notes)
