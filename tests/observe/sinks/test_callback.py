"""Events as calls of a function."""

import pytest

from retrytemplate.observe import CallbackSink
from tests.observe.events import Events, event


def test_function_is_called_with_each_event():
    kept = Events()
    sink = CallbackSink(kept.emit)
    sink.emit(event(subject="a"))
    sink.emit(event(subject="b"))
    assert kept.subjects == ["a", "b"]


def test_asynchronous_function_is_rejected():
    async def page(event):
        pass

    with pytest.raises(TypeError, match="function must be a plain function"):
        CallbackSink(page)
