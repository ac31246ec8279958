"""Dependencies of endpoints: warnings of limits that cannot be kept."""

from typing import Annotated

from fastapi import Depends

from journeyman.platform.budgets.warnings import BudgetWarnings
from journeyman.platform.http.dependencies import resource

BudgetWarningsDep = Annotated[BudgetWarnings, Depends(resource(BudgetWarnings))]
