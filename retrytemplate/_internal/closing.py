"""Objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

__all__ = ["AsyncClosing", "Closing"]


class Closing(ABC):
    """Calls ``close`` at the end of a ``with`` block."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """Awaits ``close`` at the end of an ``async with`` block."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """Release what the object holds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
