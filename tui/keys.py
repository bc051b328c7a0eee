"""Every action of the chat in one table: its keys, its name in the palette, and what the help says about it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding, BindingType


@dataclass(frozen=True)
class Action:
    """Something the user can do.

    Attributes:
        name: the method `action_<name>` of the screen (or of a focused message).
        keys: as Textual writes them, separated by commas.
        title: a few words, for the palette and the footer.
        help: one sentence.
        short: the footer's word; empty = not in the footer.
        on_message: it works on the message that has the focus (in the palette: on the latest answer).
    """

    name: str
    keys: str
    title: str
    help: str
    short: str = ""
    on_message: bool = False


CHAT = (
    Action("help", "f1", "Help", "What can be done here, and with which keys.", "Help"),
    Action(
        "stop",
        "escape",
        "Stop the answer",
        "Stops and keeps what came; if nothing came, your message goes back into the input. Also leaves an edit.",
        "Stop",
    ),
    Action(
        "interrupt", "ctrl+c", "Stop or quit", "Stops the answer; a second one offers to quit. Copies what is marked."
    ),
    Action(
        "lens",
        "f2,ctrl+l",
        "Speculation lens",
        "Colours the words that were guessed ahead, by who guessed them.",
        "Lens",
    ),
    Action(
        "inspector",
        "f3,ctrl+g",
        "Inspector",
        "How the answer was made: what was guessed, how much of it was right, what that saved.",
        "Inspect",
    ),
    Action(
        "drafters",
        "f4",
        "Switch drafters",
        "Also while it answers. Where texts are exact, the text stays the same.",
        "Drafters",
    ),
    Action("retry", "ctrl+r", "Regenerate", "Answers again beside the present answer, with a new seed."),
    Action(
        "repeat",
        "ctrl+t",
        "Repeat with the same seed",
        "Answers again with the same seed, which gives the same text where texts are exact: to compare drafters.",
    ),
    Action("new_chat", "ctrl+n", "New conversation", "Starts an empty one; this one stays in the list.", "New"),
    Action("chats", "ctrl+o", "Conversations", "List, search, rename, delete and export conversations.", "Chats"),
    Action(
        "messages", "ctrl+up,shift+tab", "Go to the messages", "To the buttons of a notice, else to the latest message."
    ),
    Action("page_up", "pageup", "Scroll up", "A screen up, wherever the focus is."),
    Action("page_down", "pagedown", "Scroll down", "A screen down."),
    Action("to_end", "ctrl+end", "To the end", "Scrolls to the latest message, however far it is."),
    Action("system", "f9", "System prompt", "What the model is told before the conversation."),
    Action("attach", "f6", "Attach a file", "Adds a text file to the next message; so does `/file PATH`."),
    Action("settings", "ctrl+s", "Settings", "Sampling, seed, what to do when the context is full, presets, theme."),
    Action(
        "presets", "f10", "Presets", "Sampling, drafters and system prompt under a name: save, choose, rename, delete."
    ),
    Action("models", "f5", "Models", "Choose another model."),
    Action("copy_answer", "f7", "Copy the latest answer", "Copies its Markdown to the clipboard."),
    Action("export", "f8", "Export the conversation", "Writes it to a Markdown or JSON file."),
    Action("toggle_dark", "f12", "Dark or light", "Switches between the dark and the light theme."),
    Action("command_palette", "ctrl+p", "Command palette", "Every action by name."),
    Action("quit", "ctrl+q", "Quit", "Everything is saved already.", "Quit"),
)

MESSAGE = (
    Action("previous", "up,k", "Previous message", "Moves to the message above.", on_message=True),
    Action("next", "down,j", "Next message", "Moves to the message below, at the end to the input.", on_message=True),
    Action("older_branch", "left,h", "Previous branch", "Shows the sibling before this message.", on_message=True),
    Action("newer_branch", "right,l", "Next branch", "Shows the sibling after this message.", on_message=True),
    Action(
        "edit",
        "e",
        "Edit",
        "Writes the message anew, yours or the model's; the conversation branches there.",
        "Edit",
        True,
    ),
    Action("retry", "r", "Regenerate", "Answers again from here, with a new seed.", "Again", True),
    Action(
        "repeat",
        "s",
        "Same seed",
        "Answers again from here, with the same seed: where texts are exact, the same text.",
        on_message=True,
    ),
    Action("go_on", "g", "Continue", "Goes on with an answer that was cut, stopped or edited.", "Go on", True),
    Action("copy", "y,c", "Copy", "Copies the message to the clipboard.", "Copy", True),
    Action("copy_code", "b", "Copy a code block", "Each press copies the next block of the message.", "Code", True),
    Action("thinking", "t", "Thinking", "Unfolds or folds the model's thinking.", "Think", True),
    Action("leave", "escape,i", "Back to the input", "Moves the focus to the input.", on_message=True),
)

PROMPT_HELP = (
    ("Enter", "Send."),
    ("Ctrl+J, Shift+Enter, Alt+Enter", "New line."),
    ("Up and Down at the edges", "Earlier messages you sent."),
    ("/", "Commands; the list above the input shows them, Tab takes one. //text sends /text."),
    ("@PATH", "Attach a text file, named in the message; Tab completes. So does dropping it on the terminal."),
    ("Backspace in the empty input", "Remove the last attachment."),
)

# The terminal or Textual owns these keys already; they are listed, not bound here.
ELSEWHERE = {"command_palette", "quit"}


def bindings(actions: tuple[Action, ...]) -> list[BindingType]:
    """Textual bindings of a table. Footer and help show the first key of each."""
    return [
        Binding(
            a.keys,
            a.name,
            a.short or a.title,
            show=bool(a.short),
            id=f"{'message' if a.on_message else 'chat'}.{a.name}",
        )
        for a in actions
        if a.name not in ELSEWHERE
    ]


def shown_keys(action: Action) -> str:
    """Keys as people write them: `Ctrl+R`, `F2`."""
    names = {"up": "Up", "down": "Down", "left": "Left", "right": "Right", "escape": "Esc"}
    return ", ".join(
        "+".join(names.get(part, part.capitalize() if len(part) > 1 or "+" in key else part) for part in key.split("+"))
        for key in action.keys.split(",")
    )
