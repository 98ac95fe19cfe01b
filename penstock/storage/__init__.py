"""The edge to object storage: files by path (objects), and what a file really is (content)."""
