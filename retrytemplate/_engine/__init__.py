"""The engine: the rules of an execution, and the drivers that perform its effects.

``execution.Execution.run`` is a generator of effects.  An effect is ``(function, arguments)``.  A
driver calls the function, awaits its result if it is awaitable, and sends back ``(value,
exception)``, one of them None.  So the rules exist once, and serve the synchronous driver, the
asynchronous driver and the block form.

Who may write what:

- The engine writes the context, the claim of the key and the disposition.
- A policy and a backoff return a new state; the engine keeps it in the context.
- A driver writes nothing but an overrun and a cancellation that it shielded a step from.
- A listener, a guard and the callback write attributes of the context, and call ``give_up()``.

An execution that needs no rule between its attempts does not use the generator: ``first_attempt``
runs the first attempt, and ``failure_rules`` decides after a failure.  Both forms call the same
functions to classify, count and conclude.

How an execution ends is its disposition.  It decides what happens to the record of its key:

| event | disposition | record of the key afterwards |
|---|---|---|
| settings cannot be resolved, or the key cannot be claimed | NOT_STARTED | unchanged |
| a veto, a rejected attempt, an exception that passes through | RELEASED | attempt not counted |
| the attempt and `on_success` return | COMPLETED | deleted, or a completion marker |
| a failure that is retried in the same call | none yet | failure saved, next attempt counted |
| a failure that is rethrown | RETAINED | failure saved |
| `on_error` or the policy raises | RETAINED | failure saved |
| the policy denies a retry, or the callback gives up | EXHAUSTED | recovering in the recovery |
| exhausted: the recovery returns, or there is no recovery | COMPLETED | deleted |
| exhausted: the recovery raises | COMPLETED | recovering: the next delivery recovers |
| a cancellation or a signal before the first failure | RELEASED | attempt not counted |
| a cancellation or a signal after a failure | RETAINED | failure saved |

An exception is classified once, when its failure is recorded.  Later decisions read the policy's
state and the time only.
"""
