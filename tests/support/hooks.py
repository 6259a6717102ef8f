"""Listeners that do one thing in every hook."""

from retrytemplate import RetryListener


class EveryHook(RetryListener):
    """Passes each hook's name to the one method of a subclass and returns its result."""

    def hook(self, name):
        raise NotImplementedError

    def open(self, context):
        return self.hook("open")

    def on_attempt_lost(self, context, error):
        return self.hook("on_attempt_lost")

    def before_attempt(self, context):
        return self.hook("before_attempt")

    def on_overrun(self, context, limit, elapsed):
        return self.hook("on_overrun")

    def on_success(self, context, result):
        return self.hook("on_success")

    def on_error(self, context, exception):
        return self.hook("on_error")

    def on_backoff(self, context, delay):
        return self.hook("on_backoff")

    def on_recovery(self, context, result):
        return self.hook("on_recovery")

    def on_store_error(self, context, exception):
        return self.hook("on_store_error")

    def on_end(self, context, exception):
        return self.hook("on_end")

    def close(self, context, exception):
        return self.hook("close")
