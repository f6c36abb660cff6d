"""What holds something until it is closed, as the context manager of a ``with`` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing(ABC):
    """Closes itself at the end of a ``with`` block, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is held. May repeat."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
