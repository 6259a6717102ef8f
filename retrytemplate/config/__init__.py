"""Configuration files: endpoints with their settings in YAML or TOML."""

from retrytemplate._internal.imports import lazy_attributes

__getattr__, __dir__, __all__ = lazy_attributes(
    __name__,
    {
        "retrytemplate.config.config": "Config load load_slos",
        "retrytemplate.config.delays": "Delay",
        "retrytemplate.config.effective": "Setting",
        "retrytemplate.config.endpoint": "Endpoint",
        "retrytemplate.config.errors": "ConfigError ConfigProblem UnknownEndpointError",
        "retrytemplate.config.schema": "json_schema",
        "retrytemplate.config.reload": "ConfigRejected ConfigReloaded ConfigWatcher",
    },
)
