"""What leaves the machine on behalf of a task: which addresses may be reached, and the proxy that reaches them."""
