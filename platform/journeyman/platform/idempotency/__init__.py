"""Commands that a client may send twice: done once, answered alike."""
