"""The Spark session.

On this machine, on a cluster or over Connect; which Java runs it; and the class-data archive that speeds up its start.
"""
