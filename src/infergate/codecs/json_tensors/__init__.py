"""JSON documents and tensor data in JSON, for the codecs of all protocols that use JSON.

``json_document`` parses; ``json_data`` and ``small_data`` convert flat data of a given shape.

Nested lists without a shape, as in ``{"instances": [[1, 2], [3, 4]]}``, are read in two steps:
``row_document.parse_document`` returns the members of the body that the caller names, and a
``row_reader.RowReader``, which has the datatypes of the inputs or infers them, returns the tensors
of a member, with ``read_instances`` (rows) or ``read_inputs`` (columns). ``row_writer.write_rows``
and ``write_columns`` return the JSON of such a member. These functions block for a time that grows
with the body. A codec estimates the size of the body with ``SupportsLongText``, so that a helper
process reads and writes long bodies.
"""
