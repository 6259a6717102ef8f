"""Selections of the series of a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_span_or_none, checked_by
from retrytemplate.observe.instruments.base import check_instrument
from retrytemplate.observe.instruments.table import INSTRUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.observe.instruments.table import Instrument


def _by_label(given: Mapping[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {label: (each,) if isinstance(each, str) else (*each,) for label, each in given.items()}


@frozen
class Selection:
    """The series of a metric whose labels have, or have not, given values.

    :param metric: a name of ``INSTRUMENTS``.
    :param only: by label, the value or values that a series may have; default: any.
    :param without: by label, the value or values that a series must not have; default: none.
    :param up_to: of a histogram, counts the durations up to this upper bound of a bucket, in
        seconds; default None: all durations.
    :raises ValueError: there is no such metric, label or bucket.

    >>> from retrytemplate.observe import Selection
    >>> failed = Selection("call.duration", only={"outcome": ("failed", "rejected")})
    >>> failed.matches(("billing", "failed")), failed.matches(("billing", "success"))
    (True, False)
    """

    metric: str = field(validator=checked_by(check_instrument))
    only: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_by_label)
    without: Mapping[str, tuple[str, ...]] = field(factory=dict, converter=_by_label)
    up_to: float | None = field(default=None, validator=checked_by(check_span_or_none))

    # Index of a label, values, and whether a series must have one of them.
    _conditions: Any = field(init=False, eq=False, repr=False)

    @_conditions.default
    def _make_conditions(self) -> tuple[tuple[int, tuple[str, ...], bool], ...]:
        labels = INSTRUMENTS[self.metric].labels if self.metric in INSTRUMENTS else ()
        return tuple(
            (labels.index(label), each, wanted)
            for wanted, values in ((True, self.only), (False, self.without))
            for label, each in values.items()
            if label in labels  # __attrs_post_init__ rejects others
        )

    def __attrs_post_init__(self) -> None:
        for name in ("only", "without"):
            unknown = getattr(self, name).keys() - {*self.instrument.labels}
            if unknown:
                labels = ", ".join(self.instrument.labels)
                raise ValueError(
                    f"{name} must have labels of {self.metric!r} ({labels}), got {min(unknown)!r}"
                )
        if self.up_to is not None and self.instrument.kind != "histogram":
            raise ValueError(f"up_to must be None: {self.metric!r} is a {self.instrument.kind}")

    @property
    def instrument(self) -> Instrument:
        """The metric."""
        return INSTRUMENTS[self.metric]

    def matches(self, values: tuple[str, ...]) -> bool:
        """Whether a series with these label values, in the order of the labels, is selected."""
        return all((values[place] in each) is wanted for place, each, wanted in self._conditions)

    def group(self, values: tuple[str, ...], by: tuple[str, ...]) -> tuple[str, ...]:
        """The values of some labels of a series."""
        series = dict(zip(self.instrument.labels, values, strict=True))
        return tuple([series[label] for label in by])
