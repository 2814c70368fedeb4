"""`Replay`: run a schedule's instructions on a compute stream and on wires."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from profiling._collectives.async_pairs import collective_kind
from profiling._collectives.matmul_between import MatmulBetween
from profiling._collectives.ops import CollectiveOp
from profiling._hlo.loops import loops
from profiling._hlo.module import Computation, Instruction, Module
from profiling._hlo.op_name import parse_op_name
from profiling._targets.target import Target
from profiling._timeline.collective_cost import CollectiveCosts
from profiling._timeline.flops import Matmul
from profiling._timeline.op_cost import OpCosts
from profiling._timeline.timeline import Event, Stream
from profiling._timeline.wires import Transfer, Wires, waits

_COPIES = "copies"  # their wire


@dataclass(slots=True)
class _Drawn:
    """An event that a loop may still stretch."""

    name: str
    stream: Stream
    kind: str
    start_s: float
    duration_s: float
    num_runs: int
    source: Instruction


class Replay:
    """State of one replay.

    Args:
        module: The scheduled module.
        target: What it runs on.
        costs: Of its instructions.
        names: Its collectives, and what they are called.
    """

    def __init__(
        self,
        module: Module,
        target: Target,
        costs: OpCosts,
        names: Mapping[CollectiveOp, str],
    ) -> None:
        self.now = 0.0
        """Time of the compute stream."""
        self.charges: list[tuple[str, float, bool]] = []
        """Collective, seconds, and whether compute waits in them or they are all."""
        self.matmuls: list[tuple[Instruction, Matmul, float]] = []
        """What ran, what it multiplied, and how often."""
        self._module = module
        self._costs = costs
        self._links = CollectiveCosts(target)
        self._names = names
        self._starts: dict[Instruction, list[CollectiveOp]] = {}
        self._ends: dict[Instruction, list[CollectiveOp]] = {}
        for op in names:
            self._starts.setdefault(op.start, []).append(op)
            if op.done is not None:
                self._ends.setdefault(op.done, []).append(op)
        self._trips = {loop.instruction: loop.trip_count for loop in loops(module)}
        self._drawn: list[_Drawn] = []
        self._wires = Wires()
        self._flying: dict[CollectiveOp | Instruction, Transfer] = {}

    def run(self, computation: Computation, times: int = 1) -> None:
        """Run a computation in the order of its schedule.

        Args:
            computation: Of the module.
            times: Executions that this one stands for.
        """
        open_ends: list[CollectiveOp] = []
        for instruction in computation.instructions:
            for op in self._ends.get(instruction, ()):
                if op.is_async:
                    self._wait(self._flying.pop(op, None), times)
            started = self._starts.get(instruction, ())
            for op in started:
                self._start(op, times)
                if op.is_async and op.done is None:
                    open_ends.append(op)
            if not started or self._does_more(instruction, started):
                self._step(instruction, times)
        for op in open_ends:  # it ends elsewhere; here it is waited for at the latest
            self._wait(self._flying.pop(op, None), times)

    def events(self) -> tuple[Event, ...]:
        """What was drawn.

        Returns:
            Events in the order of their starts.
        """
        found = []
        for drawn in sorted(self._drawn, key=lambda d: d.start_s):
            scope = parse_op_name(drawn.source.metadata.op_name)
            found.append(
                Event(
                    drawn.name,
                    drawn.stream,
                    drawn.kind,
                    drawn.start_s,
                    drawn.duration_s,
                    drawn.num_runs,
                    scope.module,
                    scope.phase,
                )
            )
        return tuple(found)

    def with_matmul_between(self) -> set[CollectiveOp]:
        """Collectives that a matmul runs beside.

        Returns:
            Those that are asynchronous and have one between start and end.
        """
        between = MatmulBetween(self._module, self._costs)
        return {op for op in self._names if op.is_async and between(op)}

    def _does_more(
        self, instruction: Instruction, started: Iterable[CollectiveOp]
    ) -> bool:
        """Whether what starts collectives computes too, as a TPU's fusions do."""
        if instruction.opcode != "fusion":
            return False
        is_async = any(op.is_async for op in started)
        return is_async or bool(self._costs(instruction).matmuls)

    def _step(self, instruction: Instruction, times: int) -> None:
        opcode = instruction.opcode
        if opcode == "while" and instruction in self._trips:
            self._loop(instruction, times)
        elif opcode == "conditional":
            self._conditional(instruction, times)
        elif opcode == "call":
            for name in instruction.called:
                self.run(self._module.computation(name), times)
        elif opcode.endswith("-start") and not collective_kind(opcode):
            self._aside(instruction, times)
        elif opcode.endswith("-done") and instruction.operands:
            source = instruction.operands[0]
            while source.opcode.endswith("-update"):
                source = source.operands[0]
            arrived = self._flying.pop(source, None)
            self.now = max(self.now, arrived.end_s if arrived else 0.0)
        else:
            self._compute(instruction, times)

    def _compute(self, instruction: Instruction, times: int) -> None:
        cost = self._costs(instruction)
        if not cost.seconds:
            return
        self._draw(instruction, cost.kind, self.now, cost.seconds, times)
        self._multiplied(instruction, cost.matmuls, times)
        self.now += cost.seconds

    def _aside(self, instruction: Instruction, times: int) -> None:
        """A copy between memories, or other work, beside the compute stream."""
        seconds = self._costs.aside_seconds(instruction)
        if instruction.called:
            self._multiplied(instruction, self._costs(instruction).matmuls, times)
        self._flying[instruction] = self._wires.send(
            _COPIES, instruction.name, self.now, seconds
        )

    def _multiplied(
        self, instruction: Instruction, matmuls: tuple[Matmul, ...], times: int
    ) -> None:
        for found in matmuls:
            self.matmuls.append((instruction, found, float(times)))

    def _start(self, op: CollectiveOp, times: int) -> None:
        seconds = self._links.seconds(op)
        name = self._names[op]
        sent = self._wires.send(self._links.wire(op), name, self.now, seconds)
        self.charges.append((name, seconds * times, False))
        self._drawn.append(
            _Drawn(
                name,
                "communication",
                op.kind,
                sent.begin_s,
                seconds,
                times,
                op.instruction,
            )
        )
        if op.is_async:
            self._flying[op] = sent
        else:
            self._wait(sent, times)

    def _wait(self, sent: Transfer | None, times: int) -> None:
        if sent is None or sent.end_s <= self.now:
            return
        for name, seconds in waits(sent, self.now):
            self.charges.append((name, seconds * times, True))
        self.now = sent.end_s

    def _draw(
        self,
        instruction: Instruction,
        kind: str,
        start_s: float,
        seconds: float,
        times: int,
    ) -> None:
        self._drawn.append(
            _Drawn(
                instruction.name, "compute", kind, start_s, seconds, times, instruction
            )
        )

    def _loop(self, instruction: Instruction, times: int) -> None:
        """Run a body once and stretch it.

        While something from before the loop is on a wire, the first trip may differ
        from the others, so it is run on its own.
        """
        trips = self._trips[instruction]
        left = 1 if trips is None else trips
        if left > 1 and self._wires.busy_after(self.now):
            self._trip(instruction, 1, times)
            left -= 1
        if left:
            self._trip(instruction, left, times)

    def _trip(self, instruction: Instruction, trips: int, times: int) -> None:
        begin, first = self.now, len(self._drawn)
        body, condition = instruction.called
        self.run(self._module.computation(condition), times * trips)
        self.run(self._module.computation(body), times * trips)
        self.now = begin + (self.now - begin) * trips
        for drawn in self._drawn[first:]:
            drawn.start_s = begin + (drawn.start_s - begin) * trips
            drawn.duration_s *= trips

    def _conditional(self, instruction: Instruction, times: int) -> None:
        """Try every branch and keep the one that takes longest."""
        begin, wires, flying = self.now, self._wires, self._flying
        kept = (self.charges, self.matmuls, self._drawn)
        best = None
        for name in instruction.called:
            self.now, self._wires, self._flying = begin, wires.copy(), dict(flying)
            self.charges, self.matmuls, self._drawn = [], [], []
            self.run(self._module.computation(name), times)
            if best is None or self.now > best[0]:
                logs = (self.charges, self.matmuls, self._drawn)
                best = (self.now, self._wires, logs)
        self._flying = flying
        self.charges, self.matmuls, self._drawn = kept
        if best is not None:
            self.now, self._wires, (charges, matmuls, drawn) = best
            self.charges += charges
            self.matmuls += matmuls
            self._drawn += drawn
