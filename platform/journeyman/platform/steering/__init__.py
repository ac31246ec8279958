"""Messages from people to a running task."""
