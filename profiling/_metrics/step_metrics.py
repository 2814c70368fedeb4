"""`StepMetrics`: what a training loop does, without a wait for the devices each step.

Values stay on the devices until a window of `log_every` steps is over, and are then
read together. Only then does the host wait, so only then is it known what the devices
have done: a step's time is the time from one such point to the next, divided by its
steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, TextIO, TypeVar, final

from profiling._compiling.compiled import Compiled
from profiling._metrics.clock import Lap, StepClock, Way
from profiling._metrics.devices import Devices, host_memory, listen
from profiling._metrics.sinks import Sink, opened
from profiling._metrics.step_record import RESERVED, StepRecord
from profiling._metrics.tensorboard import writer_class
from profiling._metrics.utilisation import Utilisation
from profiling._metrics.values import are_recorded, keep, read
from profiling._schedule import Schedule
from profiling._step.flops import StepFlops
from profiling._targets.target import Target
from spmd._program.program import Program

B = TypeVar("B")


@dataclass(slots=True)
class _Step:
    """A step whose values have not all been read."""

    number: int
    tokens: int | None
    values: dict[str, Any]
    ways: tuple[Way, ...]
    waited_s: float = 0.0


@final
class StepMetrics:
    """Figures of each training step, at the cost of one wait in `log_every` steps.

    Call `step` at the end of each step. Works with steps of `spmd.compile_step` on
    torch_xla and on jax, with lazy steps of torch_xla, and with any other loop.

    A step's time is the mean over a window: the time from where the devices were last
    waited for to where they are waited for now, by the number of steps. The first step
    is a window of its own, since it is traced and compiled; it begins where this is
    made. Memory of a device is what jax's devices say; CPU devices, and torch_xla's
    under SPMD, say nothing: then it is what `compiled` takes, or None.

    Of several processes the first prints and writes for TensorBoard; each writes JSON
    lines to a file of its own. All must use `StepMetrics` alike.

    Args:
        tokens: Tokens of one step, over all devices.
        log_every: Steps between two lines.
        first_step: Number of the first step, where a run goes on.
        flops: FLOPs of the model in one step, over all devices: a number, or the traced
            step, in which they are counted (`profiling.step_flops`).
        peak: What a device could do: a chip such as ``"h100"`` or ``"v5e"`` (`spmd
            targets`), or FLOP/s. Needed for MFU.
        compiled: The step as it was compiled, for its memory.
        num_devices: Devices over all processes, where they cannot be found out.
        console: Print lines: to stdout, to another stream, or not.
        json_lines: File to which an object is added for each step.
        tensorboard: Folder for TensorBoard.

    Raises:
        ImportError: `tensorboard` without the package.
        TypeError: Something of another type.
        ValueError: A number that is not above zero, a chip that is not known, `peak`
            without `flops`, a folder where a file is needed.

    Example:
        >>> with StepMetrics(tokens=4096, log_every=2, console=False) as metrics:
        ...     for loss in (3.0, 2.0):
        ...         records = metrics.step(loss, grad_norm=1.0)
        >>> [(record.step, record.loss) for record in records]
        [(2, 2.0)]
    """

    def __init__(
        self,
        *,
        tokens: int | None = None,
        log_every: int = 10,
        first_step: int = 1,
        flops: float | StepFlops | Program | None = None,
        peak: float | str | Target | None = None,
        compiled: Schedule | Compiled | None = None,
        num_devices: int | None = None,
        console: bool | TextIO = True,
        json_lines: str | Path | None = None,
        tensorboard: str | Path | None = None,
    ) -> None:
        for name, value in (
            ("tokens", tokens),
            ("log_every", log_every),
            ("first_step", first_step),
            ("num_devices", num_devices),
        ):
            _check_count(name, value)
        if compiled is not None and not isinstance(compiled, Schedule | Compiled):
            raise TypeError(
                f"StepMetrics: compiled={compiled!r}; what profiling.compile returns "
                f"is needed"
            )
        if json_lines is not None and Path(json_lines).is_dir():
            raise ValueError(
                f"StepMetrics: json_lines={str(json_lines)!r} is a folder; a file is "
                f"needed, such as metrics.jsonl in it"
            )
        if tensorboard is not None:
            writer_class()
        self._tokens = tokens
        self._log_every = log_every
        self._first = first_step
        self._number = first_step - 1
        self._utilisation = Utilisation.parse(flops, peak)
        self._compiled = compiled
        self._num_devices = num_devices
        self._console = console
        self._json_lines = json_lines
        self._tensorboard = tensorboard
        self._devices: Devices | None = None
        self._sinks: list[Sink] = []
        self._pending: list[_Step] = []
        self._is_due = False
        self._is_closed = False
        listen()
        self._clock = StepClock()

    @property
    def formula(self) -> str:
        """How MFU is computed, with its figures, or why it is not given."""
        return self._utilisation.text(self._known_devices(()).num)

    def step(
        self,
        loss: Any = None,
        grad_norm: Any = None,
        *,
        tokens: int | None = None,
        **scalars: Any,
    ) -> tuple[StepRecord, ...]:
        """Say that a step is over; it need not be executed yet.

        Args:
            loss: A number, or a tensor or array of one that nobody writes to later.
            grad_norm: Likewise.
            tokens: Of this step over all devices, where it is another number.
            **scalars: Whatever else to write down, likewise.

        Returns:
            Steps that are known now: those of a window at its end, else none. In a lazy
            step that `torch_xla.sync` has not executed yet, a window ends with the next
            call, since reading would execute half of the step.

        Raises:
            RuntimeError: After `close`; inside of the step that `spmd.compile_step` was
                given; or a value whose memory a later step has taken.
            TypeError: A value that is no number.
            ValueError: A value of several elements, or a name that is taken.
        """
        self._check_open()
        if tokens is None:
            tokens = self._tokens
        else:
            _check_count("tokens", tokens)
        values = {}
        if loss is not None:
            values["loss"] = keep("loss", loss)
        if grad_norm is not None:
            values["grad_norm"] = keep("grad_norm", grad_norm)
        if scalars:
            _check_names(scalars)
            values |= {n: keep(n, v) for n, v in scalars.items() if v is not None}
        self._number = number = self._number + 1
        step = _Step(number, tokens, values, (self._clock.way(),))
        records = ()
        if self._is_due:  # the window before this ends here, with what this lap took
            self._pending[-1].ways += step.ways
            step.ways = ()
            records = self._finish_if_executed()
        self._pending.append(step)
        if number == self._first or number % self._log_every == 0:
            self._is_due = True
        return records + self._finish_if_executed() if self._is_due else records

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """Go through a loader and count as `data_s` what the loop waits for it.

        `spmd.ShardedLoader` and `spmd.shard_batch` are counted without this too.

        Args:
            loader: Anything to loop over.

        Returns:
            Its batches, in order.
        """
        return self._clock.batches(loader)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what the block takes, such as a validation or a checkpoint.

        The steps before it are waited for first, so that they do not run into it.

        Yields:
            Nothing.

        Raises:
            RuntimeError: After `close`.
        """
        self._check_open()
        self._wait()
        with self._clock.no_window():
            yield

    def close(self) -> tuple[StepRecord, ...]:
        """Read what is left, write it and close the files; more calls do nothing.

        Returns:
            The steps of a window that was not complete.
        """
        if self._is_closed:
            return ()
        self._is_closed = True
        try:
            return self._finish()
        finally:
            for sink in self._sinks:
                sink.close()

    def __enter__(self) -> StepMetrics:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # What ended the loop is what matters; the devices may be gone.
        with suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return (
            f"StepMetrics(step {self._number}, {len(self._pending)} not read yet, "
            f"every {self._log_every})"
        )

    def _finish_if_executed(self) -> tuple[StepRecord, ...]:
        values = [value for step in self._pending for value in step.values.values()]
        recorded = are_recorded(values)
        return () if any(recorded) else self._finish(recorded)

    def _finish(self, recorded: list[bool] | None = None) -> tuple[StepRecord, ...]:
        """End the window: read, and write records."""
        self._is_due = False
        if not self._pending:
            return ()
        devices = self._known_devices(
            value for step in self._pending for value in step.values.values()
        )
        self._wait(recorded)
        records = self._records(self._clock.window(), devices)
        self._pending = []
        if not self._sinks:
            about = "" if self._utilisation.flops is None else self.formula
            self._sinks = opened(
                devices,
                console=self._console,
                about=about,
                json_lines=self._json_lines,
                tensorboard=self._tensorboard,
            )
        for sink in self._sinks:
            sink.write(records)
        return records

    def _wait(self, recorded: list[bool] | None = None) -> None:
        """Read the values that there are; the time is the last step's."""
        places = [(step.values, name) for step in self._pending for name in step.values]
        if self._is_closed:  # there is no later
            recorded = [False] * len(places)
        elif recorded is None:
            recorded = are_recorded([values[name] for values, name in places])
        ready = [
            place for place, later in zip(places, recorded, strict=True) if not later
        ]
        started = perf_counter()
        with self._clock.no_lap():
            numbers = read([values[name] for values, name in ready])
            passed = perf_counter() - started
        for (values, name), number in zip(ready, numbers, strict=True):
            values[name] = number
        if self._pending:
            self._pending[-1].waited_s += passed

    def _records(self, seconds: float, devices: Devices) -> tuple[StepRecord, ...]:
        steps = self._pending
        tokens = [step.tokens for step in steps if step.tokens is not None]
        known = len(tokens) == len(steps) and seconds > 0
        window: dict[str, Any] = {
            "tokens_per_s": sum(tokens) / seconds if known else None,
            "num_steps": len(steps),
            "step_s": seconds / len(steps),
            "num_compiles": devices.num_compiles(),
            "num_devices": devices.num,
            "flops": self._utilisation.flops,
            "peak_flops": self._utilisation.peak_flops,
            "host_memory_bytes": host_memory(),
            **self._memory(devices),
        }
        laps = [Lap.of(step.ways, step.waited_s) for step in steps]
        return tuple(
            StepRecord(
                step.number,
                loss=step.values.pop("loss", None),
                grad_norm=step.values.pop("grad_norm", None),
                scalars=step.values,
                tokens=step.tokens,
                data_s=lap.data_s,
                host_s=lap.host_s,
                compile_s=lap.compile_s,
                wait_s=lap.wait_s,
                **window,
            )
            for step, lap in zip(steps, laps, strict=True)
        )

    def _memory(self, devices: Devices) -> dict[str, Any]:
        found = devices.memory()
        if found is not None:
            return {
                "memory_bytes": found.peak_bytes,
                "memory_limit_bytes": found.limit_bytes,
                "memory_source": "device",
            }
        if self._compiled is None:
            return {}
        target = self._compiled.target
        return {
            "memory_bytes": self._compiled.memory.total_bytes,
            "memory_limit_bytes": None if target is None else target.hbm_bytes,
            "memory_source": "compiled",
        }

    def _known_devices(self, values: Iterable[Any]) -> Devices:
        if self._devices is None:
            found = Devices.of(values)
            if self._num_devices is not None:
                found = replace(found, num=self._num_devices)
            self._devices = found
        return self._devices

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(
                "StepMetrics: it is closed; make another one, with first_step= to go on"
            )


def _check_names(scalars: Iterable[str]) -> None:
    taken = RESERVED.intersection(scalars)
    if taken:
        raise ValueError(
            f"StepMetrics: {min(taken)!r} is a figure of StepRecord; give the scalar "
            f"another name"
        )


def _check_count(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"StepMetrics: {name}={value!r}; an int is needed")
    if value < 1:
        raise ValueError(f"StepMetrics: {name}={value}; at least 1 is needed")
