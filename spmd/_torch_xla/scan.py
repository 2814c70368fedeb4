"""The part of the seam to torch_xla that records a loop.

Like `seam`, written against torch_xla 2.9; nothing else may touch its internals.
torch_xla's own `scan` asks for all inputs before it has seen the body, which may then
need random keys; it makes whole numbers of truth values, and gives each loop random
values of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_builder as xb

from spmd._torch_xla.graph import seed
from spmd._unwind import drop_values

Tensors = list[torch.Tensor]
_XLAC: Any = torch_xla._XLAC  # pyright: ignore[reportPrivateImportUsage] # the seam


class Late:
    """Further inputs of a loop, made while its body is recorded."""

    def __init__(self) -> None:
        self.values: Tensors = []
        """Tensors [runs, ...]."""
        self.twins: Tensors = []
        self.seeds: list[tuple[int, int]] = []

    def add(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Have the body take a slice of a tensor from outside too.

        Args:
            make: Makes it, [runs, ...]; it may draw random values.

        Returns:
            The slice, for the body.
        """
        before = seed()
        value = make()
        self.seeds.append((before, seed()))
        self.values.append(value)
        self.twins.append(_twin(value, 1))
        return _computed(self.twins[-1])


def loop(
    body: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carry: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    *,
    reverse: bool = False,
    late: Late | None = None,
) -> tuple[Tensors, Tensors]:
    """Run one body for each entry of the leading dim, as a loop of the compiler.

    The body is recorded once, on traced values that hold no data: annotations inside it
    work. Gradients are not tracked. None of these values may outlive the loop, since
    torch_xla would run them with all others, and the process ends.

    Args:
        body: Takes what is carried and a slice of `xs`; gives what is carried on, of
            the same shapes, and what is kept of each run.
        carry: What the first run starts from.
        xs: Tensors [runs, ...].
        reverse: From the last entry to the first.
        late: Inputs that the body adds.

    Returns:
        What the last run carried on, and what was kept, [runs, ...].

    Raises:
        ValueError: A body that draws random values, of the seed that it would share
            with all other runs; or one that carries on other shapes or dtypes.
    """
    late = Late() if late is None else late
    with torch.no_grad():
        try:
            recorded, kept = _recorded(body, carry, xs, late)
        except BaseException as error:  # which may be kept, with all that it saw
            drop_values(error)
            raise
        stacks = [*xs, *late.values]
        runs = stacks[0].shape[0]
        filled = [
            torch.zeros(runs, *shape, dtype=dtype, device=carry[0].device)
            for shape, dtype in kept
        ]
        found = _while(recorded, list(carry), stacks, filled, runs, reverse)
    return found[: len(carry)], found[len(carry) :]


class _Body:
    """A recorded body: a computation, and what its parameters are.

    Args:
        outputs: What it gives.
        inputs: Stand-ins for what it takes.
    """

    def __init__(self, outputs: Tensors, inputs: Tensors) -> None:
        context = _XLAC.lowering.LoweringContext("FnComputation")
        context.set_name_string("fn_ctx")
        context.build(outputs)
        hlo = context.hlo()
        self.computation = xb.computation_from_module_proto("fn_computation", hlo)
        numbers = [context.tensor_parameter_id(t) for t in inputs]
        found: dict[int, torch.Tensor] = context.device_parameter_id_tensor_mapping()
        self.others = [n for n in found if n not in numbers]
        self.values = [found[n].to(outputs[0].device) for n in self.others]
        """What it reads besides: constants and tensors from outside."""
        self.numbers = [*numbers, *self.others]


def _while(
    body: _Body,
    carry: Tensors,
    stacks: Tensors,
    filled: Tensors,
    runs: int,
    reverse: bool,
) -> Tensors:
    """The loop: what was carried last, and what was kept."""
    start = torch.tensor(0, device=carry[0].device)
    inputs = [start, *carry, *stacks, *filled, *body.values]
    builder = xb.create_builder("scan")
    given = [xb.mkparam(builder, i, xb.tensor_shape(t)) for i, t in enumerate(inputs)]
    ends = [1 + len(carry)]
    ends += [ends[0] + len(stacks), ends[0] + len(stacks) + len(filled)]

    def whole(at: Any, number: int) -> Any:
        return xb.Op.scalar(at.builder(), number, dtype=xb.Type.S64)

    def more(at: Any, *_: Any) -> Any:
        return at < whole(at, runs)

    def once(at: Any, *now: Any) -> tuple[Any, ...]:
        values = [at, *now]
        index = whole(at, runs - 1) - at if reverse else at
        sliced = [_slice(stack, index) for stack in values[ends[0] : ends[1]]]
        taken = [*values[1 : ends[0]], *sliced, *values[ends[2] :]]
        by_number = dict(zip(body.numbers, taken, strict=True))
        used = [by_number[n] for n in sorted(by_number) if n >= 0]
        out = xb.Op.call(body.computation, used)
        values[0] = at + whole(at, 1)
        for i in range(len(carry)):
            values[1 + i] = out.get_tuple_element(i)
        for i in range(len(filled)):
            value = out.get_tuple_element(len(carry) + i)
            values[ends[1] + i] = _put(values[ends[1] + i], value, index)
        return tuple(values)

    computation = xb.Op.mkwhile(given, more, once).build("scan")
    found = _XLAC._xla_user_computation("xla::scan", inputs, computation)
    return [*found[1 : ends[0]], *found[ends[1] : ends[2]]]


def _twin(like: torch.Tensor, skip: int) -> torch.Tensor:
    return xb.create_placeholder_tensor(like.shape[skip:], like.dtype)


def _computed(value: torch.Tensor) -> torch.Tensor:
    """The same, computed: annotating data itself would put other data in its place."""
    return value | False if value.dtype == torch.bool else value * 1


def _recorded(
    body: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carry: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    late: Late,
) -> tuple[_Body, list[tuple[torch.Size, torch.dtype]]]:
    """A body, run on stand-ins, and what it keeps of each run."""
    twins = [_twin(t, 0) for t in carry], [_twin(t, 1) for t in xs]
    drawn_to = seed()
    out, kept = body(*([_computed(t) for t in some] for some in twins))
    _check_draws([drawn_to, *(s for pair in late.seeds for s in pair), seed()])
    _check_carried(carry, out)
    recorded = _Body([*out, *kept], [*twins[0], *twins[1], *late.twins])
    late.twins.clear()
    return recorded, [(t.shape, t.dtype) for t in kept]


def _check_draws(seeds: list[int]) -> None:
    """Pairs between which the seed must not have moved on."""
    if seeds[::2] != seeds[1::2]:
        raise ValueError(
            "the body of a loop draws random values, which all runs would share; draw "
            "them outside, or by counting"
        )


def _check_carried(carry: Sequence[torch.Tensor], out: Tensors) -> None:
    for before, after in zip(carry, out, strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise ValueError(
                f"a loop carries {list(before.shape)} {before.dtype} in and "
                f"{list(after.shape)} {after.dtype} on; they must be alike"
            )


def _slice(stack: Any, index: Any) -> Any:
    sizes = list(stack.shape().sizes)
    starts = [index, *(index.zeros_like() for _ in sizes[1:])]
    return stack.dynamic_slice(starts, [1, *sizes[1:]]).reshape(sizes[1:])


def _put(stack: Any, value: Any, index: Any) -> Any:
    starts = [index, *(index.zeros_like() for _ in stack.shape().sizes[1:])]
    return stack.dynamic_update_slice(value.broadcast([1]), starts)
