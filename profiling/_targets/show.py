"""A target as text for people and as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from profiling._targets.chip import Link

if TYPE_CHECKING:
    from profiling._targets.target import Target

_SIZES = (
    "num_chips",
    "num_devices",
    "num_hosts",
    "num_slices",
    "devices_per_host",
    "near_devices",
)


def describe(target: Target) -> str:
    """Counts and figures as text for people.

    Args:
        target: The target.

    Returns:
        Several lines.

    Example:
        >>> from profiling._targets.target import Target
        >>> print(describe(Target.parse("tpu7x:2x2x2")))
        tpu7x:2x2x2: Google TPU7x (Ironwood)
          8 chips, 16 devices, 2 hosts
          a device: 1154 TFLOP/s in bfloat16, 96 GiB at 3690 GB/s
          ici: 300 GB/s per direction of a device, 1 us a step
    """
    counts = [(target.num_chips, "chip"), (target.num_devices, "device")]
    counts.append((target.num_hosts, "host"))
    if target.num_slices > 1:
        counts.append((target.num_slices, "slice"))
    lines = [
        f"{target.text}: {target.chip.about}",
        "  " + ", ".join(f"{n} {noun}{'' if n == 1 else 's'}" for n, noun in counts),
        f"  a device: {target.peak_flops('bfloat16') / 1e12:.4g} TFLOP/s in bfloat16, "
        f"{memory_text(target)} at {target.hbm_bandwidth / 1e9:.4g} GB/s",
    ]
    lines += [
        f"  {link.name}: {link.bandwidth / 1e9:.4g} GB/s per direction of a device, "
        f"{link.latency_s * 1e6:.3g} us a step"
        for link in target.links
    ]
    return "\n".join(lines)


def memory_text(target: Target) -> str:
    """Memory of a device.

    Args:
        target: The target.

    Returns:
        Such as ``79.1 GiB``.
    """
    if target.hbm_bytes is None:
        return "memory not known"
    return f"{target.hbm_bytes / 2**30:.3g} GiB"


def as_json(target: Target) -> dict[str, Any]:
    """Everything about a target, figures of one device.

    Args:
        target: The target.

    Returns:
        Dicts, lists, strings, numbers, bools and None.
    """
    chip = target.chip
    links: list[Link] = [chip.near] if chip.far is None else [chip.near, chip.far]
    return {
        "text": target.text,
        "name": chip.name,
        "kind": chip.kind,
        "about": chip.about,
        **{name: getattr(target, name) for name in _SIZES},
        "devices_per_chip": chip.devices_per_chip,
        "wraps": list(target.wraps),
        "peak_flops": {dtype: target.peak_flops(dtype) for dtype in chip.peak_flops},
        "hbm_bytes": target.hbm_bytes,
        "hbm_bandwidth": target.hbm_bandwidth,
        "links": [asdict(target.of_device(link)) for link in links],
        "sources": dict(chip.sources),
    }
