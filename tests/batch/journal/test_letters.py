"""What a dead letter keeps, whatever the item and its failure are made of."""

import asyncio
import random

import pytest

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import DeadLetters, SequenceReader, SkipPolicy
from retrytemplate.batch.journal.letters import sanitize_text
from tests.support.step_fixture import run

STRANGE = ["\ud800", "\x00"]
TOLD = {"\ud800": "\\ud800", "\x00": "\\x00"}


class Bad(Exception):
    """What the item at fault raises."""


class Text:
    """Items as they are; one of them is kept as a text of its own."""

    def __init__(self, told):
        self.told = told

    def encode(self, item):
        return self.told if item == 2 else str(item)

    def decode(self, text):
        return 2 if text == self.told else int(text)


def fails_at_two(failure):
    def process(item):
        if item == 2:
            raise failure
        return item

    return process


def lettered(world, way, failure, **settings):
    """The letter of item 2, the others being written."""
    settings = {"retry": SimpleRetryPolicy(1), "skip": SkipPolicy(on=Exception), **settings}
    report = run(world.step([1, 2, 3], process=fails_at_two(failure), **settings), way)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 2, 1)
    assert world.rows() == [1, 3]
    return DeadLetters(world.jobs).page()[0]


@pytest.mark.parametrize("strange", STRANGE)
def test_a_message_that_no_database_stores_costs_no_other_item(world, way, strange):
    letter = lettered(world, way, Bad(f"a{strange}b"))
    assert letter.error_message == f"a{TOLD[strange]}b"
    assert letter.history[0].message == f"a{strange}b"
    assert letter.replayable


@pytest.mark.parametrize("strange", STRANGE)
def test_nor_does_the_name_of_an_exception(world, way, strange):
    kind = type("Bad", (Exception,), {"__qualname__": f"Bad{strange}"})
    letter = lettered(world, way, kind("no"))
    assert letter.error_type.endswith(f"Bad{TOLD[strange]}")


@pytest.mark.parametrize("strange", STRANGE)
def test_nor_does_a_key(world, way, strange):
    letter = lettered(world, way, Bad("no"), key=lambda item: f"order{strange}{item}")
    assert letter.key == f"order{TOLD[strange]}2"


@pytest.mark.parametrize("strange", STRANGE)
def test_keys_that_are_kept_alike_are_counted(world, way, strange):
    settings = {"skip": SkipPolicy(on=Bad), "retry": SimpleRetryPolicy(1)}
    step = world.step([2, 2], process=fails_at_two(Bad()), key=lambda _: strange, **settings)
    assert run(step, way).dead_lettered == 2
    assert [letter.ordinal for letter in DeadLetters(world.jobs).page()] == [1, 2]


@pytest.mark.parametrize("strange", STRANGE)
def test_nor_does_the_name_of_a_source(world, way, strange):
    letter = lettered(world, way, Bad("no"), reader=SequenceReader([1, 2, 3], f"in{strange}"))
    assert letter.source == f"in{TOLD[strange]}"


def long(length):
    """A text that is not to be compressed."""
    return "".join(random.Random(length).choices("abcdefghijklmnopqrstuvwxyzäöü🙂", k=length))


@pytest.mark.parametrize("length", [500, 501, 100_000])
def test_an_item_with_a_long_key_is_found_by_it(world, way, length):
    letter = lettered(world, way, Bad("no"), key=lambda item: f"{long(length - 1)}{item}")
    key = f"{long(length - 1)}2"

    assert (letter.key[:400], len(letter.key)) == (key[:400], 500)
    assert DeadLetters(world.jobs).page(key=key) == [letter]
    assert DeadLetters(world.jobs).page(key=letter.key) == [letter]
    assert DeadLetters(world.jobs).page(key=key[:-1] + "3") == []
    assert world.step().replay(key=key).replayed == (letter.id,)


def test_a_key_of_500_characters_is_kept_as_it_is(world, way):
    assert lettered(world, way, Bad("no"), key=lambda _: long(500)).key == long(500)


def test_items_of_sources_with_long_names_have_distinct_keys(world, way):
    def fails(item):
        raise Bad

    for end in "ab":
        source = SequenceReader([1], f"{long(100_000)}{end}")
        step = world.step(
            reader=source, process=fails, retry=SimpleRetryPolicy(1), skip=SkipPolicy(on=Bad)
        )
        assert run(step, way, {"end": end}).dead_lettered == 1
    first, second = DeadLetters(world.jobs).page()
    assert first.source != second.source
    assert first.key != second.key
    assert first.source[:400] == first.key[:400] == long(100_000)[:400]


@pytest.mark.parametrize("strange", STRANGE)
def test_a_payload_that_had_to_be_changed_is_not_replayed(world, way, strange):
    letter = lettered(world, way, Bad("no"), codec=Text(f"two{strange}"))
    assert (letter.payload, letter.replayable) == (f"two{TOLD[strange]}", False)
    step = world.step(codec=Text(f"two{strange}"))
    replayed = step.replay() if way == "sync" else asyncio.run(step.replay_async())
    assert replayed.skipped == (letter.id,)


@pytest.mark.parametrize("text", ["", "plain", "Größe 🙂", "a\\x00b", "a\nb"])
def test_what_can_be_stored_stays_as_it_is(text):
    assert sanitize_text(text) == text


def test_each_surrogate_is_escaped():
    assert sanitize_text("\ud83d\ude42\x00") == "\\ud83d\\ude42\\x00"
