"""The local OpenAI-compatible endpoint (`lcspec serve`)."""
