"""What a user does to a staged view: written once, whatever holds the view and wherever it lands.

May know: `_tree`. Begin with `session`, what every call stands on; then `reading` and `changing`.
"""
