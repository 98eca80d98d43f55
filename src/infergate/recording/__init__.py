"""Files of recorded inferences.

docs/recording.md describes the file format. Read ``format`` (the layout of a file), ``encoding`` (a
record), ``reader`` and ``writer`` (a file); then ``recorder`` (the observer of routes) with
``sampling``, ``redaction`` and ``recording_directory`` (the thread that writes the files of a
process)."""
