"""Whose cells are where: one text's, and those that texts share."""
