"""`Target`: what a program is compiled for, its devices and what lies between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiling._targets import chip_file
from profiling._targets import text as target_text
from profiling._targets.chip import Chip, Kind, Link

_HOST = (2, 2, 1)  # chips of a TPU host


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Devices to compile for; made by `Target.parse`.

    Partition i of a program is device i. Devices are counted host by host and slice
    by slice, as XLA's runtimes count them.

    Attributes:
        chip: What the devices are.
        shape: GPU: hosts, GPUs of each; TPU: sizes of a slice in chips; CPU: devices.
        num_slices: TPU: slices.
        twisted: TPU: whether the torus is twisted.

    Example:
        >>> target = Target.parse("h100:2x8")
        >>> target
        Target('h100:2x8', 16 devices on 2 hosts)
        >>> target.link_of([0, 1]).name, target.link_of([0, 8]).name
        ('nvlink', 'ib')
        >>> Target.parse("v5p:8x8x4").wraps
        (True, True, True)
    """

    chip: Chip
    shape: tuple[int, ...]
    num_slices: int = 1
    twisted: bool = False

    @classmethod
    def parse(cls, text: str, *, file: str | Path | None = None) -> Target:
        """Read a target's text.

        Args:
            text: ``h100:2x8`` (hosts x GPUs), ``v5e:4x4`` or ``v5p:8x8x4`` (chips of a
                slice), ``v5e:16x16*4`` (4 such slices), ``cpu:8``; a name alone is one
                host of it.
            file: YAML of a user's chips, see the head of ``targets.yaml``.

        Returns:
            The target.

        Raises:
            OSError: The file cannot be read.
            TypeError: Something else than a text.
            ValueError: Text that is none, shown with a caret; a file that is none.
        """
        if not isinstance(text, str):
            raise TypeError(f"target {text!r}: a text such as 'h100:2x8' is needed")
        return cls(*target_text.parse(text, chip_file.chips(file)))

    @property
    def text(self) -> str:
        """What `parse` reads."""
        twist = "_twisted" if self.twisted else ""
        slices = f"*{self.num_slices}" if self.num_slices > 1 else ""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}{twist}{slices}"

    @property
    def kind(self) -> Kind:
        """`gpu`, `tpu` or `cpu`."""
        return self.chip.kind

    @property
    def num_chips(self) -> int:
        """Chips; a GPU counts as one."""
        return math.prod(self.shape) * self.num_slices

    @property
    def num_devices(self) -> int:
        """Devices as XLA counts them: partitions of a program."""
        return self.num_chips * self.chip.devices_per_chip

    @property
    def num_hosts(self) -> int:
        """Machines, VMs or compute trays."""
        return self.num_devices // self.devices_per_host

    @property
    def devices_per_host(self) -> int:
        """Devices that one host has."""
        if self.kind == "gpu":
            return self.shape[1]
        if self.kind == "cpu":
            return self.num_devices
        one_chip = math.prod(self.shape) == 1
        return self.chip.devices_per_chip if one_chip else self.chip.devices_per_host

    @property
    def near_devices(self) -> int:
        """Devices that the near link joins: an NVLink domain or a slice."""
        if self.kind == "gpu":
            return min(self.shape[0], self.chip.near_hosts) * self.shape[1]
        return self.num_devices // self.num_slices

    @property
    def wraps(self) -> tuple[bool, ...]:
        """TPU: which dims of a slice are rings; empty for others."""
        if self.kind != "tpu":
            return ()
        rings = tuple(size % self.chip.wrap == 0 for size in self.shape)
        return (all(rings),) * 3 if self.chip.grid == 3 else rings

    @property
    def hbm_bytes(self) -> int | None:
        """Memory of one device; None where it is not known."""
        whole = self.chip.hbm_bytes
        return None if whole is None else whole // self.chip.devices_per_chip

    @property
    def hbm_bandwidth(self) -> float:
        """Bytes per second of one device."""
        return self.chip.hbm_bandwidth / self.chip.devices_per_chip

    @property
    def links(self) -> tuple[Link, ...]:
        """Links of one device, near first; only those that this target crosses."""
        near, far = self.of_device(self.chip.near), self.chip.far
        if far is None or self.near_devices == self.num_devices:
            return (near,)
        return near, self.of_device(far)

    def peak_flops(self, dtype: str) -> float:
        """Peak of one device in its matrix units, without sparsity.

        Args:
            dtype: Torch's short name, or `float8`, `float4`, `tfloat32`.

        Returns:
            FLOP/s; see `Chip.flops` for dtypes without a figure of their own.
        """
        return self.chip.flops(dtype) / self.chip.devices_per_chip

    def link_of(self, group: Iterable[int]) -> Link:
        """The slowest link that a group of devices crosses.

        Args:
            group: Devices (partitions) that exchange data.

        Returns:
            The near link where they are all in one NVLink domain or slice.

        Raises:
            ValueError: An empty group, or a device this target does not have.
        """
        devices = self._checked(group)
        near = {device // self.near_devices for device in devices}
        return self.links[0 if len(near) == 1 else 1]

    def bandwidth_of(self, group: Iterable[int]) -> float:
        """Bytes per second per direction that a device has for a group.

        On a torus only the ports along dims that the group spans help, two where the
        dim is a ring and one where it is not (jax-ml.github.io/scaling-book/sharding):
        on ``v5e:4x4`` one row has 50 of 200 GB/s, the whole slice 100.

        Args:
            group: Devices (partitions) that exchange data.

        Returns:
            All of the link's for other links.

        Raises:
            ValueError: An empty group, or a device this target does not have.
        """
        devices = self._checked(group)
        link = self.link_of(devices)
        if self.kind != "tpu" or link.name != self.links[0].name:
            return link.bandwidth
        places = [self.place(device) for device in devices]
        spanned = [len({p[d] for p in places}) > 1 for d in range(len(self.shape))]
        pairs = zip(spanned, self.wraps, strict=False)
        ports = sum((2 if ring else 1) for spans, ring in pairs if spans)
        return link.port_bandwidth * ports if ports else link.bandwidth

    def place(self, device: int) -> tuple[int, ...]:
        """Where a device's chip is in its slice (TPU), else host and number there.

        Args:
            device: Partition.

        Returns:
            Coordinates. A TPU's hosts, and chips of a host, run along the first dim
            first: on ``v5e:4x4`` device 4 is at (2, 0).

        Raises:
            ValueError: A device this target does not have.
        """
        (device,) = self._checked([device])
        if self.kind != "tpu":
            return divmod(device, self.devices_per_host)
        chip = device % self.near_devices // self.chip.devices_per_chip
        inner = (
            _HOST[: len(self.shape)]
            if self.devices_per_host > self.chip.devices_per_chip
            else (1,) * len(self.shape)
        )
        host, chip = divmod(chip, math.prod(inner))
        outer = [size // n for size, n in zip(self.shape, inner, strict=True)]
        return tuple(
            h * n + c
            for h, n, c in zip(
                _unravel(host, outer), inner, _unravel(chip, inner), strict=True
            )
        )

    def describe(self) -> str:
        """Counts and figures as text for people.

        Returns:
            Several lines.
        """
        from profiling._targets.show import describe

        return describe(self)

    def as_json(self) -> dict[str, Any]:
        """Everything about the target, figures of one device.

        Returns:
            Dicts, lists, strings, numbers, bools and None.
        """
        from profiling._targets.show import as_json

        return as_json(self)

    def of_device(self, link: Link) -> Link:
        """A device's share of a link of its chip.

        Args:
            link: The chip's.

        Returns:
            The same link with less bandwidth.
        """
        share = self.chip.devices_per_chip
        return Link(
            link.name, link.bandwidth / share, link.ports, link.latency_s, link.source
        )

    def _checked(self, group: Iterable[int]) -> list[int]:
        devices = list(group)
        if not devices:
            raise ValueError(f"{self.text}: an empty group of devices")
        for device in devices:
            if not 0 <= device < self.num_devices:
                raise ValueError(
                    f"{self.text}: no device {device}; it has 0 to "
                    f"{self.num_devices - 1}"
                )
        return devices

    def __repr__(self) -> str:
        return (
            f"Target({self.text!r}, {count(self.num_devices, 'device')} on "
            f"{count(self.num_hosts, 'host')})"
        )


def targets(file: str | Path | None = None) -> Mapping[str, Target]:
    """One host of each chip there is.

    Args:
        file: YAML of a user's chips, see the head of ``targets.yaml``.

    Returns:
        Targets by the chip's name.

    Raises:
        OSError: The file cannot be read.
        ValueError: A file that is none.
    """
    found = chip_file.chips(file)
    return MappingProxyType(
        {name: Target(*target_text.parse(name, found)) for name in found}
    )


def _unravel(index: int, sizes: Iterable[int]) -> list[int]:
    """Coordinates of an index, the first dim running fastest."""
    found = []
    for size in sizes:
        index, rest = divmod(index, size)
        found.append(rest)
    return found


def count(number: int, noun: str) -> str:
    """A number of things in words.

    Args:
        number: How many.
        noun: What, one of them.

    Returns:
        Such as ``2 hosts``.
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
