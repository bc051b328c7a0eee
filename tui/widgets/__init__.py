"""Widgets of the chat, one file each."""
