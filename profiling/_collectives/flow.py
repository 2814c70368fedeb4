"""`Flow`: one step back from a value to what it was made of.

A value is one array: an instruction and, where that gives a tuple, the index of an
element in it. Tuples, fusions, calls, loops, branches and asynchronous wrappers are
looked through; what computes with whole arrays (a matmul, a reduction) ends the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from profiling._collectives.async_pairs import collective_kind
from profiling._hlo.module import Computation, Instruction, Module

Value: TypeAlias = tuple[Instruction, tuple[int, ...]]
"""An instruction, and the index of an element of its result; empty for the whole."""

Way: TypeAlias = Literal["on", "constant", "input", "computed"]
"""How it goes on: to other values, or it ends in one of three ways."""

Step: TypeAlias = tuple[Way, tuple[Value, ...]]

_CONSTANT: Step = ("constant", ())
_COMPUTED: Step = ("computed", ())

_FIRST = frozenset(  # the first operand, moved, cast or cut
    """
    add-dependency bitcast bitcast-convert convert copy domain dynamic-slice
    get-dimension-size opt-barrier optimization-barrier pad reduce-precision reshape
    reverse set-dimension-size slice transpose
    """.split()
)
_EVERY = frozenset(  # element by element, or side by side
    """
    abs add and atan2 cbrt ceil compare complex concatenate cosh cosine divide erf
    exponential exponential-minus-one floor imag is-finite log log-plus-one logistic
    maximum minimum multiply negate not or power real remainder round-nearest-afz
    round-nearest-even rsqrt shift-left shift-right-arithmetic shift-right-logical sign
    sine sinh sqrt stochastic-convert subtract tan tanh xor
    """.split()
)
_MADE_HERE = frozenset(("constant", "iota", "partition-id", "replica-id", "after-all"))
_PASSING_CALLS = frozenset(
    """
    AsyncCollectiveStart ConcatBitcast LayoutConstraint MoveToDevice MoveToHost
    SPMDFullToShardShape SPMDShardToFullShape Sharding ZeroCrop
    annotate_device_placement
    """.split()
)


class Flow:
    """Steps back through one module.

    Args:
        module: Any module.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._callers: dict[str, list[Instruction]] = {}
        self._home: dict[Instruction, Computation] = {}
        for computation in module.computations:
            for instruction in computation.instructions:
                for name in instruction.called:
                    self._callers.setdefault(name, []).append(instruction)
                if instruction.opcode == "parameter":
                    self._home[instruction] = computation

    def before(self, value: Value) -> Step:
        """What a value was made of.

        Args:
            value: Of this module.

        Returns:
            ``"on"`` and the values it comes from, element by element;
            ``"constant"``: no data, or one number spread over the array;
            ``"input"``: an input of the module;
            ``"computed"``: its instruction works on whole arrays.
        """
        try:
            return self._before(*value)
        except (IndexError, KeyError):  # fewer operands or elements than it should have
            return _COMPUTED

    def _before(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode in _FIRST and operands:
            return self._first(instruction, index)
        if opcode in _EVERY:
            return _on((o, index) for o in operands)
        if opcode in _MADE_HERE:
            return _CONSTANT
        if opcode in _SPECIAL:
            return _SPECIAL[opcode](self, instruction, index)
        if collective_kind(opcode) or opcode.endswith(("-start", "-done", "-update")):
            return self._moved(instruction, index)
        return _COMPUTED

    def _first(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        return _on([(instruction.operands[0], index)])

    def _tuple(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        if not index or index[0] >= len(instruction.operands):
            return _COMPUTED
        return _on([(instruction.operands[index[0]], index[1:])])

    def _element(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        number = instruction.attributes.tuple_index
        return _on([(instruction.operands[0], (number, *index))])

    def _broadcast(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        source = instruction.operands[0]
        if source.shape.num_elements < instruction.shape.num_elements:
            return _CONSTANT
        return _on([(source, index)])

    def _reduce(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        """Only dims of size 1 that go, which changes nothing."""
        source = instruction.operands[0]
        if instruction.shape.is_tuple or (
            source.shape.num_elements != instruction.shape.num_elements
        ):
            return _COMPUTED
        return _on([(source, index)])

    def _select(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        return _on((o, index) for o in instruction.operands[1:])

    def _clamp(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        return _on((o, index) for o in instruction.operands[1:2])

    def _scatter(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        """What is added to: as the gradient of a tied head, to which rows are added."""
        return _on([(instruction.operands[index[0] if index else 0], ())])

    def _update(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        """Of a dynamic-update-slice: what is updated, and what with."""
        return _on((o, index) for o in instruction.operands[:2])

    def _call(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        return _on([(self._root(instruction.called[0]), index)])

    def _while(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        body = self._root(instruction.called[0])
        return _on([(body, index), (instruction.operands[0], index)])

    def _conditional(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        return _on((self._root(name), index) for name in instruction.called)

    def _custom(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        target, operands = (
            instruction.attributes.custom_call_target,
            (instruction.operands),
        )
        if target == "AllocateBuffer":
            return _CONSTANT
        if target == "AsyncCollectiveDone":
            inner = [o for o in operands if collective_kind(o.opcode)]
            return _on((o, ()) for o in inner or operands[:1])
        if target == "AsyncCollectiveStart":  # operand, result, and its own state
            return _on((o, ()) for o in operands[:1]) if index[:1] < (2,) else _CONSTANT
        if target in _PASSING_CALLS:
            return _on((o, index) for o in operands)
        return _COMPUTED

    def _parameter(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        computation = self._home[instruction]
        if computation is self._module.entry:
            return "input", ()
        number, found = instruction.attributes.parameter, []
        for caller in self._callers.get(computation.name, ()):
            opcode, operands = caller.opcode, caller.operands
            if opcode == "while":
                found.append((operands[0], index))
                if computation.name == caller.called[0]:
                    found.append((computation.root, index))
                else:
                    found.append((self._root(caller.called[0]), index))
            elif opcode == "conditional":
                branch = caller.called.index(computation.name)
                found.append((operands[branch + 1], index))
            elif opcode in ("fusion", "call", "async-start"):
                if number < len(operands):
                    found.append((operands[number], index))
            elif not opcode.startswith("async-"):
                return _COMPUTED  # the function of a reduction
        return _on(found)

    def _moved(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        """Collectives, and halves of what is asynchronous."""
        opcode, operands = instruction.opcode, instruction.operands
        if not operands or opcode in ("infeed", "send", "recv", "outfeed"):
            return _COMPUTED
        if opcode.endswith("-done"):
            kept = opcode in ("all-reduce-done", "copy-done")
            if opcode == "copy-done":
                index = (0,)
            return _on([(operands[0], index if kept else (1, *index))])
        if opcode.endswith("-update"):
            return _on([(operands[0], index)])
        if opcode == "async-start":
            return self._wrapped(instruction, index)
        if opcode.endswith("-start") and opcode != "all-reduce-start":
            if index[:1] and index[0] > 1:
                return _CONSTANT  # the state of the transfer
            index = index[1:]
        if opcode == "copy-start" or not collective_kind(opcode):
            return _on([(operands[0], ())])
        number = index[0] if index else 0
        return _on([(operands[number if number < len(operands) else 0], ())])

    def _wrapped(self, instruction: Instruction, index: tuple[int, ...]) -> Step:
        if index[:1] == (0,) and len(index) > 1:
            return _on([(instruction.operands[index[1]], index[2:])])
        if index[:1] == (1,):
            return _on([(self._root(instruction.called[0]), index[1:])])
        return _CONSTANT

    def _root(self, name: str) -> Instruction:
        return self._module.computation(name).root


_SPECIAL: dict[str, Callable[[Flow, Instruction, tuple[int, ...]], Step]] = {
    "broadcast": Flow._broadcast,
    "call": Flow._call,
    "clamp": Flow._clamp,
    "conditional": Flow._conditional,
    "custom-call": Flow._custom,
    "dynamic-update-slice": Flow._update,
    "fusion": Flow._call,
    "get-tuple-element": Flow._element,
    "parameter": Flow._parameter,
    "reduce": Flow._reduce,
    "scatter": Flow._scatter,
    "select": Flow._select,
    "tuple": Flow._tuple,
    "while": Flow._while,
}


def _on(values: Iterable[Value]) -> Step:
    return "on", tuple(values)
