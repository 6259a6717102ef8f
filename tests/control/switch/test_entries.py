"""Encoding of the switch state: nothing is lost, and invalid documents are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import SwitchStoreError
from retrytemplate.control import AuditRecord, SwitchEntry, SwitchScope
from retrytemplate.control.switch.codec import (
    decode_document,
    decode_record,
    encode_document,
    encode_record,
)
from retrytemplate.control.switch.model import ACTIONS, NAMED_KINDS, Document
from retrytemplate.control.switch.transitions import advance

texts = st.text(st.characters(codec=None), min_size=1)
moments = st.floats(0, 2**40) | st.integers(0, 2**40)
names = texts.filter(lambda name: name == name.strip())
scopes = st.builds(SwitchScope, st.sampled_from(NAMED_KINDS), names) | st.just(
    SwitchScope("global")
)
entries = st.builds(
    SwitchEntry,
    scope=scopes,
    reason=texts,
    by=texts,
    since=moments,
    until=st.none() | moments,
    when_expired=st.sampled_from(["resume", "keep"]),
    cause=st.none() | texts,
    canary=st.just((5.0, 25.0, 100.0)),
    step=st.integers(0, 2),
    reminded=st.none() | moments,
)
records = st.builds(
    AuditRecord,
    action=st.sampled_from(ACTIONS),
    scope=scopes,
    at=moments,
    by=texts,
    reason=texts,
    share=st.floats(0, 100),
    until=st.none() | moments,
    override=st.booleans(),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(scopes, entries, max_size=4), texts)
def test_document_equals_itself_after_encoding(found, store):
    known = {each.scope: each for each in found.values()}
    text = encode_document(Document(known, store))
    assert text.isascii()
    assert decode_document(text) == Document(known, store)


@given(records)
def test_record_equals_itself_after_encoding(record):
    text = encode_record(record)
    assert text.isascii()
    assert decode_record(text) == record


@given(entries, st.data())
def test_corrupt_field_is_rejected_or_harmless(entry, data):
    document = json.loads(encode_document(Document({entry.scope: entry}, "store")))
    fields = document["entries"][0]
    where = data.draw(st.sampled_from([document, fields]))
    name = data.draw(st.sampled_from([*where, "other"]))
    if data.draw(st.booleans()):
        where[name] = data.draw(values)
    else:
        where.pop(name, None)
    try:
        read = decode_document(json.dumps(document))
    except SwitchStoreError:
        return
    for each in read.entries.values():
        assert 0 <= each.share < 100
        if each.step:
            share = each.share
            change = advance(read.entries, 0.0, seen=each, by="kim", justification="all is well")
            assert change.records[-1].share > share or each.is_expired(0.0)
        assert each.is_expired(0.0) in (True, False)


@given(values | st.text())
def test_text_that_is_not_a_document_is_rejected(value):
    for text in (json.dumps(value), str(value)):
        for decode in (decode_document, decode_record):
            if not text and decode is decode_document:
                continue
            with pytest.raises(SwitchStoreError):
                decode(text)


def test_empty_string_is_an_empty_document():
    assert decode_document("") == Document()


def document(**fields):
    """One with one entry, of which some fields are these."""
    entry = SwitchEntry(scope=SwitchScope("segment", "a"), reason="r", by="b", since=1)
    made = json.loads(encode_document(Document({entry.scope: entry}, "store")))
    made["entries"][0] |= fields
    return json.dumps(made)


def test_document_with_a_repeated_scope_is_rejected():
    entry = SwitchEntry(scope=SwitchScope("segment", "a"), reason="r", by="b", since=1)
    document = json.loads(encode_document(Document({entry.scope: entry}, "store")))
    document["entries"] *= 2
    with pytest.raises(SwitchStoreError, match="a scope is in it twice"):
        decode_document(json.dumps(document))


@pytest.mark.parametrize("scope", [{"kind": "global"}, {"name": None}, {"kind": "team"}], ids=str)
def test_document_with_an_invalid_scope_is_rejected(scope):
    with pytest.raises(SwitchStoreError, match="cannot be read"):
        decode_document(document(**scope))


@pytest.mark.parametrize("name", ["", " a ", 7], ids=repr)
def test_document_with_an_invalid_name_is_rejected(name):
    with pytest.raises(SwitchStoreError, match=r"segment must be a name|name must be a string"):
        decode_document(document(name=name))


@pytest.mark.parametrize(
    ("canary", "step"),
    [
        ([5, 25], 1),
        ([25, 5, 100], 1),
        ([5, 5, 100], 1),
        ([0, 100], 1),
        ([5, 100], 2),
        ([100], 1),
        ([], 1),
    ],
    ids=repr,
)
def test_document_with_an_invalid_canary_is_rejected(canary, step):
    with pytest.raises(SwitchStoreError, match=r"(canary|step) must be"):
        decode_document(document(canary=canary, step=step))


@pytest.mark.parametrize("decode", [decode_document, decode_record])
def test_later_format_is_rejected_with_its_number(decode):
    with pytest.raises(SwitchStoreError, match="has format 2, this version reads up to 1"):
        decode('{"v": 2, "everything": "else"}')
