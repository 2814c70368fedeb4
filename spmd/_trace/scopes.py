"""Where each traced operation comes from: phase, module, and the user's source line.

Every operation is seen by a dispatch mode while the step is traced. Forward operations
take the module that is running and the innermost frame outside the libraries; backward
operations take those of the forward operation whose gradient they compute, found by the
sequence number that autograd gives both.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from spmd._torch_xla import trace as torch_xla_trace

SCOPE = "spmd-site-"
"""Begins the scope name that carries a site's number through torch_xla."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where operations come from.

    Attributes:
        phase: ``forward``, ``backward`` or ``update``.
        module: Path of the module, empty outside all of them.
        file: The user's source file, empty if there is none on the stack.
        line: Line in it.
    """

    phase: str
    module: str
    file: str
    line: int


class Sites(TorchDispatchMode):
    """Numbers the sites of a traced step.

    Args:
        model: The model whose module paths are used.
    """

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__()
        named = list(model.named_modules()) if model is not None else []
        self._paths = {id(m): n for n, m in named}
        self._owners = {
            id(p): n for n, m in reversed(named) for p in m._parameters.values()
        }
        self._numbers: dict[Site, int] = {}
        self._start()
        self._step = ExitStack()  # holds what lasts for an optimizer's step
        self._is_bare = False
        self.is_recording = False
        """Whether the step is running."""
        self.updating = False
        """Whether an optimizer is in its step."""
        self.unnamed: Site | None = None
        """Site of the operations that have no name: those of the optimizer."""

    def _start(self) -> None:
        self._forward: dict[int, Site] = {}
        self._backward: Site | None = None  # of the last operation, once there is one
        self._stack: list[str] = []

    @property
    def sites(self) -> list[Site]:
        """Sites by number."""
        return list(self._numbers)

    @property
    def module(self) -> str:
        """Path of the module that is running; empty outside all of them."""
        return self._stack[-1] if self._stack else ""

    @property
    def in_forward(self) -> bool:
        """Whether neither a backward nor an optimizer is running."""
        return not self.updating and torch._C._current_graph_task_id() == -1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        held = self.scope()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            del held

    def scope(self) -> Any:
        """Name what is recorded now, for what no dispatch mode sees.

        Returns:
            An object; the name lasts until it is deleted.
        """
        if self._is_bare:
            return None
        site = self._site()
        number = self._numbers.setdefault(site, len(self._numbers))
        return torch_xla_trace.scope(f"{SCOPE}{number}")

    def _site(self) -> Site:
        if self.updating and not self._stack:
            return Site("update", "", *user_frame())
        if torch._C._current_graph_task_id() == -1:
            site = Site(self._phase(), self.module, *user_frame())
        elif self._stack:  # a forward inside the backward: recomputation
            site = Site("backward", self.module, *user_frame())
        else:
            self._backward = self._gradient_site()
            return self._backward
        # Operations that autograd does not record have the number of the one before.
        self._forward.setdefault(_sequence_number() - 1, site)
        return site

    def _phase(self) -> str:
        if self._backward is None or self._stack:
            return "forward"
        # Between backward and optimizer: clipping of gradients, running averages.
        # (torch_xla's clip_grad_norm_ leaves the recording of gradients on.)
        updates = not torch.is_grad_enabled() or _is_clipping()
        return "update" if updates else "forward"

    def _gradient_site(self) -> Site:
        node: Any = torch._C._current_autograd_node()
        if node is None:  # gradients that meet are added outside of any node
            return self._backward or Site("backward", "", "", 0)
        forward = self._forward.get(node._sequence_nr())
        if forward is not None:
            return Site("backward", forward.module, forward.file, forward.line)
        parameter = getattr(node, "variable", None)  # of an AccumulateGrad
        owner = self._owners.get(id(parameter), "")
        if self._backward is not None and self._backward.module == owner:
            return self._backward  # it runs right after what computed the gradient
        return Site("backward", owner, "", 0)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Watch modules and optimizers, and name operations, inside this context.

        Autograd stays on this thread: its own would number recomputed operations from
        zero again.

        Yields:
            Nothing.
        """
        handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        ]
        self._start()
        self.is_recording = True
        try:
            with (
                torch.autograd.set_multithreading_enabled(False),
                torch_xla_trace.operation_names(),
                self,
                self._step,
            ):
                yield
        finally:
            self.is_recording = False
            for handle in handles:
                handle.remove()

    def _begin_update(self, _optimizer: Any, args: Any, kwargs: Any) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None:  # it runs the model: no update
            return
        self.updating = True
        site = Site("update", "", *user_frame())
        self.unnamed = self.unnamed or site
        if site == self.unnamed and _get_current_dispatch_mode() is self:
            self._step.enter_context(self._bare())

    def _end_update(self, *_: Any) -> None:
        self.updating = False
        self._step.close()

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """Name nothing: an optimizer has most of the operations, and all one site."""
        self.__exit__(None, None, None)
        self._is_bare = True
        try:
            with torch_xla_trace.operation_names(False):
                yield
        finally:
            self._is_bare = False
            self.__enter__()

    def _enter(self, module: nn.Module, _args: Any) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self._stack.append(path)

    def _leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if id(module) in self._paths and self._stack:
            self._stack.pop()


def _sequence_number() -> int:
    """What autograd will give the next operation that it records."""
    autograd: Any = torch._C._autograd  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs
    return autograd._get_sequence_nr()


def user_frame() -> tuple[str, int]:
    """File and line of the innermost frame outside torch, torch_xla and this library.

    Returns:
        ``("", 0)`` where there is none, as in a backward pass.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _library_files:
            _library_files[name] = _is_library(name)
        if not _library_files[name]:
            return name, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _is_clipping() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.startswith("clip_grad"):
            return True
        frame = frame.f_back
    return False


_library_files: dict[str, bool] = {}
_LIBRARIES = ("torch", "torch_xla", "spmd", "fsdpv2", "transformers")
_PLUMBING = (contextmanager.__code__.co_filename, "<frozen ", "<eval_with_key>")
"""Standard library, imports, and code that torch.fx generates."""
# What is in transformers/models is the user's; GPT-2's linear layers, attention and
# experts stand elsewhere in it, and their one line would say nothing.


@functools.cache
def _folders() -> tuple[tuple[str, ...], str]:
    """How paths of library files begin, and of models among them."""
    found = [find_spec(name) for name in _LIBRARIES]
    origins = [spec.origin for spec in found if spec is not None and spec.origin]
    folders = [f"{Path(origin).parent.as_posix()}/" for origin in origins]
    models = next((f for f in folders if f.endswith("/transformers/")), "?") + "models/"
    return (*folders, *_PLUMBING), models


def _is_library(name: str) -> bool:
    name = name.replace("\\", "/")
    libraries, models = _folders()
    return name.startswith(libraries) and not name.startswith(models)
