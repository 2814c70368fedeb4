"""`Wires`: who uses each wire when, and whom a device waits for."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Transfer:
    """Something on a wire.

    Attributes:
        name: Of what is sent.
        begin_s: When its turn comes.
        end_s: When it has arrived.
        before: The one that it had to wait for; None if the wire was free.
    """

    name: str
    begin_s: float
    end_s: float
    before: Transfer | None = field(repr=False)


class Wires:
    """The last transfer of each wire; a wire carries one after the other."""

    def __init__(self) -> None:
        self._last: dict[str, Transfer] = {}

    def send(self, wire: str, name: str, now: float, seconds: float) -> Transfer:
        """Put a transfer on a wire.

        Args:
            wire: Which one.
            name: Of what is sent.
            now: When it is ready.
            seconds: Time on the wire.

        Returns:
            The transfer: it begins when the wire is free.
        """
        last = self._last.get(wire)
        if last is not None and last.end_s > now:
            sent = Transfer(name, last.end_s, last.end_s + seconds, last)
        else:
            sent = Transfer(name, now, now + seconds, None)
        self._last[wire] = sent
        return sent

    def busy_after(self, now: float) -> bool:
        """Whether anything is still on its way.

        Args:
            now: The time.

        Returns:
            Whether a wire is busy.
        """
        return any(last.end_s > now for last in self._last.values())

    def copy(self) -> Wires:
        """The same state, to go on from in another way.

        Returns:
            A copy.
        """
        other = Wires()
        other._last = dict(self._last)
        return other


def waits(transfer: Transfer, now: float) -> list[tuple[str, float]]:
    """Whom a device waits for until a transfer has arrived.

    A transfer whose turn has not come is waited for together with those before it on
    its wire; each second of waiting is one transfer's.

    Args:
        transfer: What is waited for.
        now: Since when.

    Returns:
        Names and seconds, last first; empty if it has arrived.

    Example:
        >>> wires = Wires()
        >>> first = wires.send("nvlink", "a", 0.0, 3.0)
        >>> second = wires.send("nvlink", "b", 1.0, 2.0)
        >>> second.begin_s, second.end_s, waits(second, 2.0)
        (3.0, 5.0, [('b', 2.0), ('a', 1.0)])
    """
    found = []
    until = transfer.end_s
    at: Transfer | None = transfer
    while at is not None and until > now:
        begin = max(at.begin_s, now)
        if until > begin:
            found.append((at.name, until - begin))
            until = begin
        at = at.before
    return found
