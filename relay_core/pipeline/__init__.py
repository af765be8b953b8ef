"""Publishing.

`stages` lists the stages in order, `publication` is the value they pass on, the other modules are the longer stages.
May import `dispatch` and below; adapters are known here only by a small protocol.
"""
