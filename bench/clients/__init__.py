"""Other ways to send the same requests, each a script of its own for an environment of its own.

A script takes URL, BODIES (a JSON body a line), IN_FLIGHT, and prints one JSON object: requests, CPU seconds
(user and system, imports not counted) and wall seconds.
"""
