"""Wire ⇄ canonical, one protocol a module. Pure: no I/O, no clock, no logging."""
