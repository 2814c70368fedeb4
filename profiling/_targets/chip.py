"""`Chip` and `Link`: what a vendor's specification says of one accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Kind = Literal["gpu", "tpu", "cpu"]

# What a dtype without a figure of its own is multiplied as.
_INSTEAD = {
    "float4": "float8",
    "float8": "bfloat16",
    "int4": "int8",
    "int8": "bfloat16",
    "float16": "bfloat16",
    "bfloat16": "float32",
    "tfloat32": "float32",
    "float64": "float32",
}


@dataclass(frozen=True, slots=True)
class Link:
    """A way between devices.

    Attributes:
        name: `nvlink`, `ici` or `memory` near by; `ib` or `dcn` from host to host or
            slice to slice.
        bandwidth: Bytes per second per direction of one device, all ports together.
        ports: Ports of one device; on a torus two for each dim.
        latency_s: Seconds for each step of a collective.
        source: Where the figures are from.
    """

    name: str
    bandwidth: float
    ports: int
    latency_s: float
    source: str

    @property
    def port_bandwidth(self) -> float:
        """Bytes per second per direction of one port."""
        return self.bandwidth / self.ports


@dataclass(frozen=True, slots=True, repr=False)
class Chip:
    """A GPU, a TPU chip, or the CPU: its figures, each with a source.

    Attributes:
        name: As in a target's text.
        kind: `gpu`, `tpu` or `cpu`.
        about: The product.
        devices_per_chip: Devices XLA sees for one chip.
        devices_per_host: Devices of one host.
        near_devices: GPU: devices that the near link joins; 0 otherwise.
        peak_flops: FLOP/s of one chip in matrix units, by dtype.
        hbm_bytes: Memory of one chip; None where it is not known.
        hbm_bandwidth: Bytes per second of one chip.
        near: Link inside a host (GPU: NVLink domain) or slice, of one chip.
        far: Link between them; None where there is no such thing.
        sources: Where `peak_flops`, `hbm_bytes`, `hbm_bandwidth` and `layout` are from.
        description: GPU: XLA's text about the device.
        topology: TPU: libtpu's name.
        chip_config: TPU: libtpu's name of the way its cores are used, or empty.
        grid: TPU: dims of the torus; 0 otherwise.
        wrap: TPU: a dim is a ring where its size is a multiple of this.
    """

    name: str
    kind: Kind
    about: str
    devices_per_chip: int
    devices_per_host: int
    near_devices: int
    peak_flops: Mapping[str, float] = field(hash=False)
    hbm_bytes: int | None
    hbm_bandwidth: float
    near: Link
    far: Link | None
    sources: Mapping[str, str] = field(hash=False)
    description: str = field(default="", repr=False)
    topology: str = ""
    chip_config: str = ""
    grid: int = 0
    wrap: int = 0

    def __post_init__(self) -> None:
        for name in ("peak_flops", "sources"):
            view = MappingProxyType(dict(getattr(self, name)))
            object.__setattr__(self, name, view)

    @property
    def near_hosts(self) -> int:
        """GPU: hosts that the near link joins, however many GPUs of each are used."""
        return max(1, self.near_devices // self.devices_per_host)

    def flops(self, dtype: str) -> float:
        """Peak of one chip for a dtype.

        A dtype without a figure of its own counts as what it is multiplied as: a
        float8 on a chip without float8 units as bfloat16, float64 on a TPU as float32
        (too fast by far: it is emulated).

        Args:
            dtype: Torch's short name, or `float8`, `float4`, `tfloat32`.

        Returns:
            FLOP/s, without sparsity.

        Raises:
            ValueError: A dtype that is no number.
        """
        wanted = dtype
        if wanted.startswith("float8"):
            wanted = "float8"
        elif wanted.startswith("complex"):
            wanted = "float32"
        elif wanted.lstrip("u").startswith("int"):
            wanted = "int4" if wanted.endswith("int4") else "int8"
        while wanted not in self.peak_flops:
            if wanted not in _INSTEAD:
                raise ValueError(
                    f"{self.name}: no peak for dtype {dtype!r}; there are "
                    f"{', '.join(self.peak_flops)}"
                )
            wanted = _INSTEAD[wanted]
        return self.peak_flops[wanted]

    def __repr__(self) -> str:
        return f"Chip({self.name!r}, {self.about})"
