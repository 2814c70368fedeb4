"""The libraries that hold an XLA compiler: where each is, and where it takes flags."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, PathDistribution, distribution
from pathlib import Path
from typing import Literal, TypeAlias

from flags._descriptor import TPU_PROTO, XLA_PROTO
from flags._flag import Channel

Backend: TypeAlias = Literal["cpu", "gpu", "tpu"]
BACKENDS: tuple[Backend, ...] = ("cpu", "gpu", "tpu")


class NotInstalledError(LookupError):
    """A library that was asked for is not installed; the message has the command."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library that holds an XLA compiler.

    Attributes:
        name: ``torch_xla``, ``jaxlib``, ``cuda`` (jax's CUDA plugin) or ``libtpu``.
        packages: Distributions that may hold it, the first one found is taken.
        file: How the name of its shared object begins.
        install: What to give to pip.
        channels: Where it takes flags.
        backends: What it compiles for.
        protos: Which descriptors it holds.
    """

    name: str
    packages: tuple[str, ...]
    file: str
    install: str
    channels: tuple[Channel, ...]
    backends: tuple[Backend, ...]
    protos: tuple[str, ...] = (XLA_PROTO,)

    def find(self) -> tuple[Path, str]:
        """Where the library is, and its version.

        Returns:
            Its shared object and version.

        Raises:
            NotInstalledError: It is not there.
        """
        override = os.environ.get("TPU_LIBRARY_PATH")
        if self.name == "libtpu" and override:
            return Path(override), f"of TPU_LIBRARY_PATH={override}"
        for package in self.packages:
            try:
                found = distribution(package)
            except PackageNotFoundError:
                continue
            path = _shared_object(found, self.file)
            if path is not None:
                return path, found.version
        raise NotInstalledError(
            f"{self.name} is not installed; run pip install {self.install}"
        )

    @property
    def installed(self) -> bool:
        """Whether it is there."""
        try:
            self.find()
        except NotInstalledError:
            return False
        return True


LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        Library(
            "torch_xla",
            ("torch_xla",),
            "_XLAC.",
            "xla-spmd",
            ("XLA_FLAGS",),
            ("cpu",),
        ),
        Library(
            "jaxlib",
            ("jaxlib",),
            "libjax_common.",
            "xla-spmd",
            ("XLA_FLAGS", "options"),
            ("cpu",),
        ),
        Library(
            "cuda",
            ("jax-cuda12-pjrt", "jax-cuda13-pjrt"),
            "xla_cuda_plugin.",
            "'xla-spmd[gpu]'",
            ("XLA_FLAGS", "options"),
            ("gpu",),
        ),
        Library(
            "libtpu",
            ("libtpu",),
            "libtpu.",
            "'xla-spmd[tpu]'",
            ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "options"),
            ("tpu",),
            (XLA_PROTO, TPU_PROTO),
        ),
    )
}
"""By name."""


def library(name: str) -> Library:
    """The library of a name.

    Args:
        name: See `Library.name`; the name of one of its packages will do.

    Returns:
        The library.

    Raises:
        ValueError: There is none of that name.
    """
    plain = name.lower().replace("-", "_")
    for entry in LIBRARIES.values():
        names = {
            entry.name,
            *entry.packages,
            entry.packages[0].replace("pjrt", "plugin"),
        }
        if plain in {other.replace("-", "_") for other in names}:
            return entry
    raise ValueError(f"unknown library {name!r}; there are {', '.join(LIBRARIES)}")


def installed(names: Iterable[str] = ()) -> tuple[Library, ...]:
    """Libraries that are there.

    Args:
        names: Only these, which must be there; empty for all that are.

    Returns:
        In the order of `LIBRARIES`.

    Raises:
        NotInstalledError: A named one is not there.
        ValueError: A name that is none.
    """
    wanted = [library(name) for name in names]
    for entry in wanted:
        entry.find()
    return tuple(
        entry
        for entry in LIBRARIES.values()
        if (entry in wanted if wanted else entry.installed)
    )


def _shared_object(found: object, start: str) -> Path | None:
    assert isinstance(found, PathDistribution)
    for file in found.files or ():
        if file.name.startswith(start) and file.suffix in {".so", ".dylib", ".pyd"}:
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    return None
