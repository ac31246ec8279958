"""Where agents and platform meet: Temporal workflows, their activities, and the workers that run both."""
