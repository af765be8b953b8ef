"""The adapters: what adapters.json asks for (`configured`, `file`, `loading`), and the platforms that are built in.

Each platform is a package of its own that knows the seam (`relay_core.adapter`) and nothing of the supervisor.
"""
