"""The HTTP guard: rows in over the wire, scores out, and a page to watch it. Needs the extra ``[serve]``."""
