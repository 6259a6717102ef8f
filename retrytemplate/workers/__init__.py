"""Tasks and workers: they run, stop and clean up in order, also when they are cancelled."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.control.crash_loop": "CrashLoopError",
        "retrytemplate.workers.crash_attribution": "RedeliveryPolicy",
        "retrytemplate.workers.errors": (
            "JobQueueError SourceUnavailableError SupervisorStoppedError TaskInProgressError "
            "TaskLimitError"
        ),
        "retrytemplate.workers.events": (
            "JobReplayed MessageCrashAttributed MessageEvent MessageExclusive "
            "MessageExclusiveTimedOut MessageSettled MessageSuspected QueueAckFailed QueueEvent "
            "QueuePaused QueueReceiveFailed TaskCancelled TaskCleanupFailed TaskEvent TaskFailed "
            "TaskStarted TaskStuck WorkerStopped WorkerStopping"
        ),
        "retrytemplate.workers.job_queue": "Job JobQueue JobReplay",
        "retrytemplate.workers.message": "Acknowledge DeadLetter Message Reject Release Retry",
        "retrytemplate.workers.presets": "BATCH CLEANUP MUTATION USER_READ WORKER",
        "retrytemplate.workers.runtime.runtime": "WorkerRuntime",
        "retrytemplate.workers.runtime.shutdown": "Cleanup Shutdown ShutdownReport",
        "retrytemplate.workers.runtime.snapshot": "LastFailure RuntimeSnapshot",
        "retrytemplate.workers.sources.base": "Source",
        "retrytemplate.workers.sources.redis_streams": "RedisStreamSource",
        "retrytemplate.workers.sources.sql": "SQLSource",
        "retrytemplate.workers.supervisor.cancellation": "cancel_reason",
        "retrytemplate.workers.supervisor.cleanup": "shielded",
        "retrytemplate.workers.supervisor.groups": (
            "gather_all leaf_exceptions process_many split_group translate_group"
        ),
        "retrytemplate.workers.supervisor.handles": "StopReport SupervisorSnapshot TaskHandle",
        "retrytemplate.workers.supervisor.pool": "Gathered",
        "retrytemplate.workers.supervisor.streams": "StreamReport checkpoint process_stream",
        "retrytemplate.workers.supervisor.tasks": "TaskSupervisor",
    },
)
