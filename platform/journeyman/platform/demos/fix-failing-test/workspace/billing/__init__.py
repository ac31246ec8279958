"""Orders in, invoices and a balanced ledger out."""

from billing.catalogue import Catalogue, Product
from billing.invoice import Invoice, Line, build_invoice
from billing.ledger import Ledger

__all__ = ["Catalogue", "Invoice", "Ledger", "Line", "Product", "build_invoice"]
