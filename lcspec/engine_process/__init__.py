"""An engine in a process of its own: if the library aborts or memory runs out, that process ends, not the program.

    program                                              child
    parent.EngineProcess   -- Open, Submit, Cancel ... -->   child.Host: an EngineThread, and threads for text
                           <-- Ready, Result, Events ...--

`spawn` starts the child, `process` talks to it and says how it ended, `protocol` has the messages and the pipe,
`outgoing` decides when events are sent, `heartbeat` finds out whether the child hangs, `tasks` are the requests that
wait for it, `vocabulary` is the model's vocabulary in the program, without the library. See docs/reliability.md.
"""
