# The types of the public names; __init__.py imports them on first use.

from retrytemplate.classify.exceptions import ExceptionClassifier as ExceptionClassifier
from retrytemplate.classify.patterns import PatternClassifier as PatternClassifier
