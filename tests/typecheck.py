"""The checker that the tests put on every function of MiniGPT: shapes, dtypes and plain types."""

from beartype import BeartypeConf, beartype

check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float
