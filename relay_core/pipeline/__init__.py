"""Publishing.

`stages` has the stages and their order, `publication` is the value that they pass on, and the longer stages have their
own modules (`match`, `deliver`, `settle`). May import `dispatch` and below; it sees adapters only through the protocol
in `routing`.
"""
