"""Recorded inferences, and the formats of other tools.

- Recordings: docs/recording.md describes the file format. Read ``format`` (the layout of a file),
  ``encoding`` (a record), ``reader`` and ``writer`` (a file) first. Then read ``recorder`` (the
  queue of a process), ``sampling`` (the observers of routes), ``redaction``, and
  ``background_writer`` with ``directory`` (the thread that writes the files of a process).
- ``mismatches``: recordings of inferences whose responses differ.
- The payload log: ``cloud_events`` (events in KServe's format), ``payload_log`` (the queue),
  ``event_files`` (events in files).
- ``perf_analyzer``: input files of NVIDIA's load generator."""
