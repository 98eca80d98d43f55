"""JSON documents and tensor data in JSON, for the codecs of all protocols that use JSON.

``json_document`` parses documents. ``json_data`` and ``small_data`` convert data of a given shape.

Nested lists without a shape, as in ``{"instances": [[1, 2], [3, 4]]}``, are read in two steps.
``row_document.parse_document`` returns the members of the body that the caller names. Then a
``row_reader.RowReader`` returns the tensors of a member, with ``read_instances`` (rows) or
``read_inputs`` (columns). The caller passes the datatypes of the inputs, or the reader infers them.
``row_writer.write_rows`` and ``write_columns`` return the JSON of such a member. A long body would
block the event loop. A codec therefore estimates the size of a body (``SupportsLongText``), and a
helper process reads and writes long bodies.
"""
