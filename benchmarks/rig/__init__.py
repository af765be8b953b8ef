"""What the cases measure with.

Supervisors and servers in processes of their own, workplaces on disk, generated events, and the floor that ratios
refer to.
"""
