"""Access control: authentication, access rules and rate limits.

The entry point is ``authorizer.Authorizer``, which checks every request if the configuration has
``access``. Read the modules in this order: ``credentials`` (reads headers); ``keys``, ``tokens``
and ``jwks`` (API keys and JSON Web Tokens); ``authenticator`` (identifies clients); ``rules``
(permissions of identities); ``rate_limits`` and its stores ``shared_rates`` and ``redis_rates``;
``rejection`` (errors); ``watched_file`` (files that are reloaded when they change)."""
