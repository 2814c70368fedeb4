"""`Runner`: executes a program on jax's devices and keeps its state there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from spmd._host_spans import step_span
from spmd._jax import running
from spmd._jax.device_array import DeviceArray, HostValue, as_numpy, put
from spmd._jax.feed import feed, some
from spmd._jax.reshard import resharded
from spmd._jax.same_program import check_same, notes
from spmd._pjrt import client as pjrt
from spmd._program.program import Program
from spmd._program.stablehlo import signature
from spmd._program.value import STATE_ROLES, Role

if TYPE_CHECKING:
    import torch

DEFAULT_SEED = 101  # torch_xla's, so that unseeded runs match: _torch_xla.DEFAULT_SEED


@final
class Runner:
    """A program, compiled for devices, with its state on them.

    Fill it with `put`, then call `step` with each batch. State that the program
    updates is donated: its memory is used again for the new values.

    Args:
        program: What to run.
        devices: A platform (``"cpu"``, ``"gpu"``, ``"tpu"``), jax's devices in
            partition order, or None for jax's default platform.
        options: XLA flags by name, passed as compile options.
        shardy: Partition with Shardy instead of GSPMD, which torch_xla uses.
        timeout_s: With several processes: how long the slowest may take to arrive at
            its first step.

    Raises:
        ValueError: Another number of devices than the program needs, or a module whose
            arguments and results are not what the program says.
    """

    def __init__(
        self,
        program: Program,
        devices: str | Sequence[pjrt.Device] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        shardy: bool = False,
        timeout_s: float = 300.0,
    ) -> None:
        self.program = program
        self.devices = _chosen(program, devices)
        self._options = dict(options or {})
        self._shardy = shardy
        self._timeout_s = timeout_s
        _check_module(program)
        self._shardings = [
            pjrt.placement(self.devices, s) for s in program.input_shardings
        ]
        self._index = {v.name: i for i, v in enumerate(program.inputs)}
        self._arrays: list[jax.Array | None] = [None] * len(program.inputs)
        self._seed = DEFAULT_SEED
        self._executable: pjrt.Executable | None = None
        stored = program.constants
        for name, bits in stored.items():
            dtype = np.dtype(program.inputs[self._index[name]].dtype)
            self._set(self._index[name], bits.view(dtype))
        self._set_seed(DEFAULT_SEED)

    def put(self, state: Mapping[str, HostValue], *, partial: bool = False) -> None:
        """Set inputs that are kept between steps: parameters, moments, the seed, ...

        Args:
            state: By name: a numpy array, a torch tensor, or a function that is called
                with the index of each piece (one slice per dim) and returns it, so that
                no host ever holds the whole.
            partial: More will follow; otherwise all state must have a value afterwards.

        Raises:
            TypeError: Something that is no array.
            ValueError: A name the program does not have or that is an input of each
                step, another shape or dtype, or state without a value.
        """
        for name, value in state.items():
            index = self._index_of(name)
            target = self.program.inputs[index]
            if target.role == "input":
                raise ValueError(
                    f"{name!r} is no state; give it to step() in the batch"
                )
            if target.role == "rng":
                number = value if isinstance(value, int) else as_numpy(value, target)
                self._set_seed(int(number))
            else:
                self._set(index, value)
        missing = [] if partial else self._missing(("learning_rate",))
        if missing:
            raise ValueError(
                f"{some(missing)} of program {self.program.name!r} got no value; put "
                f"them too, or call put(..., partial=True) until all have one"
            )

    def step(
        self,
        batch: Any = None,
        *,
        learning_rate: float | Sequence[float] | Mapping[str, float] | None = None,
    ) -> dict[str, DeviceArray]:
        """Run once; returns before the result is computed.

        Args:
            batch: The arguments of the traced step, as numpy arrays or torch tensors:
                the one argument, or a mapping of all by name. With several processes
                each passes its own rows. What the program does not read is left out.
            learning_rate: For all parameter groups, for each in order, or by input
                name; kept for later steps.

        Returns:
            Outputs by name, those that are new state left out.

        Raises:
            TimeoutError: First step only: another process did not arrive.
            TypeError: Something in the batch that is no array.
            ValueError: State, a learning rate or a batch tensor without a value, or of
                another shape or dtype; a compile option the compiler refuses; first
                step only: another process runs something else.
        """
        with step_span():
            arrays, problem = [], None
            try:
                arrays = self._arguments(batch, learning_rate)
            except (TypeError, ValueError) as error:
                problem = error
            if self._executable is None:
                self._compare(problem)
            if problem is not None:
                raise problem
            results = self._compiled()(arrays)
            returned = {}
            for value, array in zip(self.program.outputs, results, strict=True):
                if value.updates is None:
                    returned[value.name] = DeviceArray(array, value.shape, value.dtype)
                else:
                    self._arrays[value.updates] = array
            self._advance_seed()
            return returned

    def compile(self) -> pjrt.Executable:
        """Compile now instead of at the first step.

        With several processes every one must call it: they compare first.

        Returns:
            The executable.

        Raises:
            RuntimeError: The compiler failed.
            TimeoutError: Another process did not arrive.
            ValueError: A compile option that the compiler refuses, or another process
                that runs something else.
        """
        if self._executable is None:
            self._compare(None)
        return self._compiled()

    def get(self, name: str) -> DeviceArray:
        """What an input holds now.

        Args:
            name: Its name.

        Returns:
            A view: read it before the next step, which may take its memory.

        Raises:
            ValueError: A name the program does not have, or without a value.
        """
        index = self._index_of(name)
        array, value = self._arrays[index], self.program.inputs[index]
        if array is None:
            raise ValueError(f"{name!r} has no value yet; put() it")
        return DeviceArray(array, value.shape, value.dtype)

    def held(self) -> dict[str, DeviceArray]:
        """All state there is, by name.

        Returns:
            Views: a step that updates them takes their memory.
        """
        return {
            v.name: self.get(v.name)
            for v, array in zip(self.program.inputs, self._arrays, strict=True)
            if array is not None and v.role in (*STATE_ROLES, "rng")
        }

    def adopt(self, state: Mapping[str, DeviceArray]) -> None:
        """Take over state from another runner on the same devices; each process must.

        What is not split as this program wants it is split anew, the rest not copied.

        Args:
            state: By name; from `held`.

        Raises:
            ValueError: A name the program does not have.
        """
        for name, value in state.items():
            index = self._index_of(name)
            if self.program.inputs[index].role == "rng":
                self._set_seed(int(value.item()))
            else:
                self._arrays[index] = resharded(value, self._shardings[index])

    def fits(self, name: str, value: DeviceArray) -> bool:
        """Whether `adopt` takes a value as it is, padding included.

        Args:
            name: Of an input.
            value: On any devices.

        Raises:
            ValueError: A name the program does not have.
        """
        index = self._index_of(name)
        target, sharding = self.program.inputs[index], self._shardings[index]
        same = value.shape == target.shape and value.dtype == target.dtype
        return same and value.array.shape == pjrt.padded(target.shape, sharding)

    def state_dict(
        self, *, roles: Iterable[Role] = ("parameter", "buffer")
    ) -> dict[str, torch.Tensor]:
        """Copy state to CPU tensors.

        With several processes every one must call it, and each gets the whole; for
        large state read `DeviceArray.local_shards` of `get(name)` instead.

        Args:
            roles: Which to take; the default is what the model's `state_dict` has.

        Returns:
            By name, in the order of the program's inputs.

        Raises:
            ValueError: State without a value.
        """
        wanted = tuple(roles)
        names = [v.name for v in self.program.inputs if v.role in wanted]
        return {name: self.get(name).torch() for name in names}

    @property
    def seed(self) -> int:
        """Seed of the next step's random numbers; ``put({"rng": seed})`` sets it."""
        return self._seed

    def __repr__(self) -> str:
        return (
            f"Runner({self.program!r}, {len(self.devices)} "
            f"{self.devices[0].platform} devices)"
        )

    def _arguments(
        self,
        batch: Any,
        learning_rate: float | Sequence[float] | Mapping[str, float] | None,
    ) -> list[jax.Array]:
        if learning_rate is not None:
            self._set_rates(learning_rate)
        missing = self._missing()
        if missing:
            raise ValueError(
                f"{some(missing)} of program {self.program.name!r} got no value; put "
                f"it first"
            )
        fed = feed(batch, self.program, self.devices, self._shardings)
        arrays: list[Any] = list(self._arrays)
        for index, array in fed.items():
            arrays[index] = array
        return arrays

    def _compare(self, problem: Exception | None) -> None:
        """Compare notes with the other processes, so that none waits for a refusal."""
        first_batch = "fine" if problem is None else f"refused ({problem})"
        ours = [*notes(self.program, self._options), ("the first batch", first_batch)]
        check_same(ours, timeout_s=self._timeout_s)

    def _compiled(self) -> pjrt.Executable:
        if self._executable is None:
            program = self.program
            self._executable = pjrt.compile_module(
                program.module,
                self.devices,
                inputs=program.input_shardings,
                outputs=program.output_shardings,
                donated=program.donations,
                options=self._options,
                shardy=self._shardy,
            )
            running.note(self)
        return self._executable

    def _set(self, index: int, value: HostValue) -> None:
        target = self.program.inputs[index]
        self._arrays[index] = put(value, target, self._shardings[index])

    def _set_seed(self, seed: int) -> None:
        self._seed = seed % 2**64
        signed = self._seed - 2**64 if self._seed >= 2**63 else self._seed
        for index, value in enumerate(self.program.inputs):
            if value.role == "rng":
                self._set(index, signed)

    def _advance_seed(self) -> None:
        """Do what torch_xla does after each graph: a step of a congruence mod 2^64."""
        mine = [i for i, v in enumerate(self.program.inputs) if v.role == "rng"]
        if mine and not any(v.updates in mine for v in self.program.outputs):
            self._set_seed(1012031 + self._seed * 7012063)

    def _set_rates(self, rates: float | Sequence[float] | Mapping[str, float]) -> None:
        names = [v.name for v in self.program.inputs if v.role == "learning_rate"]
        if isinstance(rates, Mapping):
            given = dict(rates)
        elif isinstance(rates, Sequence):
            given = dict(zip(names, rates, strict=False))
            if len(rates) != len(names):
                raise ValueError(
                    f"{len(rates)} learning rates were given, program "
                    f"{self.program.name!r} has {len(names)}"
                )
        else:
            given = dict.fromkeys(names, rates)
        if not names:
            raise ValueError(
                f"program {self.program.name!r} has no learning rate among its inputs: "
                f"it was traced with a fixed one"
            )
        for name, rate in given.items():
            if name not in names:
                raise ValueError(f"{name!r} is no learning rate; there are {names}")
            self._set(self._index[name], float(rate))

    def _index_of(self, name: str) -> int:
        if name not in self._index:
            near = difflib.get_close_matches(name, self._index, n=3)
            hint = (
                f"did you mean {some(near)}?" if near else f"it has {some(self._index)}"
            )
            raise ValueError(
                f"program {self.program.name!r} has no input {name!r}; {hint}"
            )
        return self._index[name]

    def _missing(self, besides: Sequence[Role] = ()) -> list[str]:
        given_each_step = ("input", *besides)
        return [
            value.name
            for value, array in zip(self.program.inputs, self._arrays, strict=True)
            if array is None and value.role not in given_each_step
        ]


def _chosen(
    program: Program, devices: str | Sequence[pjrt.Device] | None
) -> tuple[pjrt.Device, ...]:
    if devices is None or isinstance(devices, str):
        return pjrt.devices(program.mesh, devices)
    if len(devices) != program.num_devices:
        raise ValueError(
            f"program {program.name!r} needs {program.num_devices} devices, "
            f"{len(devices)} were given"
        )
    return tuple(devices)


def _check_module(program: Program) -> None:
    """Check that the module takes and gives what the program says."""
    for what, found, values in zip(
        ("argument", "result"),
        signature(program.module),
        (program.inputs, program.outputs),
        strict=True,
    ):
        if len(found) != len(values):
            raise ValueError(
                f"program {program.name!r}: its module has {len(found)} {what}s, the "
                f"program names {len(values)}"
            )
        for i, (kind, value) in enumerate(zip(found, values, strict=True)):
            if kind != (value.shape, value.dtype):
                raise ValueError(
                    f"program {program.name!r}: {what} {i} of its module is "
                    f"{kind[1]}{list(kind[0])}, the program says {value!r}"
                )
