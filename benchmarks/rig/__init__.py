"""The equipment of the cases: supervisors and servers, directories, generated events, and the floor."""
