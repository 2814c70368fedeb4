"""`TokenLayout`: where the tokens of a mixture of experts are, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from spmd._marking.mark import get_sharding
from spmd._marking.place import placed
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import SpecEntry, entry_axes, normalize_spec

_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


@dataclass(frozen=True, slots=True, eq=False)
class TokenLayout:
    """Where tokens are: apart around the experts, and together where experts differ.

    Inside they are [rows, columns, tokens], so that a split over the axes that stay and
    one over those of the experts are of dims of their own, which the partitioner needs
    to scatter the sum over experts. Where the sequence is split around the experts they
    are [rows, columns * batch, seq], for the same reason.

    Attributes:
        mesh: The mesh; None where nothing is annotated.
        stay: Axes that split tokens around the experts and among them.
        gather: Axes that split tokens around the experts, and experts.
        expert: Entry that splits experts.
        features: Entry that splits intermediate features.
        source: What tokens are a view of, [batch, seq, hidden], where that is split by
            the sequence.
        sequence: Entry that splits it.
    """

    mesh: Mesh | None
    stay: SpecEntry = None
    gather: SpecEntry = None
    expert: SpecEntry = None
    features: SpecEntry = None
    source: torch.Tensor | None = None
    sequence: SpecEntry = None

    @classmethod
    def of(
        cls, down: torch.Tensor, hidden: torch.Tensor, *, features: int
    ) -> TokenLayout:
        """As the annotations of a weight and of the tokens say."""
        known = get_sharding(down)
        if known is None or down.device.type != "xla":
            return cls(None)
        mesh, spec = known.mesh, known.spec
        experts = entry_axes(spec[0])
        inside = {*experts, *entry_axes(spec[features])}
        stay = tuple(a for a in mesh.data_axes if a not in inside)
        ways = mesh.axis_size((*stay, *experts))
        if hidden.shape[0] % ways:
            return cls(None)  # a few tokens, which the compiler may put where it likes
        rows, columns = normalize_spec([stay, experts], mesh, shape=None, name="tokens")
        made = cls(mesh, rows, columns, spec[0], spec[features])
        source = _flattened(hidden)
        around = None if source is None else get_sharding(source)
        if source is None or around is None or source.shape[0] % ways:
            return made
        sequence = entry_axes(around.spec[1])
        if not sequence or {*sequence} & {*stay, *experts}:
            return made
        return replace(made, source=source, sequence=around.spec[1])

    @property
    def axes(self) -> tuple[str, ...] | None:
        """Axes that split rows among the experts; None where nothing is annotated."""
        if self.mesh is None:
            return None
        stay = entry_axes(self.stay)
        return tuple(a for a in stay if self.mesh.axis_size(a) > 1)

    def meet(self, x: torch.Tensor, last: SpecEntry) -> torch.Tensor:
        """Gather tokens [tokens, last], split by `last`; their gradient is scattered.

        8 tokens over 2 devices of axes that stay and 2 of experts are [2, 2, 2, last].
        """
        if self.mesh is None:
            return x
        x = x.reshape(*self._sizes(), *x.shape[1:])
        apart = (self.stay, self.gather, None, None)
        together = (self.stay, None, None, last)
        return placed(placed(x, self.mesh, apart), self.mesh, together, grad=apart)

    def meet_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same for what experts compute with.

        Where the sequence is split, the gradient is scattered by that too, and goes to
        the source: as that of [tokens, hidden] it would have to be reduced whole, and
        to be added to the router's first.
        """
        if self.source is None:
            return self.meet(hidden, None)
        return _MeetSource.apply(self.meet(hidden.detach(), None), self.source, self)  # pyright: ignore[reportReturnType] - untyped in torch

    def split(self, x: torch.Tensor, *entries: SpecEntry) -> torch.Tensor:
        """[rows, columns, tokens, ...] by what splits the last dims."""
        if self.mesh is None:
            return x
        return placed(x, self.mesh, (self.stay, None, None, *entries))

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """Scatter the sum over experts; its gradient is gathered."""
        if self.mesh is None:
            return x
        apart = (self.stay, self.gather, self.sequence, None)
        if self.source is not None:
            return self._scatter(x)  # gathered in the products it goes into
        together = (self.stay, None, None, None)
        return placed(placed(x, self.mesh, apart, grad=together), self.mesh, apart)

    def scattered(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient [..., hidden] as that of the source, added up over devices."""
        assert self.mesh is not None and self.source is not None
        return self._scatter(grad).reshape(self.source.shape)

    def _scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Over one axis after the other, as the partitioner scatters no two dims."""
        assert self.mesh is not None
        apart = (self.stay, self.gather, self.sequence, None)
        if entry_axes(self.gather):
            x = placed(x, self.mesh, (self.stay, self.gather, None, None), grad=apart)
        return placed(x, self.mesh, apart)

    def _sizes(self) -> tuple[int, int, int]:
        """Of the dims that tokens become."""
        assert self.mesh is not None
        stay = self.mesh.axis_size(entry_axes(self.stay))
        if self.source is not None:
            return stay, -1, self.source.shape[1]
        return stay, self.mesh.axis_size(entry_axes(self.gather)), -1


def _flattened(hidden: torch.Tensor) -> torch.Tensor | None:
    """What tokens [batch * seq, hidden] are a view of, [batch, seq, hidden]."""
    source, made_by = hidden._base, hidden.grad_fn
    if source is None or made_by is None or source.ndim != 3:
        return None
    # By one view: what is transposed first has its elements in another order.
    parents = [parent for parent, _ in made_by.next_functions]
    is_view = made_by.name() in _VIEWS and parents == [source.grad_fn]
    return source if is_view and source.shape[-1] == hidden.shape[-1] else None


class _MeetSource(torch.autograd.Function):
    """Tokens where they meet, whose gradient goes to what they are a view of."""

    @staticmethod
    def forward(
        ctx: Any, tokens: torch.Tensor, source: torch.Tensor, layout: TokenLayout
    ) -> torch.Tensor:
        ctx.layout = layout
        return tokens.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, ctx.layout.scattered(grads[0]), None
