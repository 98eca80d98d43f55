"""The vtable entries of the fields in the schema fbs/graphpipe.fbs."""

from __future__ import annotations

from typing import Final

from infergate.codecs.graphpipe.flatbuffer_reader import TableField

REQ_TYPE: Final = TableField(4, "req_type")
REQ: Final = TableField(6, "req")
INFER: Final = 1
METADATA: Final = 2
"""The values of ``req_type``, which selects the type of ``req``."""

CONFIG: Final = TableField(4, "config")
INPUT_NAMES: Final = TableField(6, "input_names")
INPUT_TENSORS: Final = TableField(8, "input_tensors")
OUTPUT_NAMES: Final = TableField(10, "output_names")

OUTPUT_TENSORS: Final = TableField(4, "output_tensors")
ERRORS: Final = TableField(6, "errors")

TYPE: Final = TableField(4, "type")
SHAPE: Final = TableField(6, "shape")
DATA: Final = TableField(8, "data")
STRING_VAL: Final = TableField(10, "string_val")

CODE: Final = TableField(4, "code")
MESSAGE: Final = TableField(6, "message")

NAME: Final = TableField(4, "name")
VERSION: Final = TableField(6, "version")
SERVER: Final = TableField(8, "server")
DESCRIPTION: Final = TableField(10, "description")
INPUTS: Final = TableField(12, "inputs")
OUTPUTS: Final = TableField(14, "outputs")

IO_NAME: Final = TableField(4, "name")
IO_DESCRIPTION: Final = TableField(6, "description")
IO_SHAPE: Final = TableField(8, "shape")
IO_TYPE: Final = TableField(10, "type")
