"""`Flag`: what one compiler knows of one flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Channel: TypeAlias = Literal["XLA_FLAGS", "LIBTPU_INIT_ARGS", "options"]
"""How a flag reaches a compiler: a variable, or an option of one compile."""

CHANNELS: tuple[Channel, ...] = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "options")

FlagValue: TypeAlias = bool | int | float | str

INTEGERS = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}
"""Lowest and highest value by type."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that one library accepts.

    Attributes:
        name: Without dashes.
        type: ``bool``, ``int32``, ``int64``, ``uint32``, ``uint64``, ``float``,
            ``string``, ``enum``, ``tristate`` (AUTO, ENABLED, DISABLED, or a bool),
            ``auto`` (``auto``, or a value of a type that the library does not tell),
            ``map`` (``key=value,...``), ``message``, or ``unknown``.
        channels: Where the library takes it.
        default: As the library writes it; None where it is not known. libtpu's are
            those of a v5e.
        choices: Values of an enum.
        repeated: Takes several values, separated by commas.
        deprecated: The library marks it so.
    """

    name: str
    type: str
    channels: tuple[Channel, ...]
    default: str | None = None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    deprecated: bool = False

    def as_json(self) -> dict[str, Any]:
        """The fields, those at their usual value left out.

        Returns:
            What `from_json` reads.
        """
        content: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "channels": list(self.channels),
            "default": self.default,
        }
        if self.choices:
            content["choices"] = list(self.choices)
        if self.repeated:
            content["repeated"] = True
        if self.deprecated:
            content["deprecated"] = True
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Flag:
        """A flag from `as_json`.

        Args:
            content: The fields.

        Returns:
            The flag.
        """
        lists = {
            key: tuple(content[key])
            for key in ("channels", "choices")
            if key in content
        }
        return cls(**{**content, **lists})
