"""What tokens cost: a bundled table of list prices, with the operator's own table before it."""

from collections.abc import Sequence
from decimal import Decimal
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from journeyman.platform.kit.errors import InvalidInput
from journeyman.platform.kit.settings import Settings
from journeyman.platform.ledger.usage import TokenUsage

_MILLION: Final = Decimal(1_000_000)
_Usd = Annotated[Decimal, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class Price(BaseModel):
    """USD per million tokens for all models whose name matches the glob ``match`` (case does not matter)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    match: str
    input: _Usd
    cached_input: _Usd | None = None
    """For prompt tokens that the engine found in its prefix cache; without it they cost as much as any other."""
    output: _Usd


class _PriceFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    about: str = ""
    """Where the prices come from: for whoever reads the file."""
    models: list[Price]


class PriceTable:
    """The first price whose glob matches counts. Models without a price are free: they run on the operator's own GPUs."""

    def __init__(self, prices: Sequence[Price] = ()) -> None:
        self._prices = tuple(prices)
        self._found: dict[str, Price | None] = {}

    @classmethod
    def load(cls, path: Path | None = None) -> "PriceTable":
        """The bundled table, after that of the given file. Raises :class:`InvalidInput` naming what is wrong with it."""
        bundled = resources.files("journeyman.platform.ledger").joinpath("prices.json").read_text(encoding="utf-8")
        prices = list(_PriceFile.model_validate_json(bundled).models)
        if path is not None:
            try:
                own = _PriceFile.model_validate_json(path.read_text(encoding="utf-8"))
            except OSError as error:
                raise InvalidInput(f"The price file {path} cannot be read: {error.strerror}.") from error
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"]) or "the file"
                raise InvalidInput(f"The price file {path} is not valid at {where}: {first['msg']}.") from error
            prices[:0] = own.models
        return cls(prices)

    @classmethod
    def from_settings(cls, settings: Settings) -> "PriceTable":
        return cls.load(settings.model_prices)

    def price_of(self, model: str) -> Price | None:
        if model not in self._found:
            # Names come from callers: a bounded memory.
            if len(self._found) >= 1024:
                self._found.clear()
            name = model.lower()
            self._found[model] = next((p for p in self._prices if fnmatchcase(name, p.match.lower())), None)
        return self._found[model]

    def cost(self, model: str, usage: TokenUsage) -> Decimal:
        """USD, rounded to 8 places as the ledger stores them."""
        price = self.price_of(model)
        if price is None:
            return Decimal(0)
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        cached_price = price.input if price.cached_input is None else price.cached_input
        total = (
            (usage.prompt_tokens - cached) * price.input
            + cached * cached_price
            + usage.completion_tokens * price.output
        )
        return (total / _MILLION).quantize(Decimal("1e-8"))
