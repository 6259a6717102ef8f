"""A classifier whose values come from another one's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import instance_of
from retrytemplate.classify.exceptions import ExceptionClassifier

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DerivedClassifier"]


@frozen(eq=False, repr=False)
class DerivedClassifier(ExceptionClassifier):
    """Asks another one, and makes something of what that says.

    :param of: who decides, and who says what is judged on its own.
    """

    of: ExceptionClassifier = field(
        kw_only=True, validator=instance_of(ExceptionClassifier, "an ExceptionClassifier")
    )

    def derived(self, value: Any, exc: BaseException | None) -> Any:
        """What becomes of a value."""
        raise NotImplementedError

    def explicit(self, exc: BaseException | None) -> tuple[bool, Any]:
        found, value = self.of.explicit(exc)
        return found, self.derived(value, exc)

    def names(self, exc: BaseException) -> bool:
        return self.of.names(exc)

    def names_class(self, kind: type[BaseException]) -> bool:
        return self.of.names_class(kind)

    def parts(self, exc: BaseException) -> Iterator[BaseException]:
        return self.of.parts(exc)
