from support.api_fixtures import api, caller, clean_settings  # noqa: F401  fixtures
