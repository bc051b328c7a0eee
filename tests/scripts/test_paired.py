"""The table of servers that take turns request by request."""

from __future__ import annotations

from scripts.servers.paired import paired_table


def row(name: str, ours: bool, *rates: float) -> dict[str, object]:
    after = [2 * rate for rate in rates]
    return {"name": name, "ours": ours, "rates": list(rates), "after": after, "first": [0.1] * len(rates)}


def test_ratios_are_those_of_single_requests() -> None:
    table = paired_table(
        [row("ours", True, 10, 30, 80), row("slow", False, 1, 2, 3), row("best", False, 20, 20, 100)],
    )
    assert "3 requests" in table and "ratios to best" in table
    assert "| ours | 30.0 | 0.80 | 0.50..1.50 | 60.0 | 0.80 | 0.100 | 1.00 |" in table
    assert "| best | 20.0 | 1.00 | 1.00..1.00 | 40.0 | 1.00 | 0.100 | 1.00 |" in table


def test_without_llama_server_ratios_are_to_the_first_one() -> None:
    table = paired_table([row("off", True, 10.0), row("auto", True, 15.0)])
    assert "ratios to off" in table and "| auto | 15.0 | 1.50 | 1.50..1.50 | 30.0 | 1.50 | 0.100 | 1.00 |" in table
