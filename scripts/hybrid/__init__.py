"""A small hybrid (gated delta nets and attention) with a layer for multi-token prediction, trained from texts."""
