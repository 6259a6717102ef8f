"""The rules of a run."""

from retrytemplate import NeverRetryPolicy
from retrytemplate.batch import DeadLetters, ForwardReader, ReadError, SkipPolicy
from tests.support.step_fixture import run


class TornReader(ForwardReader):
    """Its second record of the first chunk cannot be decoded."""

    def open(self, position=None):
        cursor = super().open(position)
        read = cursor.read

        def torn(limit):
            records = read(limit)
            if records:
                about = {"text": "2", "source": records.source, "number": records.number(1)}
                records.broken[1] = ReadError("bad line", **about)
            return records

        cursor.read = torn
        return cursor


def test_journalled_record_keeps_its_number_in_a_resumed_run(sqlite, mode):
    first = sqlite.step(reader=TornReader(iter([1, 2, 3])), retry=NeverRetryPolicy())
    assert run(first, mode).status == "failed"
    resumed = sqlite.step(reader=ForwardReader(iter(())), skip=SkipPolicy(on=ReadError))
    assert run(resumed, mode).status == "completed"
    [letter] = DeadLetters(sqlite.jobs).page()
    assert letter.number == 2
    assert "record 2: bad line" in letter.error_message
    assert sqlite.rows() == [1, 3]
