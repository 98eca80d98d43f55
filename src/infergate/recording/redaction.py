"""Removes data from exchanges before they are recorded or logged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from infergate.core.credential_names import may_hold_credentials
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.name_globs import name_matcher
from infergate.core.records import EMPTY_MAPPING
from infergate.core.tensor import NO_PARAMETERS, OpaqueParameters, Tensor
from infergate.core.wire import NO_HEADERS

BODY: Final = "(body)"
"""The entry for the request's body in the list of redacted tensors."""


class Redaction:
    """Keeps only the allowed ``headers``, and removes or zeroes named tensors. All arguments are
    names or globs; header names are lower-case.

    - A header that may hold credentials is never kept.
    - ``removed`` inputs and outputs are removed.
    - ``zeroed`` inputs and outputs keep their names, datatypes and shapes, but their elements
      become 0. BYTES elements become empty, because their lengths may be confidential too.
    - If ``removed`` or ``zeroed`` is set, bodies that only servers of certain protocols understand,
      such as explanation requests and their responses, are removed too, because tensor names cannot
      select data in such bodies.
    """

    def __init__(
        self,
        headers: Iterable[str] = (),
        removed: Iterable[str] = (),
        zeroed: Iterable[str] = (),
    ) -> None:
        self._keeps_header: Final = name_matcher(headers)
        self._removes: Final = name_matcher(removed)
        self._zeroes: Final = name_matcher(zeroed)

    def apply(
        self, exchange: Exchange, further_outcomes: Mapping[str, Outcome] = EMPTY_MAPPING
    ) -> tuple[Exchange, Mapping[str, Outcome], tuple[str, ...]]:
        """Return ``exchange`` and the ``further_outcomes`` of its request without redacted data,
        and the names of the removed or zeroed tensors, including BODY for a removed body. These
        results are arguments of ``encoding.encode_exchange``, in order."""
        exchange = self.select_headers(exchange)
        if self._removes is None and self._zeroes is None:
            return exchange, further_outcomes, ()
        names: dict[str, None] = {}
        request = exchange.request
        is_forwarded = request.is_forwarded
        parameters = request.parameters
        if isinstance(parameters, OpaqueParameters) and parameters.text:
            names[BODY] = None
            # The other parameters may have been parsed from the body.
            parameters = OpaqueParameters(
                NO_PARAMETERS, parameters.protocols, b"", parameters.rejection
            )
            request = replace(request, parameters=parameters)
        exchange = replace(
            exchange,
            request=replace(request, inputs=self._redact(request.inputs, names)),
            outcome=self._redact_outcome(exchange.outcome, names, is_forwarded=is_forwarded),
        )
        further_outcomes = {
            name: self._redact_outcome(each, names, is_forwarded=is_forwarded)
            for name, each in further_outcomes.items()
        }
        return exchange, further_outcomes, tuple(names)

    def select_headers(self, exchange: Exchange) -> Exchange:
        """Return ``exchange`` with only the allowed headers."""
        headers, keeps = exchange.headers, self._keeps_header
        if not headers:
            return exchange
        kept: Mapping[str, str] = NO_HEADERS
        if keeps is not None:
            kept = {
                name: value
                for name, value in headers.items()
                if keeps(name) and not may_hold_credentials(name)
            }
        return replace(exchange, headers=kept)

    def _redact_outcome(
        self, outcome: Outcome, names: dict[str, None], *, is_forwarded: bool
    ) -> Outcome:
        responses = [
            replace(response, outputs=() if is_forwarded else self._redact(response.outputs, names))
            for response in outcome.responses
        ]
        return replace(outcome, responses=tuple(responses))

    def _redact(self, tensors: tuple[Tensor, ...], names: dict[str, None]) -> tuple[Tensor, ...]:
        """Return the tensors to store, and add the names of redacted tensors to ``names``."""
        kept = []
        for tensor in tensors:
            if self._removes is not None and self._removes(tensor.name):
                names[tensor.name] = None
            elif self._zeroes is not None and self._zeroes(tensor.name):
                names[tensor.name] = None
                kept.append(_zero(tensor))
            else:
                kept.append(tensor)
        return tuple(kept)


def _zero(tensor: Tensor) -> Tensor:
    # The operating system provides zeroed pages, so even a large tensor is cheap.
    is_bytes = tensor.datatype is Datatype.BYTES
    size = 4 * math.prod(tensor.shape) if is_bytes else len(tensor.data)
    return replace(tensor, data=bytes(size))
