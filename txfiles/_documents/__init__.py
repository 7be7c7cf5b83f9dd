"""What a document is: how its bytes become a value and back. Pure functions of bytes, no file is touched.

May know: `_format`, `errors`. Begin with `document`, one document with its codec, type and version; `codecs` are the
ways to write one, `merging` keeps the comments of what is written over, `typed` checks a value against a type,
`foreign` asks the library that made the type, `patterns` are open sets of documents.
"""
