"""The blackboard of a task: what its roles tell one another without copying transcripts."""
