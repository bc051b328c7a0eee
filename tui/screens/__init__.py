"""Screens of the chat, one file each."""
