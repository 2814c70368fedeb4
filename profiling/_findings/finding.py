"""`Finding`: something about a step's sharding that costs, why, and what removes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, get_args

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec

Severity: TypeAlias = Literal["problem", "note"]
FindingKind: TypeAlias = Literal[
    "activation-gathered",
    "batch-replicated",
    "full-rematerialisation",
    "gradient-all-reduced",
    "gradient-per-micro-batch",
    "large-replicated",
    "many-small",
    "padding-waste",
    "reshard-between-annotations",
    "synchronous",
    "tensor-across-hosts",
    "weight-gathered-again",
    "weights-across-hosts",
    "wide-dtype",
]
FINDING_KINDS: tuple[FindingKind, ...] = get_args(FindingKind)


@dataclass(frozen=True, slots=True)
class Change:
    """What a fix does to a traced program; places are `StepOp.number`.

    Attributes:
        values: Spec for the value of an op, annotated where nothing said one.
        annotations: Another spec for an annotation that is there.
        before: Spec for what an annotation is given, and nobody else.
        inputs: Spec by input; its next value gets the same.
        widened: Casts that come into the matmul before them: its result has their
            dtype then.
        mesh: The same axes in another order, or of other sizes, over as many devices;
            None leaves it.
        flags: XLA flags to compile with.
    """

    values: tuple[tuple[int, Spec], ...] = ()
    annotations: tuple[tuple[int, Spec], ...] = ()
    before: tuple[tuple[int, Spec], ...] = ()
    inputs: tuple[tuple[str, Spec], ...] = ()
    widened: tuple[int, ...] = ()
    mesh: Mesh | None = None
    flags: tuple[tuple[str, bool | int | float | str], ...] = ()

    def __bool__(self) -> bool:
        return self != Change()


@dataclass(frozen=True, slots=True)
class Figures:
    """What a step costs a device.

    Attributes:
        wire_bytes: Sent in a step.
        memory_bytes: What the runtime allocates.
        step_s: Estimated time of a step; None without a timeline.
        weight_gather_bytes: Of the wire bytes, to gather weights.
        activation_bytes: Of the wire bytes, to move activations and inputs.
        flops: Of the matmuls of a step; None without a timeline.
        over_bytes: Memory that a device lacks; 0 where the step fits.
    """

    wire_bytes: int
    memory_bytes: int
    step_s: float | None
    weight_gather_bytes: int
    activation_bytes: int
    flops: float | None
    over_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """What compiling again showed.

    Attributes:
        before: Without the fix.
        after: With it, and nothing else changed.
        gone: The finding is not there any more.
        smaller: It is there, but costs less.
    """

    before: Figures
    after: Figures
    gone: bool
    smaller: bool = False

    @property
    def gains(self) -> tuple[str, ...]:
        """What is smaller: of ``bytes``, ``memory`` and ``time``."""
        return tuple(n for n, change in self._changes() if change < -_NOTICEABLE)

    @property
    def costs(self) -> tuple[str, ...]:
        """What is larger: of ``bytes``, ``memory`` and ``time``."""
        return tuple(n for n, change in self._changes() if change > _NOTICEABLE)

    @property
    def is_trade(self) -> bool:
        """It costs something besides."""
        return bool(self.costs)

    @property
    def even_at(self) -> float | None:
        """How many times as many rows send the same with the fix as without it.

        Activations grow with the batch, weights do not. None where the fix sends less
        already, or moves the activations as before.
        """
        more = self.after.wire_bytes - self.before.wire_bytes
        fewer = self.before.activation_bytes - self.after.activation_bytes
        return 1 + more / fewer if more > 0 and fewer > 0 else None

    def _changes(self) -> list[tuple[str, float]]:
        pairs = (
            ("bytes", self.before.wire_bytes, self.after.wire_bytes),
            ("memory", self.before.memory_bytes, self.after.memory_bytes),
            ("time", self.before.step_s or 0.0, self.after.step_s or 0.0),
        )
        return [(n, (b - a) / a if a else float(b > a)) for n, a, b in pairs]


_NOTICEABLE = 0.002


@dataclass(frozen=True, slots=True)
class Fix:
    """What removes a finding, and can be tried.

    Attributes:
        text: What it does, in a sentence.
        code: Line to paste.
        place: Where to paste it.
        change: The same for the traced program. What only the script can do is no fix
            but a finding's `advice`.
        parameters: Spec by parameter, for a plan.
        outputs: Spec by module output, for a plan.
        proof: None where it was not tried.

    Raises:
        ValueError: A change that is empty: there is nothing to try.
    """

    text: str
    code: str
    place: str
    change: Change
    parameters: Mapping[str, Spec] = field(default_factory=dict)
    outputs: Mapping[str, Spec] = field(default_factory=dict)
    proof: Proof | None = None

    def __post_init__(self) -> None:
        if not self.change:
            raise ValueError(
                f"fix {self.text!r}: its change is empty, so it cannot be tried; give "
                f"what it does to the traced program, or say it as Finding.advice"
            )
        for name in ("parameters", "outputs"):
            view = MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, view)


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """Something that costs, and that an annotation, a spec or a flag decides.

    Attributes:
        kind: Its class; ``docs/findings/KIND.md`` tells of it.
        severity: ``note`` where nothing need be done.
        where: Module, tensor or annotation that it is about; with `kind` its identity.
        what: What happens, in a sentence.
        why: How that came about, from annotation to annotation.
        wanted: Whether the specs of weights and batch ask for it.
        tensors: What moves or is held, most bytes first.
        axes: Mesh axes that it moves over.
        link: Slowest link that it crosses; empty if none or unknown.
        modules: Modules that need what moves.
        phases: Parts of the step in which it moves.
        sources: ``file:line`` of the user's code.
        collectives: Names of the collectives; see `Collective.name`.
        wire_bytes: Sent by a device in a step.
        held_bytes: Memory of a device that it takes; 0 where it only moves.
        exposed_s: Estimated time in which compute waits for it; None without timeline.
        fix: None where there is none, or where it was tried and does not help.
        others: Further fixes: each may help where the first does not.
        tried: What was compiled to no avail.
        goes_with: Fixes of other findings that remove this one too.
        advice: What only the script can do about it, which was not tried; a sentence.
    """

    kind: FindingKind
    severity: Severity
    where: str
    what: str
    why: tuple[str, ...]
    wanted: bool
    tensors: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    link: str = ""
    modules: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    wire_bytes: int = 0
    held_bytes: int = 0
    exposed_s: float | None = None
    fix: Fix | None = None
    others: tuple[Fix, ...] = ()
    tried: tuple[str, ...] = ()
    goes_with: str = ""
    advice: str = ""

    @property
    def is_problem(self) -> bool:
        """Something should be done."""
        return self.severity == "problem"

    @property
    def fixes(self) -> tuple[Fix, ...]:
        """All that may remove it, best first."""
        return self.others if self.fix is None else (self.fix, *self.others)

    def with_fix(self, fix: Fix | None, *, tried: tuple[str, ...] = ()) -> Finding:
        """The same finding with one fix, whatever it had.

        Args:
            fix: The fix; None for none.
            tried: What did not help.

        Returns:
            A new finding.
        """
        return replace(self, fix=fix, others=(), tried=(*self.tried, *tried))

    def as_json(self) -> dict[str, Any]:
        """All of it as data; `profiling/schema/explain.json` describes the form.

        Returns:
            Dicts, lists, strings, numbers, bools and None.
        """
        from profiling._findings.as_json import finding_as_json

        return finding_as_json(self)

    def __repr__(self) -> str:
        return f"Finding({self.severity} {self.kind} at {self.where or 'the step'})"
