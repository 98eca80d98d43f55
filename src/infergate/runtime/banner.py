"""What a person sees when the gateway has started: where it listens, and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from infergate import __version__
from infergate.config.schema import Config
from infergate.transport.base import Address

_VALUES = ",".join(str(i) for i in range(16))
_ONES = ",".join("1" for _ in range(16))

_TRY_HTTP = """
Try it (paste a line):

  curl -s http://{http}/v2/models/simple/infer -d '{{"inputs":[{{"name":"INPUT0","shape":[1,16],\
"datatype":"INT32","data":[{values}]}},{{"name":"INPUT1","shape":[1,16],"datatype":"INT32",\
"data":[{ones}]}}]}}'; echo

  python3 -c "import tritonclient.http as t, numpy as n; c=t.InferenceServerClient('{http}'); \
i=t.InferInput('INPUT0',[2,3],'FP32'); i.set_data_from_numpy(n.ones((2,3),n.float32)); \
print(c.infer('identity',[i]).as_numpy('OUTPUT0'))"   # pip install tritonclient[http]

  (printf '%s' '{head}'; printf '\\1\\0\\0\\0\\2\\0\\0\\0') | \
curl -s http://{http}/v2/models/identity/infer -H 'Inference-Header-Content-Length: {length}' \
--data-binary @-; echo
"""
_HEAD = (
    '{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32",'
    '"parameters":{"binary_data_size":8}}]}'
)


class Addressed(Protocol):
    """What listens."""

    @property
    def address(self) -> Address:
        """The address it really bound."""
        ...


def banner(config: Config, listeners: Mapping[str, Addressed], source: Path | None) -> str:
    """The text to print once every listener is bound."""
    served = "the embedded models" if source is None else str(source)
    by = f", by {config.workers} workers" if config.workers > 1 else ""
    lines = [f"infergate {__version__} serves {served}{by}"]
    width = max(map(len, listeners), default=0)
    lines += [f"  {name:<{width}} {server.address}" for name, server in listeners.items()]
    if source is not None:
        lines += [f"  {r.model} -> {r.backend}" for r in config.routes[:20]]
        if len(config.routes) > 20:
            lines.append(f"  … and {len(config.routes) - 20} more routes")
    text = "\n".join(lines) + "\n"
    if source is None and "http" in listeners:
        text += _TRY_HTTP.format(
            http=listeners["http"].address,
            values=_VALUES,
            ones=_ONES,
            head=_HEAD,
            length=len(_HEAD),
        )
    return text
