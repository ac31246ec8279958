from support.api_fixtures import (  # noqa: F401  fixtures
    apart_database,
    apart_settings,
    api,
    caller,
    clean_settings,
    operator,
)
