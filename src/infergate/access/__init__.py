"""Access control: authentication, access rules and rate limits.

The entry point is ``authorizer.Authorizer``, which exists only if the configuration has ``access``,
and then checks every request. Read the modules in this order: ``credentials`` (reads headers);
``keys``, ``tokens`` and ``jwks`` (API keys and JSON Web Tokens); ``authenticator`` (identifies
clients); ``rules`` (permissions of identities); ``rate_limits`` and its stores ``shared_rates`` and
``redis_rates``; ``rejection`` (errors); ``watched_file`` (files that are reloaded when they
change)."""
