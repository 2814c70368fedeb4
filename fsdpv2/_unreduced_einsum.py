"""Products of any form with weights whose gradients may stay where they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fsdpv2._how import How
from fsdpv2._made import Made
from fsdpv2._twice import twice


@dataclass(frozen=True, slots=True)
class Letters:
    """A product over some dims of rows and a weight, in the letters of `torch.einsum`.

    Attributes:
        x: Dims of [rows, ...].
        weight: Dims of the weight.
        out: Dims of the result, rows first.
    """

    x: str
    weight: str
    out: str

    @classmethod
    def read(cls, equation: str, *, weight: int) -> Letters | None:
        """Read an equation of two operands.

        Args:
            equation: As for `torch.einsum`.
            weight: Which of the two is the weight.

        Returns:
            None where rows are not the first dim of the result, or where a gradient is
            no product of the same kind.

        Example:
            >>> Letters.read("bse, ehd -> bshd", weight=1)
            Letters(x='bse', weight='ehd', out='bshd')
            >>> Letters.read("bse,ee->bs", weight=1) is None
            True
        """
        left, arrow, out = equation.replace(" ", "").partition("->")
        both = left.split(",")
        if not arrow or len(both) != 2 or not (left + out).replace(",", "").isalpha():
            return None
        its, x = both[weight], both[1 - weight]
        if any(len({*part}) < len(part) for part in (its, x, out)) or not x or not out:
            return None
        rows = x[0]
        known = {*x} <= {*its, *out} and {*its} <= {*x, *out} and {*out} <= {*x, *its}
        return (
            cls(x, its, out) if known and out[0] == rows and rows not in its else None
        )

    def fit(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether tensors have these dims, and no dim of one meets a longer one."""
        if x.ndim != len(self.x) or weight.ndim != len(self.weight):
            return False
        sizes = dict(zip(self.x, x.shape, strict=True))
        its = zip(self.weight, weight.shape, strict=True)
        return all(sizes.get(letter, size) == size for letter, size in its)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The product."""
        return torch.einsum(f"{self.x},{self.weight}->{self.out}", x, weight)

    def of_x(self, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the rows."""
        return torch.einsum(f"{self.out},{self.weight}->{self.x}", grad, weight)

    def of_weight(
        self, grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
    ) -> torch.Tensor:
        """The gradient of the weight."""
        equation = f"{self.out},{self.x}->{self.weight}"
        return torch.einsum(equation, grad.to(dtype), x.to(dtype))

    def by_device(
        self, grad: torch.Tensor, x: torch.Tensor, *, dtype: torch.dtype
    ) -> torch.Tensor:
        """The same of the rows of each device: [devices, *shape of the weight]."""
        free = next(
            c for c in "abcdefghijklmnopqrstuvwxyz" if c not in self.x + self.out
        )
        equation = f"{free}{self.out},{free}{self.x}->{free}{self.weight}"
        return torch.einsum(equation, grad.to(dtype), x.to(dtype))


class Einsum(torch.autograd.Function):
    """A product of rows and a weight."""

    @staticmethod
    def forward(
        ctx: Any,
        letters: Letters,
        x: torch.Tensor,
        weight: torch.Tensor,
        made: Made,
        how: How,
        *masters: torch.Tensor,
    ) -> torch.Tensor:
        """Multiply.

        Args:
            ctx: What the backward pass needs.
            letters: Over which dims.
            x: [rows, ...].
            weight: Values of the weight.
            made: Of what that is made.
            how: How gradients of weights are made.
            *masters: Who has them.

        Returns:
            [rows, ...].
        """
        ctx.save_for_backward(x, weight)
        ctx.letters, ctx.made, ctx.how = letters, made, how
        return letters.forward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of `x`, and of those weights that are not kept in parts.

        Args:
            ctx: From the forward pass.
            *grads: One, of the result.

        Returns:
            As many as the forward pass has arguments.
        """
        x, weight = ctx.saved_tensors
        (grad,) = grads
        letters = ctx.letters
        if torch.is_grad_enabled():
            (of_x,), again = twice(letters.forward, (x,), (ctx.made,), grad)
            return None, of_x, None, None, None, *again
        of_x = letters.of_x(grad, weight) if ctx.needs_input_grad[1] else None
        of_weights = ctx.how.gradients(
            ctx.made,
            ctx.needs_input_grad[5:],
            (grad, x),
            letters.by_device,
            letters.of_weight,
        )
        return None, of_x, None, None, None, *of_weights
