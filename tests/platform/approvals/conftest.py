from support.api_fixtures import apart_database, apart_settings, api, caller, clean_settings, operator

__all__ = ["apart_database", "apart_settings", "api", "caller", "clean_settings", "operator"]
