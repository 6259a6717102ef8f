# The types of the public names; __init__.py imports them on first use.

from retrytemplate.config.config import Config as Config
from retrytemplate.config.config import load as load
from retrytemplate.config.config import load_slos as load_slos
from retrytemplate.config.delays import Delay as Delay
from retrytemplate.config.effective import Setting as Setting
from retrytemplate.config.endpoint import Endpoint as Endpoint
from retrytemplate.config.errors import ConfigError as ConfigError
from retrytemplate.config.errors import ConfigProblem as ConfigProblem
from retrytemplate.config.errors import UnknownEndpointError as UnknownEndpointError
from retrytemplate.config.reload import ConfigRejected as ConfigRejected
from retrytemplate.config.reload import ConfigReloaded as ConfigReloaded
from retrytemplate.config.reload import ConfigWatcher as ConfigWatcher
from retrytemplate.config.schema import json_schema as json_schema
