"""`Plan`: patterns that say how the tensors of a whole model are split."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmd._meshes.mesh import Mesh
from spmd._plans.resolve import InputRow, OutputRow, ResolvedPlan, Row, resolve
from spmd._plans.rule import PlanPart, Rule

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["InputRow", "OutputRow", "Plan", "PlanPart", "ResolvedPlan", "Row", "Rule"]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """The model and mesh that a plan was made for, so that it explains itself.

    Attributes:
        mesh: The mesh.
        parameters: Shape by name, buffers included.
        modules: Names of the modules.
        itemsize: Bytes per element by parameter name.
        again: Further names of tied parameters.
    """

    mesh: Mesh
    parameters: Mapping[str, tuple[int, ...]]
    modules: tuple[str, ...]
    itemsize: Mapping[str, int]
    again: frozenset[str]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Plan:
    """Ordered patterns for the parameters and the module outputs of a model.

    In a pattern ``*`` stands for one dotted component or a part of one, ``**`` for any
    number of components (none included), and everything else for itself. The first
    pattern that matches a name wins.

    Args:
        patterns: Spec by pattern. A pattern that matches parameters or buffers says
            how these are split. One that matches none but matches modules says how
            the modules' outputs are split; ``"name[0]"`` picks the first output of a
            module that returns a tuple.
        outputs: Spec by pattern, for module outputs only.
        inputs: Spec by pattern, for the tensors that modules are given;
            ``"name[0]"`` picks the first positional argument.
        name: Where the plan comes from; shown beside each row it decides.

    Raises:
        TypeError: A pattern that is no string, or a spec that is no sequence of axis
            names, tuples of names and None.
        ValueError: A malformed pattern.

    Example:
        >>> plan = Plan(
        ...     {"layers.*.up.weight": ("fsdp", None), "layers.*": ("fsdp", None, None)}
        ... )
        >>> shapes = {"layers.0.up.weight": (8, 4), "layers.1.up.weight": (8, 4)}
        >>> got = plan.resolve(Mesh({"fsdp": 4}), shapes, ["layers.0", "layers.1"])
        >>> got.parameters[1].spec, got.parameters[1].shard_shape
        (('fsdp', None), (2, 4))
        >>> [row.name for row in got.outputs]
        ['layers.0', 'layers.1']
    """

    parts: tuple[PlanPart, ...]
    made_for: PlannedModel | None = field(compare=False)

    def __init__(
        self,
        patterns: Mapping[str, Iterable[Any]],
        *,
        outputs: Mapping[str, Iterable[Any]] | None = None,
        inputs: Mapping[str, Iterable[Any]] | None = None,
        name: str = "user",
    ) -> None:
        rules = [Rule(p, s) for p, s in patterns.items()]
        rules += [Rule(p, s, outputs_only=True) for p, s in (outputs or {}).items()]
        rules += [Rule(p, s, inputs_only=True) for p, s in (inputs or {}).items()]
        object.__setattr__(self, "parts", (PlanPart(name, tuple(rules)),))
        object.__setattr__(self, "made_for", None)

    @classmethod
    def _of(
        cls, parts: Iterable[PlanPart], made_for: PlannedModel | None = None
    ) -> Plan:
        plan = cls({})
        object.__setattr__(plan, "parts", tuple(parts))
        object.__setattr__(plan, "made_for", made_for)
        return plan

    @property
    def name(self) -> str:
        """Where the plan comes from; several names after ``|``."""
        return " | ".join(part.name for part in self.parts)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in order of precedence."""
        return tuple(rule for part in self.parts for rule in part.rules)

    def __or__(self, other: Plan) -> Plan:
        """Put another plan's patterns after this one's."""
        if not isinstance(other, Plan):
            return NotImplemented
        made_for = self.made_for or other.made_for
        return Plan._of(self.parts + other.parts, made_for)

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, {len(self.rules)} patterns)"

    def resolve(
        self,
        mesh: Mesh,
        parameters: Mapping[str, tuple[int, ...]],
        modules: Iterable[str] = (),
        *,
        strict: bool = False,
        itemsize: Mapping[str, int] | None = None,
    ) -> ResolvedPlan:
        """Decide every parameter and module output of a model.

        Args:
            mesh: The mesh whose axes the specs name.
            parameters: Shape by name, buffers included.
            modules: Names of the modules; the root is ``""``.
            strict: Raise where a dim does not divide instead of letting XLA pad.
            itemsize: Bytes per element by parameter name, for sizes in the table.

        Returns:
            A row for each parameter, and each module output and input that has a spec.
            A parameter that no pattern matches is replicated and listed as uncovered.

        Raises:
            TypeError: A spec entry of the wrong type.
            ValueError: A pattern that matches nothing, or only what earlier patterns
                of the same plan took; a spec that does not fit its parameter or the
                mesh; with `strict`, a dim that does not divide.
        """
        return resolve(
            self.parts,
            mesh,
            parameters=parameters,
            modules=modules,
            strict=strict,
            itemsize=itemsize or {},
        )

    def explain(
        self,
        mesh: Mesh | None = None,
        parameters: Mapping[str, tuple[int, ...]] | None = None,
        modules: Iterable[str] = (),
        *,
        console: Console | None = None,
    ) -> ResolvedPlan:
        """Print what each tensor gets and which pattern decided it.

        Args:
            mesh: The mesh whose axes the specs name. A plan by `auto_plan` knows its
                mesh and its model, and needs neither.
            parameters: Shape by name, buffers included.
            modules: Names of the modules.
            console: Where to print; default is stdout.

        Returns:
            The resolved plan.

        Raises:
            TypeError: See `resolve`; no mesh or no parameters for a plan that was
                made for no model.
            ValueError: See `resolve`.
        """
        made_for = self.made_for
        if mesh is not None and parameters is not None:
            resolved = self.resolve(mesh, parameters, modules)
        elif made_for is not None:
            resolved = self.resolve(
                mesh or made_for.mesh,
                made_for.parameters,
                made_for.modules,
                itemsize=made_for.itemsize,
            )
            rows = (r for r in resolved.parameters if r.name not in made_for.again)
            resolved = dataclasses.replace(resolved, parameters=tuple(rows))
        else:
            raise TypeError(
                "plan.explain: a mesh and the shapes of the parameters are needed, as "
                "in plan.explain(mesh, {name: p.shape for name, p in "
                "model.named_parameters()}, [name for name, _ in "
                "model.named_modules()])"
            )
        resolved.explain(console)
        return resolved

    @classmethod
    def from_yaml(
        cls, text_or_path: str | os.PathLike[str], *, name: str | None = None
    ) -> Plan:
        """Read a plan from YAML.

        Either sections ``parameters:``, ``outputs:``, ``inputs:`` (and those that
        `to_yaml` writes for what is taken apart), or one flat mapping as torchprime
        writes it. Lists are specs, ``null`` is a dim that is not split.
        Several documents (``---``) are joined by ``|``.

        Args:
            text_or_path: YAML text, or a file: a `Path`, or one line that ends in
                ``.yaml`` or ``.yml``.
            name: Where the plan comes from; default is the document's ``name:``,
                then the file's name, then ``user``.

        Returns:
            The plan.

        Raises:
            ValueError: Text that is no such plan; the message names line and key.
            OSError: A file that cannot be read.

        Example:
            >>> Plan.from_yaml('"layers.*.weight": [[replica, fsdp], null]').rules[
            ...     0
            ... ].spec
            (('replica', 'fsdp'), None)
        """
        from spmd._plans.as_yaml import read
        from spmd._plans.made_as_yaml import read_made

        text, where, default = text_or_path, "plan", "user"
        if not isinstance(text, str) or _is_path(text):
            path = Path(text)
            text, where, default = path.read_text("utf-8"), path.name, path.name
        found = read(text, where=where)
        made = read_made(text, where=where)
        return cls._of(
            PlanPart(name or n or default, rules, *more)
            for (n, rules), more in zip(found, made, strict=True)
        )

    def to_yaml(self) -> str:
        """Write the plan as YAML that `from_yaml` reads back.

        Returns:
            One document for each plan that was joined by ``|``.
        """
        from spmd._plans.as_yaml import write

        return write(self.parts)


def _is_path(text: str) -> bool:
    return "\n" not in text and text.endswith((".yaml", ".yml"))
