"""Remembered successes of a template on a store."""

import pytest

from retrytemplate import AlreadyCompletedError, RetryState, RetryTemplate, SimpleRetryPolicy

STATE = RetryState("m1", remember=60, rollback_for=())


def failing(context):
    raise ValueError("no price")


def dead_letter(context):
    return "dead-lettered"


def test_recovery_is_not_remembered_and_replay_is_handled(cache):
    template = RetryTemplate(SimpleRetryPolicy(1), cache=cache, name="work")
    assert template.execute(failing, recovery=dead_letter, state=STATE) == "dead-lettered"
    assert template.execute(lambda context: context.attempt, state=STATE) == 1
    with pytest.raises(AlreadyCompletedError):
        template.execute(failing, state=STATE)


async def test_recovery_is_not_remembered_by_an_asynchronous_cache(store):
    async with store.async_cache() as cache:
        template = RetryTemplate(SimpleRetryPolicy(1), cache=cache, name="work")
        dead = await template.execute_async(failing, recovery=dead_letter, state=STATE)
        assert dead == "dead-lettered"
        assert await template.execute_async(lambda context: context.attempt, state=STATE) == 1
        with pytest.raises(AlreadyCompletedError):
            await template.execute_async(failing, state=STATE)


def test_recovery_that_completes_in_a_transaction_is_not_remembered(database):
    template = RetryTemplate(SimpleRetryPolicy(1), cache=database.cache(), name="work")

    def recovery(context):
        with database.engine.begin() as connection:
            context.complete_in(connection)
        return "dead-lettered"

    assert template.execute(failing, recovery=recovery, state=STATE) == "dead-lettered"
    assert template.execute(lambda context: context.attempt, state=STATE) == 1
