"""An engine in a process of its own: where the library aborts, or memory runs out, that process ends, not the program.

    program                                              child
    parent.EngineProcess   -- Open, Submit, Cancel ... -->   child.Host: an EngineThread, and threads for text
                           <-- Ready, Result, Events ...--

`protocol` has the messages and the pipe, `process` starts the child and says how it ended, `vocabulary` is the model's
vocabulary on this side, which needs no library. See docs/reliability.md.
"""
