"""What users call: queues, requests, handlers, schedules, writes and readers."""
