"""Access control: authentication, access rules and rate limits.

The entry point is ``authorizer.Authorizer``, through which every request passes; it exists only if
the configuration has ``access``. Read ``credentials`` (what the headers contain), ``keys``,
``tokens`` and ``jwks`` (API keys and JSON Web Tokens), ``rules`` (what each identity may do),
``rate_limits`` and its stores ``shared_rates`` and ``redis_rates``, ``rejection`` (the refusals),
``watched_file`` (files that are reloaded when they change).
"""
