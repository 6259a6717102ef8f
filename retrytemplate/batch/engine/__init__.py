"""The rules of a run: a generator of effects, without I/O, clock, threads or asyncio.

``machine.Machine.steps`` yields effects (``effects``).  A driver performs each one, and sends back
its result or throws in its exception.  The same rules serve threads and tasks.

Who may write what:

- The machine decides, and writes nothing outside of the chunk in memory.
- A transaction writes items, counts, dead letters and the checkpoint, all or none of them.
- The journal has one checkpoint a run.  It is written with the end of the chunk before, hence
  before the first effect of its chunk.  Work that it does not contain is done again.
- It records whether the run has entered the isolation gate: shared, or exclusively for an isolated
  chunk.  A run stays inside from chunk to chunk while no other one waits for exclusive entry.

A chunk in progress is in one of these states.  The last column is the state in which the next
process continues, if the process is killed before the transaction of the row is committed:

| state | event | in the transaction | checkpoint afterwards | after a kill |
|---|---|---|---|---|
| WAITING | the gate is entered | gate entered | gate entered | WAITING |
| READING | the reader has items | no transaction | unchanged | ISOLATING |
| READING | the reader has no more items | the end of the run | unchanged | ISOLATING |
| PROCESSING | an item succeeds or is skipped | no transaction | unchanged | ISOLATING |
| PROCESSING | an item fails, not skippable | counts, dead letters | in `pending` | ISOLATING |
| WRITING | the write commits | items, counts, dead letters | next position | ISOLATING |
| WRITING | the write fails, one item | counts and its dead letter | next position | ISOLATING |
| WRITING | the write fails, several items | rolled back | unchanged | ISOLATING |
| SEARCHING | a part succeeds or fails | good parts, not committed | unchanged | ISOLATING |
| SEARCHING | each item is decided | good parts, counts, dead letters | next position | ISOLATING |
| SEARCHING | the transaction is lost | rolled back | unchanged | ISOLATING |
| ISOLATING | the next item is selected | the isolated item | isolated item | ISOLATING |
| ISOLATED | the item is written | item, counts, next item | next item isolated | attributed |
| ISOLATED | the item fails, skippable | dead letter, next item | next item isolated | attributed |
| ISOLATED | it has `max_crashes` crashes | dead letter | next item isolated | ISOLATING |

Attributed: the crash is counted for the item, and the next process is ISOLATING.  A crash in any
other state is attributed to no item.  After more than `max_crashes`
consecutive ones while isolating, the run ends with ``CrashLoopError``.
"""
