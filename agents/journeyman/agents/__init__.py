"""What an agent is: its role and prompt, the tools it sees, the context it is given, and the limits it works under.

Everything here is pure: no network, no database, no clock, no randomness. The same input gives the same bytes, which
is what keeps prefix caches of the engines hot and lets workflows import these modules in Temporal's sandbox. The only
files read are the prompts of this package, on first use and never at import.

    roles       who there is, and what each may use
    tools       the tools' schemas, and the way from a model's call to checked arguments
    plans       the Planner's plan as a graph
    context     the messages of a conversation, byte for byte
    output      command output made fit for a model
    budget      limits, and which of them is reached
    loops       circuit breaker: an agent that goes round in circles
    review      what a verdict leads to
    compaction  when a conversation is summarised, and what the next segment starts with
"""
