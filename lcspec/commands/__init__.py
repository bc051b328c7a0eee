"""Commands of the command line, one file each; `bench`, `serve`, `chat` and `draft heads` live with what they run."""
