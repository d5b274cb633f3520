"""Other ways to send the same requests, each a script of its own for an environment of its own.

A script takes URL, BODIES (a JSON body a line), IN_FLIGHT, and prints one JSON object: requests,
CPU seconds (user and system) and wall seconds. Imports are not counted; neither are some requests
that clients which import and build more when first used get as a warm-up. `version` is that of the
client measured.
"""
