"""What a step should hold: which drafters to ask, and how many of their nodes are worth a row of the target's.

    base        the protocol, limits, plans, and the planner that decides nothing
    auto        the planner that decides; rest.py: when it need not think
    cost        T(n), what a step of n rows takes
    acceptance  how likely a node is to be accepted; trend.py: calibration from few examples
    asking      whether a drafter that costs time is asked; record.py: its figures, worth.py: the arithmetic,
                longrun.py: what a second is worth
    widths      the width rule over everybody's nodes
    window      columns of probes beside them
    explain     all of it for people

Nothing here loads llama.cpp; it is tested with arrays.
"""
