"""What a step should hold: which drafters to ask, and how many of their nodes are worth a row of the target's.

base        the protocol, limits, plans; fixed: the planner that decides nothing
auto        the planner that decides; planning_backoff: when it need not think
policy      whether a drafter that costs time is asked; record: its figures, worth: the arithmetic,
            longrun: what a second is worth
acceptance  how likely a node is to be accepted; calibrator: calibration from few examples
widths      the width rule over everybody's nodes; stake: where refused drafts cost more
lookahead_budget   columns of probes beside them
learned     what a planner begins with, and what is kept of what it learned
"""
