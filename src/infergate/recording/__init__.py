"""Recorded inferences, and the formats of other tools.

- Recordings: docs/recording.md describes the file format. Read ``format`` (the layout of a file),
  ``encoding`` (a record), ``reader`` and ``writer`` (a file); then ``recorder`` (the observer of
  routes) with ``sampling``, ``redaction`` and ``recording_directory`` (the thread that writes the
  files of a process).
- The payload log: ``cloud_events`` (events in KServe's format), ``payload_log`` (the queue and the
  observer of routes), ``event_files`` (events in files).
- ``perf_analyzer``: input files of NVIDIA's load generator."""
