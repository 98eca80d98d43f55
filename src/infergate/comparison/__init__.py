"""Comparison of two outcomes of the same inference, without network I/O and without a clock.

``outcomes.compare`` compares the responses or errors of two servers by the rules of ``rules``, and
returns a small ``Comparison``. ``summary.Summary`` aggregates comparisons by route, model and
output. ``report_text`` and ``report_html`` render a summary. Read ``rules``, ``tensors``,
``outcomes`` and ``summary`` in this order."""
