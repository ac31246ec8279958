"""What engines say when they refuse a call, and what that means: one data file a family of engines, one reader."""

from journeyman.platform.inference.refusals.classify import Refusal, RefusalKind, classify

__all__ = ["Refusal", "RefusalKind", "classify"]
