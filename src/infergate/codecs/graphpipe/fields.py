"""The fields of the schema: their entries in vtables, as in fbs/graphpipe.fbs."""

from __future__ import annotations

from typing import Final

from infergate.codecs.graphpipe.reading import Field

REQ_TYPE: Final = Field(4, "req_type")
REQ: Final = Field(6, "req")
INFER: Final = 1
METADATA: Final = 2
"""The values of ``req_type``: the type of ``req``."""

CONFIG: Final = Field(4, "config")
INPUT_NAMES: Final = Field(6, "input_names")
INPUT_TENSORS: Final = Field(8, "input_tensors")
OUTPUT_NAMES: Final = Field(10, "output_names")

OUTPUT_TENSORS: Final = Field(4, "output_tensors")
ERRORS: Final = Field(6, "errors")

TYPE: Final = Field(4, "type")
SHAPE: Final = Field(6, "shape")
DATA: Final = Field(8, "data")
STRING_VAL: Final = Field(10, "string_val")

CODE: Final = Field(4, "code")
MESSAGE: Final = Field(6, "message")

VERSION: Final = Field(6, "version")
SERVER: Final = Field(8, "server")
DESCRIPTION: Final = Field(10, "description")
INPUTS: Final = Field(12, "inputs")
OUTPUTS: Final = Field(14, "outputs")

IO_NAME: Final = Field(4, "name")
IO_DESCRIPTION: Final = Field(6, "description")
IO_SHAPE: Final = Field(8, "shape")
IO_TYPE: Final = Field(10, "type")
