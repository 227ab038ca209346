"""Code inside a desktop, under the system's Python: it starts, watches and drives the screen.

Standard library, python3-gi and python3-xlib only, and of agentrl only what is bundled with it.
"""
