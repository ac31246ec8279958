"""Dependencies of endpoints: the replay engine's scripts."""

from typing import Annotated

from fastapi import Depends

from journeyman.platform.http.dependencies import resource
from journeyman.platform.replay.catalog import ReplayCatalog

CatalogDep = Annotated[ReplayCatalog, Depends(resource(ReplayCatalog))]
