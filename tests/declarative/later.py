"""Classes whose annotations are texts, as ``from __future__ import annotations`` makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrytemplate import recover, retryable

if TYPE_CHECKING:
    from tests.nowhere import OnlyForTypes


class Early:
    """Its recoverer takes a class that comes later in the module."""

    @retryable(retry_on=Exception)
    def call(self) -> tuple[str, str]:
        raise LateError("late")

    @recover
    def early(self, error: LateError) -> tuple[str, str]:
        return "early", str(error)


class LateError(Exception):
    pass


def local_service():
    class LocalError(Exception):
        pass

    class Service:
        @retryable(retry_on=LocalError)
        def call(self, number: int):
            raise LocalError

        @recover
        def local(self, error: LocalError | LateError, number: int):
            return "local", number

    return Service()


class Unresolved:
    @retryable(retry_on=LateError)
    def call(self):
        raise LateError

    @recover
    def remote(self, error: OnlyForTypes): ...

    @retryable(retry_on=LateError, recover="other_recovers")
    def other(self, number: OnlyForTypes):
        raise LateError

    @recover
    def other_recovers(self, error: LateError, number: OnlyForTypes):
        return "other", number
