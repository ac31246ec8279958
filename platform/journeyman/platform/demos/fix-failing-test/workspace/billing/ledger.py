"""Double-entry bookkeeping: every posting has debits and credits, and they must be equal."""

from __future__ import annotations

from dataclasses import dataclass, field

from billing.invoice import Invoice


@dataclass
class Ledger:
    """Balances by account; debits count positive, credits negative."""

    accounts: dict[str, int] = field(default_factory=dict)

    def post_invoice(self, invoice: Invoice) -> None:
        """Receivables take the total; revenue is credited line by line, tax rate by rate."""
        self._post("receivables", invoice.total)
        for line in invoice.lines:
            self._post(f"revenue {line.vat_percent} %", -line.net)
        for rate, tax in invoice.vat_by_rate.items():
            self._post(f"vat {rate} %", -tax)

    @property
    def imbalance(self) -> int:
        """Debits minus credits: 0 when the books are right."""
        return sum(self.accounts.values())

    def _post(self, account: str, amount: int) -> None:
        self.accounts[account] = self.accounts.get(account, 0) + amount
