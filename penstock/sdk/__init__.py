"""What users write against: App, task and job types, the context of a handler, bulk types."""
