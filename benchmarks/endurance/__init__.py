"""A long task under fire: one random process is killed about once a minute, and nothing of the task may show it."""
