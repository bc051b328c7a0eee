"""Reading answers: what a model wrote, told apart into text, reasoning and tool calls (docs/answers.md)."""
