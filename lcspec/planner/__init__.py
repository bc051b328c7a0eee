"""Decides what a step holds: which drafters to ask, and how many of their nodes get a row of the target's decode.

base              the protocol, limits and plans
fixed             the planner for a named strategy: it decides nothing
auto              the planner that decides
loss_budget       what a text may lose against plain decoding
policy            whether to ask a drafter that runs a model; record: its figures
acceptance        how likely a node is accepted; calibrator: calibration from few examples
worth             the arithmetic: what drafts are worth, and how many nodes of all sequences go into a step
"""
