"""``python photos.py URL INPUT OUTPUTS FILE…``: send image files as one batch of the input INPUT.
OUTPUTS are names, separated by commas. Prints a line of JSON for each output: its name and its
elements.
"""

import json
import sys
from pathlib import Path

import numpy as np
from graphpipe import remote

url, name, outputs, *files = sys.argv[1:]
images = np.array([Path(file).read_bytes() for file in files], np.object_)
arrays = remote.execute_multi(url, [images], [name], outputs.split(","))
for output, array in zip(outputs.split(","), arrays, strict=True):
    print(json.dumps([output, array.tolist()]))  # noqa: T201
