"""Decides what a step holds: which drafters to ask, and how many of their nodes get a row of the target's decode.

base              the protocol, limits and plans
fixed             the planner for a named strategy: it decides nothing
auto              the planner that decides
loss_budget       what a text may lose against plain decoding; shadow: how a pause ends early
policy            whether to ask a drafter that runs a model; record: its figures; overlap: whether it drafts ahead
acceptance        how likely a node is accepted; calibrator: calibration from few examples
worth             the arithmetic: what drafts are worth, and how many nodes of all sequences go into a step

What fits into a step's rows is the engine's (lcspec.engine.fitting), as is what is stored (lcspec.engine.learned).
"""
